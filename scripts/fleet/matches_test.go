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
}

// matches are all players: those of each relay are a Fleet of their own. Its
// fields are fixed by enrol; its methods are for the goroutine of the test.
type matches struct {
	fleets [relayCount]*lab.Fleet
	all    []match
}

// newMatches opens the sockets for at most n matches. Run has to be called.
func newMatches(n *network, most, rate int) (*matches, error) {
	m := &matches{}
	for i := range relayCount {
		place := func(side byte) lab.Place { return lab.Place{Do: n.players.Do, First: firstPlayer(side, i)} }
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
	fleets.Wait()
	return errors.Join(errs...)
}

// enrol sets up n matches, two thirds of them where two thirds of the relays
// are.
func (m *matches) enrol(ctx context.Context, d *door, n int) error {
	m.all = make([]match, n)
	errs := make([]error, enrolling)
	var tasks sync.WaitGroup
	for w := range enrolling {
		tasks.Go(func() {
			for i := w; i < n && errs[w] == nil; i += enrolling {
				m.all[i], errs[w] = m.enrolOne(ctx, d, regions[i%relayCount])
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

func (m *matches) enrolOne(ctx context.Context, d *door, region string) (match, error) {
	host, joiner, code, err := lab.Meet(ctx, d, api.AllocateRequest{MaxConnections: maxConnections, Region: region})
	if err != nil {
		return match{}, err
	}
	relay := relayOf(host)
	if relay < 0 || relay != relayOf(joiner) || regions[relay] != region {
		return match{}, fmt.Errorf("a host in %s is on relay %d, who joined it on %d", region, relay, relayOf(joiner))
	}
	return match{code, relay}, m.fleets[relay].Add(host, joiner)
}

// codes returns the join codes of the hosts on those relays, or of all.
func (m *matches) codes(relays ...int) (codes []string) {
	for _, one := range m.all {
		wanted := len(relays) == 0
		for _, r := range relays {
			wanted = wanted || one.relay == r
		}
		if wanted {
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

// counts returns what all players have lived through. With settle nothing is
// under way in it.
func (m *matches) counts(settle bool) (sum seen) {
	for _, f := range m.fleets {
		c := f.Counts()
		if settle {
			c = f.Settle()
		}
		sum.players += c.Players
		sum.playing += c.Playing
		sum.dead += c.Dead
		sum.sent += c.Sent
		sum.lost += c.Lost()
		sum.ended += c.Fatal() + c.Disconnects + c.Strange
	}
	return sum
}

// seen is what players have lived through.
type seen struct {
	players, playing, dead int
	sent, lost             uint64 // datagrams of the game
	ended                  uint64 // datagrams that end a game or must never be sent
}

func (s seen) String() string {
	return fmt.Sprintf("%d players (%d playing, %d dead): sent %d, lost %d, ended or disturbed %d", s.players, s.playing, s.dead, s.sent, s.lost, s.ended)
}

// mark begins to look at which matches carry traffic both ways from now on.
func (m *matches) mark() {
	for _, f := range m.fleets {
		f.Mark()
	}
}

// resumed returns how many matches have done so within the time after mark.
func (m *matches) resumed(within time.Duration) (n int) {
	for _, f := range m.fleets {
		n += f.Resumed(within)
	}
	return n
}
