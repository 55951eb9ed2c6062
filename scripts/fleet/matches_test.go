//go:build lab && linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

const (
	parallelSetups = 4
	// maxConnections leaves room for the joins of probes.
	maxConnections = 50
)

type match struct {
	code  string
	relay int
	kind  matchKind
}

// matches are all players; the UDP players of each relay are one lab.Fleet.
// startMatches sets the fields; the methods are for the goroutine of the test.
type matches struct {
	fleets  [relayCount]*lab.Fleet
	clients *clientMatches
	all     []match
}

// newMatches opens the sockets for at most most matches per relay. The caller
// calls run.
func newMatches(n *network, most, rate int) (*matches, error) {
	m := &matches{clients: newClientMatches(n.players, rate)}
	for i := range relayCount {
		place := func(side byte) lab.SideConfig { return lab.SideConfig{Do: n.players.Do, First: firstPlayer(side, i)} }
		var err error
		m.fleets[i], err = lab.NewFleet(lab.FleetConfig{
			Hosts: place(hostRange), Joiners: place(joinerRange), Matches: most, Rate: rate, Payload: 64, Seed: uint64(i),
			Relay: netip.AddrPortFrom(netip.MustParseAddr(relayAddr(i)), playerPort),
		})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *matches) run(ctx context.Context) error {
	errs := make([]error, relayCount)
	var fleets sync.WaitGroup
	for i, f := range m.fleets {
		fleets.Go(func() { errs[i] = f.Run(ctx) })
	}
	fleets.Go(func() { m.clients.run(ctx) })
	fleets.Wait()
	return errors.Join(errs...)
}

// startMatches sets up n matches, distributed over the regions by their number
// of relays and with the same kinds in each.
func (m *matches) startMatches(ctx context.Context, d *balancer, n int) error {
	m.all = make([]match, n)
	errs := make([]error, parallelSetups)
	var tasks sync.WaitGroup
	for w := range parallelSetups {
		tasks.Go(func() {
			for i := w; i < n && errs[w] == nil; i += parallelSetups {
				m.all[i], errs[w] = m.startMatch(ctx, d, regions[i%relayCount], kindsInTurn[i/relayCount%len(kindsInTurn)])
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

func (m *matches) startMatch(ctx context.Context, d *balancer, region string, by matchKind) (match, error) {
	var host, joiner api.Allocation
	var code string
	err := errors.New("not tried")
	// Retry server errors: the machine may still be busy with the previous test.
	for deadline := time.Now().Add(waitTimeout); err != nil; time.Sleep(pollInterval) {
		host, joiner, code, err = lab.AllocateMatch(ctx, d, api.AllocateRequest{MaxConnections: maxConnections, Region: region})
		if err != nil && (!isServerFault(err) || time.Now().After(deadline)) {
			return match{}, err
		}
	}
	relay := relayOf(host, transports[by][0])
	if relay < 0 || relay != relayOf(joiner, transports[by][1]) || regions[relay] != region {
		return match{}, fmt.Errorf("the host in %s is on relay %d, its joiner on %d", region, relay, relayOf(joiner, transports[by][1]))
	}
	one := match{code, relay, by}
	if by == udp {
		return one, m.fleets[relay].Add(host, joiner)
	}
	return one, m.clients.add(ctx, by, relay, host, joiner)
}

func (m *matches) codes(relays ...int) (codes []string) {
	for _, one := range m.all {
		if len(relays) == 0 || slices.Contains(relays, one.relay) {
			codes = append(codes, one.code)
		}
	}
	return codes
}

// busiest returns the relay of a region with the most matches, and all other
// relays. Placement by load can leave a relay with few.
func (m *matches) busiest(region string) (relay int, others []int) {
	relay = slices.Index(regions[:], region)
	for i, r := range regions {
		if r == region && m.countOn(i) > m.countOn(relay) {
			relay = i
		}
	}
	for i := range regions {
		if i != relay {
			others = append(others, i)
		}
	}
	return relay, others
}

func (m *matches) countOn(relay int) int { return len(m.codes(relay)) }

func (m *matches) countByKind(relay int) (n [matchKinds]int) {
	for _, one := range m.all {
		if one.relay == relay {
			n[one.kind]++
		}
	}
	return n
}

// counts returns the counters of all players by kind. With settle nothing is in
// flight.
func (m *matches) counts(settle bool) (sums [matchKinds]playerCounts) {
	var each [relayCount]lab.Counts
	var settling sync.WaitGroup
	for i, f := range m.fleets {
		settling.Go(func() {
			if settle {
				each[i] = f.Settle()
			} else {
				each[i] = f.Counts()
			}
		})
	}
	sums = m.clients.counts(settle)
	settling.Wait()
	for _, c := range each {
		sums[udp] = sums[udp].add(playerCounts{
			players: c.Players, playing: c.Playing, failed: c.Failed, sent: c.Sent, lost: c.Lost(),
			ended: c.Fatal() + c.Disconnects + c.Unexpected,
		})
	}
	return sums
}

type playerCounts struct {
	players, playing, failed int
	sent, lost               uint64 // game datagrams
	ended                    uint64 // datagrams that end a game or are unexpected
	connections              int    // connections made by game clients
}

func (s playerCounts) add(o playerCounts) playerCounts {
	return playerCounts{
		s.players + o.players, s.playing + o.playing, s.failed + o.failed, s.sent + o.sent, s.lost + o.lost, s.ended + o.ended,
		s.connections + o.connections,
	}
}

func (s playerCounts) String() string {
	text := fmt.Sprintf("%d players (%d playing, %d failed): sent %d, lost %d, ended or disturbed %d", s.players, s.playing, s.failed,
		s.sent, s.lost, s.ended)
	if s.connections > 0 {
		text += fmt.Sprintf(", connections %d", s.connections)
	}
	return text
}

func total(sums [matchKinds]playerCounts) (sum playerCounts) {
	for _, s := range sums {
		sum = sum.add(s)
	}
	return sum
}

// mark restarts the measurement of when the matches of relays, or of all,
// resume.
func (m *matches) mark(relays ...int) {
	for i, f := range m.fleets {
		if len(relays) == 0 || slices.Contains(relays, i) {
			f.Mark()
			m.clients.mark(i)
		}
	}
}

func (m *matches) resumed(within time.Duration, relays ...int) (n [matchKinds]int) {
	for i, f := range m.fleets {
		if len(relays) == 0 || slices.Contains(relays, i) {
			n = addCounts(n, m.clients.resumed(i, within))
			n[udp] += f.Resumed(within)
		}
	}
	return n
}

func addCounts(a, b [matchKinds]int) [matchKinds]int {
	for w := range a {
		a[w] += b[w]
	}
	return a
}

func sum(n [matchKinds]int) (all int) {
	for _, of := range n {
		all += of
	}
	return all
}

// matchKind is the pair of transports of a match's players.
type matchKind uint8

const (
	udp   matchKind = iota // on the sockets of a lab.Fleet; all others are clientMatches
	dtls                   // both
	ws                     // both over WebSocket
	mixed                  // the host over DTLS, the joiner over WebSocket
	matchKinds
)

var matchKindNames = [matchKinds]string{udp: "udp", dtls: "dtls", ws: "ws", mixed: "dtls to ws"}

// transports are the API's connection types of host and joiner.
var transports = [matchKinds][2]string{udp: {"udp", "udp"}, dtls: {"dtls", "dtls"}, ws: {"wss", "wss"}, mixed: {"dtls", "wss"}}

// kindsInTurn are the kinds of consecutive matches. Most use UDP, since a
// client with a connection and encryption of its own costs the test machine
// more.
var kindsInTurn = [...]matchKind{udp, udp, dtls, udp, udp, ws, udp, udp, mixed, udp}

const (
	// clientRange is the third byte of the first address of game clients, behind
	// the addresses of all fleets.
	clientRange = 128
	// resumePollInterval is the resolution of the measured times until a match
	// resumed.
	resumePollInterval = 20 * time.Millisecond
)

type clientMatch struct {
	kind         matchKind
	relay        int
	host, player *lab.GameClient
	marked       time.Time
	resumed      time.Duration // after the mark; 0: not yet
}

// clientMatches are all matches of game clients. Its methods may be called
// while run runs.
type clientMatches struct {
	namespace lab.Namespace
	rate      int
	added     chan *clientMatch

	mu        sync.Mutex // guards the following fields
	all       []*clientMatch
	nextAddrs [2]netip.Addr // of the next host and joiner
}

func newClientMatches(from lab.Namespace, rate int) *clientMatches {
	first := func(side byte) netip.Addr { return netip.AddrFrom4([4]byte{198, side, clientRange, 1}) }
	return &clientMatches{namespace: from, rate: rate, added: make(chan *clientMatch),
		nextAddrs: [2]netip.Addr{first(hostRange), first(joinerRange)}}
}

func (v *clientMatches) add(ctx context.Context, by matchKind, relay int, host, joiner api.Allocation) error {
	v.mu.Lock()
	at := v.nextAddrs
	v.nextAddrs = [2]netip.Addr{at[0].Next(), at[1].Next()}
	v.mu.Unlock()
	one := &clientMatch{
		kind: by, relay: relay,
		host: v.gameClient(transports[by][0], at[0], relay, host, joiner), player: v.gameClient(transports[by][1], at[1], relay, joiner, host),
	}
	select {
	case v.added <- one:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gameClient returns the client of an allocation. Instead of a wss proxy, it
// connects to the relay over ws.
func (v *clientMatches) gameClient(transport string, at netip.Addr, relay int, own, peer api.Allocation) *lab.GameClient {
	return lab.NewGameClient(lab.GameClientConfig{
		Transport: strings.Replace(transport, "wss", "ws", 1), Namespace: v.namespace, Local: at,
		Relay:  netip.AddrPortFrom(netip.MustParseAddr(relayAddr(relay)), playerPort),
		Player: own, Peers: lab.PeersOf(peer), Rate: v.rate,
	})
}

func (v *clientMatches) run(ctx context.Context) {
	var playing sync.WaitGroup
	defer playing.Wait()
	watch := time.NewTicker(resumePollInterval)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-v.added:
			playing.Go(func() { one.host.Run(ctx) })
			playing.Go(func() { one.player.Run(ctx) })
			v.mu.Lock()
			v.all = append(v.all, one)
			v.mu.Unlock()
		case <-watch.C:
			v.recordResumed()
		}
	}
}

func (v *clientMatches) recordResumed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.resumed == 0 && !one.host.FirstArrival().IsZero() && !one.player.FirstArrival().IsZero() {
			one.resumed = time.Since(one.marked)
		}
	}
}

func (v *clientMatches) mark(relay int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.relay == relay {
			one.host.Mark()
			one.player.Mark()
			one.marked, one.resumed = time.Now(), 0
		}
	}
}

func (v *clientMatches) resumed(relay int, within time.Duration) (n [matchKinds]int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.relay == relay && one.resumed > 0 && one.resumed <= within {
			n[one.kind]++
		}
	}
	return n
}

// counts returns the counters by kind. With settle it pauses the games until
// nothing is in flight, or for 500 ms.
func (v *clientMatches) counts(settle bool) [matchKinds]playerCounts {
	if !settle {
		return v.sum()
	}
	v.pause(true)
	defer v.pause(false)
	sums := v.sum()
	for range 50 {
		time.Sleep(10 * time.Millisecond)
		if sums = v.sum(); total(sums).lost == 0 {
			break
		}
	}
	return sums
}

func (v *clientMatches) sum() (sums [matchKinds]playerCounts) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		s := &sums[one.kind]
		for _, x := range []*lab.GameClient{one.host, one.player} {
			c := x.Counts()
			s.players++
			if c.Received > 0 {
				s.playing++
			}
			s.sent += c.Sent
			s.lost += c.Sent - c.Received
			s.ended += uint64(c.Fatal)
			s.connections += c.Connections
		}
	}
	return sums
}

func (v *clientMatches) pause(on bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		one.host.Pause(on)
		one.player.Pause(on)
	}
}
