//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// What a game of the world does.
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

// Addresses of the world besides those of the network.
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

// worldSecret signs the tokens of players.
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

// worldClient is one of them.
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

// newWorldGame makes the network of a row, with more flags of the relay.
func newWorldGame(t *testing.T, r worldRow, flags ...string) *worldGame {
	testkit.Program(t, "nft", "nftables")
	testkit.Program(t, "ethtool", "ethtool")
	g := &worldGame{worldResult: worldResult{row: r, shares: [4]string{"-", "-", "-", "-"}}}
	g.lab = newLabIn(t, NewRoutedNetwork, func(c *RelayConfig) {
		if err := g.buildNetwork(c.Network); err != nil {
			t.Fatal(err)
		}
		g.configure(t, c)
		c.Flags = append(c.Flags, flags...)
	})
	if strings.HasPrefix(r.get(dimAddress), "proxy") {
		g.startProxy()
	}
	g.host = &worldClient{
		game: g, name: "host", families: r.get(dimHost), near: true, in: g.net.Peers,
		local: map[string]netip.Addr{"4": FirstPeer, "6": FirstPeer6},
	}
	first4 := FirstClient
	if strings.HasPrefix(r.get(dimAddress), "hairpin") {
		first4 = privateFirst
	}
	locals := []map[string]netip.Addr{{"4": first4, "6": FirstClient6}, {"4": first4.Next(), "6": FirstClient6.Next()}}
	for i, families := range r.players() {
		g.players = append(g.players, &worldClient{
			game: g, name: fmt.Sprint("player ", i+1), families: families, in: g.net.Clients, local: locals[i],
		})
	}
	return g
}

// buildNetwork makes the network of the row.
func (g *worldGame) buildNetwork(n *Network) error {
	r := g.row
	wire6, lan6 := "2001:db8:1::2", clientsLAN6
	errs := []error{
		n.Clients.IP("route add local " + privateRange + " dev lo"), n.Router.IP("route add " + privateRange + " via " + clientsLAN),
		n.Relay.IP("route add " + privateRange + " via " + clientsWire),
		n.Clients.IP("-6 route add local " + mobileRange6 + " dev lo"), n.Router.IP("-6 route add " + mobileRange6 + " via " + lan6),
		n.Relay.IP("-6 route add " + mobileRange6 + " via " + wire6),
		// Sockets of IPv4 set no DF, as on most systems but Linux.
		n.Clients.Set("net.ipv4.ip_no_pmtu_disc", "1"), n.Peers.Set("net.ipv4.ip_no_pmtu_disc", "1"),
		n.Relay.IP("addr add " + publicAddr.String() + "/32 dev lo"), n.Relay.IP("addr add " + publicAddr6.String() + "/128 dev lo nodad"),
		n.Relay.IP("addr add " + proxySource.String() + "/32 dev lo"),
	}
	mtu, how, _ := strings.Cut(r.get(dimPath), " ")
	if how != "up" {
		errs = append(errs, n.Router.IP("route replace "+clientsRange+" via "+clientsLAN+" mtu "+mtu),
			n.Router.IP("route replace "+privateRange+" via "+clientsLAN+" mtu "+mtu),
			n.Router.IP("-6 route replace "+clientsRange6+" via "+lan6+" mtu "+mtu),
			n.Router.IP("-6 route replace "+mobileRange6+" via "+lan6+" mtu "+mtu))
	}
	if how != "down" {
		errs = append(errs, n.Router.IP("route replace default via 198.51.100.1 mtu "+mtu),
			n.Router.IP("-6 route replace default via 2001:db8:1::1 mtu "+mtu))
	}
	if how == "silent" {
		errs = append(errs, n.Router.Filter(`table inet silent {
	chain out {
		type filter hook output priority 0
		icmpv6 type packet-too-big drop
		icmp type destination-unreachable icmp code 4 drop
	}
	chain forward {
		type filter hook forward priority 0
		tcp flags syn tcp option maxseg size set `+fmt.Sprint(atoi(mtu)-60)+`
	}
}`))
	}
	switch how := r.get(dimAddress); how {
	case "nat", "nat ports":
		flags := strings.TrimPrefix(strings.Replace(how, "nat ports", "nat random,fully-random", 1), "nat")
		errs = append(errs, n.Router.Filter(`table inet nat {
	chain post {
		type nat hook postrouting priority srcnat
		oifname "relay" ip saddr 198.18.0.0/17 masquerade`+flags+`
		oifname "relay" ip6 saddr `+clientsRange6+` masquerade`+flags+`
	}
}`))
	case "redirect":
		errs = append(errs, n.Relay.Filter(fmt.Sprintf(`table inet nat {
	chain pre {
		type nat hook prerouting priority dstnat
		udp dport %[1]d redirect to :%[2]d
		tcp dport %[1]d redirect to :%[2]d
	}
}`, publicPort, relayPort)))
	case "dnat":
		errs = append(errs, n.Relay.Filter(fmt.Sprintf(`table inet nat {
	chain pre {
		type nat hook prerouting priority dstnat
		ip daddr %s meta l4proto { tcp, udp } dnat ip to %s
		ip6 daddr %s meta l4proto { tcp, udp } dnat ip6 to %s
	}
}`, publicAddr, RelayAddr.Addr(), publicAddr6, RelayAddr6.Addr())))
	}
	if r.has(dimXDP, "tc") {
		errs = append(errs, forXDP(n.Router), forXDP(n.Peers))
	}
	return errors.Join(errs...)
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// configure makes the relay's settings.
func (g *worldGame) configure(t *testing.T, c *RelayConfig) {
	r := g.row
	c.YAML = fmt.Sprintf("issuers:\n  - preset: development\n    hs256_key: %q\n", worldSecret)
	http := "0.0.0.0:7777"
	for _, family := range strings.Split(r.get(dimRelay), "+") {
		listen := g.relay0(family)
		if r.has(dimAddress, "redirect") { // It goes to an address of the interface.
			listen = netip.AddrPortFrom(netip.IPv4Unspecified(), relayPort)
		}
		if family == "6" {
			http = "[::]:7777"
			if r.has(dimAddress, "redirect") {
				listen = netip.AddrPortFrom(netip.IPv6Unspecified(), relayPort)
			}
		}
		c.Flags = append(c.Flags, "--udp", listen.String())
		switch r.get(dimAddress) {
		case "proxy", "proxy refused", "dnat":
			c.Flags = append(c.Flags, "--advertise", g.public(family).Addr().String())
		case "redirect":
			c.Flags = append(c.Flags, "--advertise", g.public(family).String())
		}
	}
	c.Flags = append(c.Flags, "--http", http, "--recover-for", "20s")
	if r.has(dimAddress, "proxy", "hairpin") {
		c.Flags = append(c.Flags, "--allow-private-sources")
	}
	if r.has(dimXDP, "tc") {
		c.Flags = append(c.Flags, "--xdp", "tc")
	}
	if r.migrates() {
		c.Flags = append(c.Flags, "--host-migration", "60s", "--host-migration-silence", worldSilence.String())
	}
	if g.plain() {
		return
	}
	cert, key := testkit.SelfSigned(t).WriteFiles(t, c.Dir)
	c.Flags = append(c.Flags, "--behind-proxy=false", "--trusted-proxies", "192.0.2.1", "--tls-cert", cert, "--tls-key", key)
}

// plain reports whether the API has no TLS: ws is plain HTTP.
func (g *worldGame) plain() bool { return g.row.has(dimTransport, "ws") }

// relay0 returns the relay's own address of a family, public the one that players get.
func (g *worldGame) relay0(family string) netip.AddrPort {
	if family == "6" {
		return RelayAddr6
	}
	return RelayAddr
}

func (g *worldGame) public(family string) netip.AddrPort {
	at := g.relay0(family)
	switch g.row.get(dimAddress) {
	case "redirect":
		at = netip.AddrPortFrom(at.Addr(), publicPort)
	case "proxy", "proxy refused", "dnat":
		at = netip.AddrPortFrom(publicAddr, relayPort)
		if family == "6" {
			at = netip.AddrPortFrom(publicAddr6, relayPort)
		}
	}
	return at
}

// startProxy starts a proxy for UDP on the relay's machine, which has a private address.
func (g *worldGame) startProxy() {
	socket := func(at netip.AddrPort) func() (*net.UDPConn, error) {
		return func() (conn *net.UDPConn, err error) {
			err = g.net.Relay.Do(func() error {
				conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
				return err
			})
			return conn, err
		}
	}
	// Its sockets set no DF, and so do those of players: silent routers are about the relay.
	g.must(g.net.Relay.Set("net.ipv4.ip_no_pmtu_disc", "1"))
	p, err := NewProxy(ProxyConfig{Target: RelayAddr, Listen: socket(g.public("4")), Dial: socket(netip.AddrPortFrom(proxySource, 0))})
	if err != nil {
		g.Fatal(err)
	}
	g.background(p.Run)
}

// familyNamer adds the family of the player to the body of a call.
type familyNamer struct {
	http.RoundTripper
	name bool
}

func (f familyNamer) RoundTrip(req *http.Request) (*http.Response, error) {
	if !f.name || req.Body == nil {
		return f.RoundTripper.RoundTrip(req)
	}
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	raw = bytes.Replace(raw, []byte("{"), []byte(`{"family":6,`), 1)
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	return f.RoundTripper.RoundTrip(req)
}

// api returns the API as the client, or a backend for it, calls it.
func (c *worldClient) api() (*api.Client, error) {
	g := c.game
	family, local := "4", c.local["4"]
	own := g.row.has(dimCall, "own")
	relay := g.row.get(dimRelay)
	if own && strings.Contains(c.families, "6") && strings.Contains(relay, "6") || !strings.Contains(relay, "4") {
		family, local = "6", c.local["6"]
	}
	token := fmt.Sprintf(tokenFormat, 0)
	if own {
		var err error
		token, err = identity.Mint(identity.MintRequest{Secret: worldSecret, Identity: identity.Identity{
			Tenant: alloc.Tenant{Project: "laboratory", Environment: "test"}, Player: c.name,
		}, Valid: time.Hour, Now: time.Now()})
		if err != nil {
			return nil, err
		}
	}
	scheme := "https"
	if g.plain() {
		scheme = "http"
	}
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // It is self-signed.
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = c.in.Do(func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.AsSlice()}}
				conn, err = d.DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}
	// A join over IPv6 says so itself; a host, a player that may be the next one, and a backend name the family.
	names := c.families == "6" && (!own || c.near || c.alloc.AllocationID != "")
	return &api.Client{
		BaseURL: scheme + "://" + g.relay0(family).String(), Token: token,
		HTTP: &http.Client{Transport: familyNamer{transport, names}, Timeout: api.DefaultTimeout},
	}, nil
}

// endpoint returns where the client connects to: as Unity's does, to the first endpoint
// of its type for udp and dtls, and to an address of the relay's name for the others.
func (c *worldClient) endpoint() (at netip.AddrPort, local netip.Addr, err error) {
	g := c.game
	families := c.families
	if c.near && families == "4+6" {
		families = "4"
	}
	if transport := g.row.get(dimTransport); transport == "udp" || transport == "dtls" {
		e, ok := c.alloc.Endpoint(transport)
		if !ok {
			return at, local, errors.New("no endpoint of " + transport)
		}
		ip, err := netip.ParseAddr(e.Host)
		if err != nil {
			return at, local, err
		}
		if at = netip.AddrPortFrom(ip, uint16(e.Port)); c.near && g.row.has(dimAddress, "redirect", "dnat") {
			at = g.relay0(map[bool]string{false: "4", true: "6"}[ip.Is6()]) // Of the relay's own network.
		}
	} else if family := "6"; strings.Contains(families, "6") && strings.Contains(g.row.get(dimRelay), "6") {
		at = g.public(family)
	} else {
		at = g.public("4")
	}
	family := "4"
	if at.Addr().Is6() {
		family = "6"
	}
	c.six = family == "6"
	if !strings.Contains(families, family) {
		return at, local, fmt.Errorf("it has no IPv%s, and its endpoint is %v", family, at)
	}
	return at, c.local[family], nil
}

// start begins to play with peers.
func (c *worldClient) start(peers ...api.Allocation) error {
	at, local, err := c.endpoint()
	if err != nil {
		return err
	}
	g := c.game
	c.client = NewGameClient(GameClientConfig{
		Transport: g.row.get(dimTransport), Namespace: c.in, Local: local, Relay: at, Player: c.alloc, Peers: PeersOf(peers...),
		Rate: worldRate, Sizes: g.sizes(),
	})
	ctx, stop := context.WithCancel(g.Context())
	c.stop = stop
	g.background(func(background context.Context) {
		defer context.AfterFunc(background, stop)()
		c.client.Run(ctx)
	})
	return nil
}

// sizes are the contents of small, medium and largest messages. The largest is what the
// relay sends to a player of that transport.
func (g *worldGame) sizes() []int {
	largest := map[string]int{"udp": 1400, "dtls": 1362, "ws": 1348, "wss": 1348}
	return []int{20, 500, largest[g.row.get(dimTransport)]}
}

// play plays the game of the row, and compares what it gets with what it should.
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

// worldClients are players of a message.
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

// outage takes the network of the players away for a while.
func (g *worldGame) outage(seconds int) {
	g.must(g.net.Router.Filter("table inet outage {\n chain forward {\n type filter hook forward priority -10\n drop\n }\n}"))
	g.idle(time.Duration(seconds) * time.Second)
	g.must(g.net.Router.Filter("delete table inet outage"))
}

// happen does to the relay what the row has.
func (g *worldGame) happen() {
	switch g.row.get(dimEvent) {
	case "upgrade":
		out, err := g.tryCtl("upgrade", "-o", "json")
		var answer admin.UpgradeResult
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

// spectate lets a player get much and send little.
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

// measure counts messages of each size for a while.
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

// requireWhy checks that ferry ctl why says a word of each player.
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
