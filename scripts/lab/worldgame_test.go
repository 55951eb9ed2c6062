//go:build lab && linux

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	worldRate    = 30              // messages per second to each peer
	worldMeasure = 2 * time.Second // of each measurement
	worldLeast   = 0.9             // share of the messages of each size that must arrive
	worldIn      = 8 * time.Second // until all players are in
	worldBack    = 15 * time.Second
	sleepSeconds = 12
	// A spectator gets more than three bytes for each of its own, for so long
	// that this is more than 1 MiB at once.
	spectatorBytes = 210_000 // per second
	spectatorTime  = 8 * time.Second
	// publicPort is the port that the relay's network redirects to the relay.
	publicPort = 17777
)

var (
	publicAddr   = netip.MustParseAddr("203.0.113.78") // of a proxy or of DNAT before the relay
	publicAddr6  = netip.MustParseAddr("2001:db8:77::78")
	proxySource  = netip.MustParseAddr("172.17.0.1")
	privateFirst = netip.MustParseAddr("192.168.7.1")
	mobile       = netip.MustParseAddr("198.18.200.1")
	mobile6      = netip.MustParseAddr("2001:db8:28::1")
)

const (
	privateRange = "192.168.7.0/24"
	mobileRange6 = "2001:db8:28::/64"
)

var worldSecret = []byte(strings.Repeat("world", 8))

// worldGame is a host and two players in a network of one row. The test's goroutine owns
// it.
type worldGame struct {
	*lab
	worldResult
	host    *worldClient
	players []*worldClient
	code    string
}

type worldClient struct {
	game     *worldGame
	name     string
	families string // 4, 6 or 4+6
	in       Namespace
	local    map[string]netip.Addr // by family
	alloc    api.Allocation
	client   *GameClient
	six      bool // it plays over IPv6
	near     bool // it is in the relay's own network
	stop     func()
}

// sizes are the contents of small, medium and largest messages. The largest is what the
// relay sends to a player of that transport.
func (g *worldGame) sizes() []int {
	largest := map[string]int{"udp": 1400, "dtls": 1362, "ws": 1348, "wss": 1348}
	return []int{20, 500, largest[g.row.get(dimTransport)]}
}

func (g *worldGame) play() {
	begin := time.Now()
	if !g.allocate() {
		return
	}
	refused := g.row.refused()
	within := worldIn
	if refused {
		within = 3 * time.Second
	}
	g.mark()
	if g.wait(within, func() bool { return len(g.missing()) == 0 }) {
		g.in = time.Since(begin)
	}
	switch missing := g.missing(); {
	case refused && len(missing) < 2:
		g.fault("players got in")
	case refused:
		g.requireWhy(missing, "allow_private_sources")
	case len(missing) > 0:
		g.fault("after %v not in: %s", within, missing)
		for _, c := range missing {
			g.askWhy(c)
		}
	default:
		g.disturb()
		g.measure()
		g.requireNarrow()
	}
}

// allocate makes the allocations and starts all clients.
func (g *worldGame) allocate() bool {
	call := func(c *worldClient, do func(*api.Client) error) bool {
		client, err := c.api()
		if err == nil {
			err = do(client)
		}
		if err != nil {
			g.fault("call of %s: %v", c.name, err)
		}
		return err == nil
	}
	ok := call(g.host, func(a *api.Client) (err error) {
		if g.host.alloc, err = a.Allocate(g.Context(), api.AllocateRequest{MaxConnections: 4}); err == nil {
			g.code, err = a.JoinCode(g.Context(), g.host.alloc.AllocationID)
		}
		return err
	})
	var joined []api.Allocation
	for _, p := range g.players {
		ok = ok && call(p, func(a *api.Client) (err error) {
			p.alloc, err = a.Join(g.Context(), g.code)
			return err
		})
		joined = append(joined, p.alloc)
	}
	if !ok {
		return false
	}
	if err := g.host.start(joined...); err != nil {
		g.fault("host: %v", err)
		return false
	}
	for _, p := range g.players {
		if err := p.start(g.host.alloc); err != nil {
			g.fault("%s: %v", p.name, err)
		}
	}
	return true
}

// clients returns those that were started.
func (g *worldGame) clients() (all []*GameClient) {
	for _, c := range append(slices.Clone(g.players), g.host) {
		if c.client != nil {
			all = append(all, c.client)
		}
	}
	return all
}

func (g *worldGame) mark() {
	for _, c := range g.clients() {
		c.Mark()
	}
}

type worldClients []*worldClient

func (all worldClients) String() string {
	var names []string
	for _, c := range all {
		text := c.name
		if c.client != nil {
			text += " (" + c.client.String() + ")"
		}
		names = append(names, text)
	}
	return strings.Join(names, ", ")
}

// missing returns the players between whom and the host nothing arrived since the last
// mark, one way at least.
func (g *worldGame) missing() (all worldClients) {
	for _, p := range g.players {
		if p.client == nil {
			all = append(all, p)
			continue
		}
		down, up := g.streams(p)
		if total(down).Received == 0 || total(up).Received == 0 {
			all = append(all, p)
		}
	}
	return all
}

// streams returns what was sent since the last mark and arrived, by size: to a player
// and from it.
func (g *worldGame) streams(p *worldClient) (down, up map[int]Tally) {
	between := func(from, to *worldClient) map[int]Tally {
		all := make(map[int]Tally)
		for at, n := range from.client.Tally() {
			if at.Peer == idOf(to.alloc) && n.Sent > 0 {
				got := to.client.Tally()[Stream{idOf(from.alloc), at.Size}]
				all[at.Size] = Tally{n.Sent, got.Received}
			}
		}
		return all
	}
	return between(g.host, p), between(p, g.host)
}

func total(all map[int]Tally) (sum Tally) {
	for _, n := range all {
		sum = Tally{sum.Sent + n.Sent, sum.Received + n.Received}
	}
	return sum
}

// disturb does what happens in mid-match, and waits until all play again.
func (g *worldGame) disturb() {
	first := g.players[0]
	move := func(at4, at6 netip.Addr, six bool) {
		family, at := "4", at4
		if six {
			family, at = "6", at6
		}
		first.six = six
		first.client.Move(netip.AddrPortFrom(at, 0), g.public(family))
	}
	changed := !g.row.has(dimChange, "none") || !g.row.has(dimEvent, "none")
	switch g.row.get(dimChange) {
	case "port":
		move(first.local["4"], first.local["6"], first.six)
	case "address":
		move(first.local["4"].Next().Next(), first.local["6"].Next().Next(), first.six)
	case "network":
		move(mobile, mobile6, first.six)
	case "family":
		move(first.local["4"], first.local["6"], !first.six)
	case "4s":
		g.outage(4)
	case "20s":
		g.outage(20)
	case "asleep":
		first.client.Sleep(true)
		g.idle(sleepSeconds * time.Second)
		first.client.Sleep(false)
	}
	if g.row.spectates() {
		g.spectate(first)
	}
	g.happen()
	if !changed {
		return
	}
	begin := time.Now()
	if g.row.migrates() && !g.migrate() {
		return
	}
	g.mark()
	if g.wait(worldBack, func() bool { return len(g.missing()) == 0 }) {
		g.back = time.Since(begin)
		if within := departures[g.row.get(dimEvent)]; *long && g.row.migrates() && g.back > within {
			g.fault("the match went on after %v, not %v", g.back.Round(time.Millisecond), within)
		}
		return
	}
	g.fault("%v after the change not back: %s", worldBack, g.missing())
	for _, c := range g.missing() {
		g.askWhy(c)
	}
}

func (g *worldGame) outage(seconds int) {
	g.must(g.net.Router.Filter("table inet outage {\n chain forward {\n type filter hook forward priority -10\n drop\n }\n}"))
	g.idle(time.Duration(seconds) * time.Second)
	g.must(g.net.Router.Filter("delete table inet outage"))
}

func (g *worldGame) happen() {
	switch g.row.get(dimEvent) {
	case "upgrade":
		out, err := g.tryCtl("upgrade", "-o", "json")
		var answer operator.UpgradeResult
		if err == nil {
			err = json.Unmarshal([]byte(out), &answer)
		}
		if err != nil {
			g.fault("upgrade: %.300s", strings.ReplaceAll(err.Error(), "\n", " "))
			break
		}
		g.relay.TakenOver(answer.Process)
	case "kill":
		g.relay.Kill()
		g.start()
	}
}

func (g *worldGame) must(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

func (g *worldGame) spectate(p *worldClient) {
	sizes := g.sizes()
	size := sizes[2]
	if !g.isOwed(p, size) {
		size = sizes[1]
	}
	p.client.Pause(true)
	g.host.client.Play(spectatorBytes/size, size)
	g.idle(spectatorTime - 3*time.Second)
	g.mark()
	g.idle(3 * time.Second)
	g.settle()
	down, _ := g.streams(p)
	if n := total(down); float64(n.Received) < worldLeast*float64(n.Sent) || n.Sent == 0 {
		g.fault("as a spectator it got %d of %d", n.Received, n.Sent)
		g.askWhy(p)
	}
	g.host.client.Play(worldRate, sizes...)
	p.client.Pause(false)
	g.unpause()
}

// settle pauses the game until nothing is in flight, or for 700 ms.
func (g *worldGame) settle() {
	for _, c := range g.clients() {
		c.Pause(true)
	}
	g.wait(700*time.Millisecond, func() bool {
		for _, p := range g.players {
			down, up := g.streams(p)
			for _, n := range []Tally{total(down), total(up)} {
				if n.Received < n.Sent {
					return false
				}
			}
		}
		return true
	})
}

func (g *worldGame) unpause() {
	for _, c := range g.clients() {
		c.Pause(false)
	}
}

func (g *worldGame) measure() {
	g.idle(300 * time.Millisecond) // The first large one of a path may be lost.
	g.mark()
	g.idle(worldMeasure)
	g.settle()
	for i, p := range g.players {
		down, up := g.streams(p)
		bad := false
		for k, streams := range []map[int]Tally{down, up} {
			var text []string
			for _, size := range g.sizes() {
				n := streams[size]
				text = append(text, fmt.Sprintf("%.0f", 100*float64(n.Received)/float64(max(n.Sent, 1))))
				if float64(n.Received) < worldLeast*float64(n.Sent) || n.Sent == 0 {
					bad = true
					if g.isOwed(p, size) {
						g.fault("%s: %s %d of %d messages of %d bytes", p.name, []string{"down", "up"}[k], n.Received, n.Sent, size)
					}
				}
			}
			g.shares[2*i+k] = strings.Join(text, "/")
		}
		if bad {
			g.askWhy(p)
		}
	}
}

// isOwed reports whether messages of a size must arrive at a player and from it: over
// IPv6 the largest cannot if a silent router drops them. The new host is behind it too.
func (g *worldGame) isOwed(p *worldClient, size int) bool {
	silent := strings.HasSuffix(g.row.get(dimPath), "silent")
	return !(silent && (p.six || !g.host.near && g.host.six) && g.row.has(dimTransport, "udp", "dtls") && size == g.sizes()[2])
}

// requireNarrow checks that ferry ctl why says so if the path to a player is narrow and
// the relay can know.
func (g *worldGame) requireNarrow() {
	if g.row.has(dimPath, "1500", "1400 up") || strings.HasSuffix(g.row.get(dimPath), "silent") || !g.row.has(dimTransport, "udp", "dtls") ||
		g.row.has(dimEvent, "kill") {
		return
	}
	var all worldClients
	for _, p := range g.players {
		if p.six {
			all = append(all, p)
		}
	}
	g.requireWhy(all, "its path takes packets of")
}

func (g *worldGame) requireWhy(all worldClients, word string) {
	for _, c := range all {
		if text := g.askWhy(c); !strings.Contains(strings.ToLower(text), word) {
			g.fault("ctl why of %s does not say %q", c.name, word)
		}
	}
}

// askWhy returns what ferry ctl why says of a client, and keeps it.
func (g *worldGame) askWhy(c *worldClient) string {
	out, err := g.tryCtl("why", c.alloc.AllocationID)
	text := strings.TrimSpace(out)
	if err != nil {
		text = err.Error()
	}
	if lines := strings.Split(text, "\n"); len(lines) > 1 {
		text = strings.TrimSpace(lines[1]) // The first one is the id.
	}
	if line := c.name + ": " + text; !slices.Contains(g.why, line) {
		g.why = append(g.why, line)
	}
	return text
}
