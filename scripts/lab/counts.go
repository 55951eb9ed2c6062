package lab

import (
	"fmt"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/sock"
)

// Counts is what the players of a Fleet have lived through so far.
type Counts struct {
	Players, Bound, Playing, Failed int // now; Playing may send: they are linked as far as they know
	// Sent and Received are datagrams of the game, each counted once.
	Sent, Received, Duplicates uint64
	Binds, BindsAnswered       uint64
	Rebinds, RebindsLate       uint64 // BINDs of choice; those without an answer when the next one was due
	Roams, RoamsLate           uint64 // changes of port; those not over when the next one was due
	Disconnects                uint64 // DISCONNECTs received, though no player sends any
	Unexpected                 uint64 // datagrams that a relay must never send
	Stray                      uint64 // datagrams for a port that the player has left
	Unsent                     uint64 // datagrams that the kernel did not take
	Ended                      uint64 // matches that both players have left
	Errors                     [16]uint64
}

// Lost is the datagrams of the game that have not arrived.
func (c Counts) Lost() uint64 { return c.Sent - c.Received }

// Fatal is the ERRORs that end a game: 1 and 4.
func (c Counts) Fatal() uint64 { return c.Errors[1] + c.Errors[4] }

// Since returns what was counted after an earlier reading.
func (c Counts) Since(o Counts) Counts {
	c.Sent -= o.Sent
	c.Received -= o.Received
	c.Duplicates -= o.Duplicates
	c.Binds -= o.Binds
	c.BindsAnswered -= o.BindsAnswered
	c.Rebinds -= o.Rebinds
	c.RebindsLate -= o.RebindsLate
	c.Roams -= o.Roams
	c.RoamsLate -= o.RoamsLate
	c.Disconnects -= o.Disconnects
	c.Unexpected -= o.Unexpected
	c.Stray -= o.Stray
	c.Unsent -= o.Unsent
	c.Ended -= o.Ended
	for i := range c.Errors {
		c.Errors[i] -= o.Errors[i]
	}
	return c
}

// String is one line for people.
func (c Counts) String() string {
	s := fmt.Sprintf("%d players (%d bound, %d playing, %d dead): sent %d, lost %d",
		c.Players, c.Bound, c.Playing, c.Failed, c.Sent, c.Lost())
	if c.Sent > 0 {
		s += fmt.Sprintf(" (%.3f %%)", 100*float64(c.Lost())/float64(c.Sent))
	}
	for _, extra := range []struct {
		name string
		n    uint64
	}{
		{"duplicates", c.Duplicates}, {"BINDs", c.Binds}, {"re-BINDs", c.Rebinds}, {"late", c.RebindsLate},
		{"roams", c.Roams}, {"stranded", c.RoamsLate}, {"DISCONNECTs", c.Disconnects}, {"strange", c.Unexpected}, {"unsent", c.Unsent}, {"matches over", c.Ended},
	} {
		if extra.n > 0 {
			s += fmt.Sprintf(", %s %d", extra.name, extra.n)
		}
	}
	for code, n := range c.Errors {
		if n > 0 {
			s += fmt.Sprintf(", ERROR %d %d", code, n)
		}
	}
	return s
}

// Counts returns what has been counted so far. What is under way is in Sent
// and not yet in Received; see Settle.
func (f *Fleet) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts
	for _, p := range f.players {
		if p.status != departed {
			c.Players++
		}
		if p.status == bound {
			c.Bound++
			if p.maySend {
				c.Playing++
			}
		}
		c.Sent += p.sent
		c.Received += p.in.unique
		c.Duplicates += p.in.duplicates
	}
	return c
}

// Settle stops the game for a moment, until nothing is under way any more or
// half a second has passed, and returns the counts of that moment.
func (f *Fleet) Settle() Counts { return f.settle(0, 500*time.Millisecond) }

// SettleTo is Settle for a game of which no more datagrams may be lost than those:
// it waits for the others as long as a machine may stand still, 15 s at most.
func (f *Fleet) SettleTo(lost uint64) Counts { return f.settle(lost, 15*time.Second) }

func (f *Fleet) settle(lost uint64, within time.Duration) Counts {
	const pause = 10 * time.Millisecond
	f.pause(true)
	defer f.pause(false)
	c := f.Counts()
	for range within / pause {
		time.Sleep(pause)
		if c = f.Counts(); c.Lost() <= lost {
			break
		}
	}
	return c
}

func (f *Fleet) pause(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = on
}

// Mark clears when matches resumed: from now on that is the first arrival of
// something that was sent after now.
func (f *Fleet) Mark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mark = sock.Now()
	for _, p := range f.players {
		p.resumed = 0
	}
}

// Resumed returns how many matches have carried traffic both ways since Mark,
// within the time after it.
func (f *Fleet) Resumed(within time.Duration) (matches int) {
	for _, d := range f.Resumptions() {
		if d <= within {
			matches++
		}
	}
	return matches
}

// Resumptions returns how long after Mark matches carried traffic both ways, in
// order of length. Matches that have not yet done so are not among them.
func (f *Fleet) Resumptions() (all []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := 0; i+1 < len(f.players); i += 2 {
		a, b := f.players[i].resumed, f.players[i+1].resumed
		if a != 0 && b != 0 {
			all = append(all, time.Duration(max(a, b)-f.mark))
		}
	}
	slices.Sort(all)
	return all
}

// Rebinds returns how long the answers to BINDs of choice took, in order of length.
func (f *Fleet) Rebinds() []time.Duration { return f.latencies(&f.rebinds) }

// Roams returns how long roams took until datagrams had arrived both ways, in
// order of length.
func (f *Fleet) Roams() []time.Duration { return f.latencies(&f.roams) }

// Delays returns how long the game's datagrams were under way since the last
// call, in order of length, at most the first million. They contain up to a
// millisecond on which the fleet rested.
func (f *Fleet) Delays() []time.Duration {
	all := f.latencies(&f.delays)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays = f.delays[:0]
	return all
}

func (f *Fleet) latencies(of *[]int64) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]time.Duration, len(*of))
	for i, ns := range *of {
		all[i] = time.Duration(ns)
	}
	slices.Sort(all)
	return all
}

// Captured returns the last BIND of every player, as an attacker on the path may
// have seen it.
func (f *Fleet) Captured() (binds [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.players {
		if p.bindPkt != nil {
			binds = append(binds, slices.Clone(p.bindPkt))
		}
	}
	return binds
}

// Quantile returns the latency that a share of a sorted list does not exceed;
// 0 for an empty one.
func Quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// Point is a figure at a time.
type Point struct {
	At    time.Duration
	Value float64
}

// Slope is how much a figure grows in a time, by least squares through all
// points; 0 for fewer than two points in time.
func Slope(points []Point, per time.Duration) float64 {
	var t, v float64
	for _, p := range points {
		t += p.At.Seconds()
		v += p.Value
	}
	n := float64(len(points))
	t, v = t/n, v/n
	var up, over float64
	for _, p := range points {
		d := p.At.Seconds() - t
		up += d * (p.Value - v)
		over += d * d
	}
	if over == 0 {
		return 0
	}
	return up / over * per.Seconds()
}
