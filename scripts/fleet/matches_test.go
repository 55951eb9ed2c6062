//go:build lab && linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

const (
	// enrolling is how many matches are set up at a time.
	enrolling = 4
	// maxConnections leaves room for the probes' joins beside the one player.
	maxConnections = 50
)

// match is one that goes on from the beginning to the end.
type match struct {
	code  string
	relay int
	way   way
}

// matches are all players: those of each relay who come by UDP are a Fleet of
// their own. Its fields are fixed by enrol; its methods are for the goroutine of
// the test.
type matches struct {
	fleets [relayCount]*lab.Fleet
	visits *visits
	all    []match
}

// newMatches opens the sockets for at most n matches. Run has to be called.
func newMatches(n *network, most, rate int) (*matches, error) {
	m := &matches{visits: newVisits(n.players, rate)}
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

// run plays until ctx ends.
func (m *matches) run(ctx context.Context) error {
	errs := make([]error, relayCount)
	var fleets sync.WaitGroup
	for i, f := range m.fleets {
		fleets.Go(func() { errs[i] = f.Run(ctx) })
	}
	fleets.Go(func() { m.visits.run(ctx) })
	fleets.Wait()
	return errors.Join(errs...)
}

// startMatches sets up n matches, two thirds of them where two thirds of the relays
// are, and as many by each way in each region.
func (m *matches) startMatches(ctx context.Context, d *balancer, n int) error {
	m.all = make([]match, n)
	errs := make([]error, enrolling)
	var tasks sync.WaitGroup
	for w := range enrolling {
		tasks.Go(func() {
			for i := w; i < n && errs[w] == nil; i += enrolling {
				m.all[i], errs[w] = m.startMatch(ctx, d, regions[i%relayCount], mix[i/relayCount%len(mix)])
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

func (m *matches) startMatch(ctx context.Context, d *balancer, region string, by way) (match, error) {
	var host, joiner api.Allocation
	var code string
	err := errors.New("not tried")
	// Before the matches begin nothing is judged: a machine that is busy with what
	// was before gets its time.
	for deadline := time.Now().Add(waitTimeout); err != nil; time.Sleep(pollEvery) {
		host, joiner, code, err = lab.AllocateMatch(ctx, d, api.AllocateRequest{MaxConnections: maxConnections, Region: region})
		if err != nil && (!fault(err) || time.Now().After(deadline)) {
			return match{}, err
		}
	}
	relay := relayOf(host, transports[by][0])
	if relay < 0 || relay != relayOf(joiner, transports[by][1]) || regions[relay] != region {
		return match{}, fmt.Errorf("a host in %s is on relay %d, who joined it on %d", region, relay, relayOf(joiner, transports[by][1]))
	}
	one := match{code, relay, by}
	if by == udp {
		return one, m.fleets[relay].Add(host, joiner)
	}
	return one, m.visits.add(ctx, by, relay, host, joiner)
}

// codes returns the join codes of the hosts on those relays, or of all.
func (m *matches) codes(relays ...int) (codes []string) {
	for _, one := range m.all {
		if len(relays) == 0 || slices.Contains(relays, one.relay) {
			codes = append(codes, one.code)
		}
	}
	return codes
}

// busiest returns the relay of a region that has the most matches, and all the
// other relays. New hosts go where there is most to spare, so that of two relays
// one may have few.
func (m *matches) busiest(region string) (relay int, others []int) {
	relay = slices.Index(regions[:], region)
	for i, r := range regions {
		if r == region && m.on(i) > m.on(relay) {
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

// on returns how many matches a relay has.
func (m *matches) on(relay int) int { return len(m.codes(relay)) }

// by returns how many matches of a relay play by each way.
func (m *matches) by(relay int) (n [wayCount]int) {
	for _, one := range m.all {
		if one.relay == relay {
			n[one.way]++
		}
	}
	return n
}

// counts returns what all players have lived through, by way. With settle
// nothing is under way in it.
func (m *matches) counts(settle bool) (sums [wayCount]seen) {
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
	sums = m.visits.counts(settle)
	settling.Wait()
	for _, c := range each {
		sums[udp] = sums[udp].and(seen{
			players: c.Players, playing: c.Playing, dead: c.Failed, sent: c.Sent, lost: c.Lost(),
			ended: c.Fatal() + c.Disconnects + c.Unexpected,
		})
	}
	return sums
}

// seen is what players have lived through.
type seen struct {
	players, playing, dead int
	sent, lost             uint64 // datagrams of the game
	ended                  uint64 // datagrams that end a game or must never be sent
	connections            int    // that they made, where they make one
}

func (s seen) and(o seen) seen {
	return seen{
		s.players + o.players, s.playing + o.playing, s.dead + o.dead, s.sent + o.sent, s.lost + o.lost, s.ended + o.ended,
		s.connections + o.connections,
	}
}

func (s seen) String() string {
	text := fmt.Sprintf("%d players (%d playing, %d dead): sent %d, lost %d, ended or disturbed %d", s.players, s.playing, s.dead, s.sent, s.lost, s.ended)
	if s.connections > 0 {
		text += fmt.Sprintf(", connections %d", s.connections)
	}
	return text
}

// total adds up what players by all ways have lived through.
func total(sums [wayCount]seen) (sum seen) {
	for _, s := range sums {
		sum = sum.and(s)
	}
	return sum
}

// mark begins to look at which matches of relays, or of all, carry traffic both
// ways from now on.
func (m *matches) mark(relays ...int) {
	for i, f := range m.fleets {
		if len(relays) == 0 || slices.Contains(relays, i) {
			f.Mark()
			m.visits.mark(i)
		}
	}
}

// resumed returns how many matches of relays, or of all, have done so within the
// time after mark, by way.
func (m *matches) resumed(within time.Duration, relays ...int) (n [wayCount]int) {
	for i, f := range m.fleets {
		if len(relays) == 0 || slices.Contains(relays, i) {
			n = plus(n, m.visits.resumed(i, within))
			n[udp] += f.Resumed(within)
		}
	}
	return n
}

// plus adds numbers by way.
func plus(a, b [wayCount]int) [wayCount]int {
	for w := range a {
		a[w] += b[w]
	}
	return a
}

// sum adds up numbers of all ways.
func sum(n [wayCount]int) (all int) {
	for _, of := range n {
		all += of
	}
	return all
}
