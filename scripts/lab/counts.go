package lab

import (
	"fmt"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/habits"
)

// Counts are the counters of a Fleet.
type Counts struct {
	Players, Bound, Playing, Failed int // now; Playing are those that may send to their peer
	// Sent and Received are game datagrams, each counted once.
	Sent, Received, Duplicates uint64
	Binds, BindsAnswered       uint64
	Rebinds, RebindsLate       uint64 // scheduled BINDs; those unanswered when the next one was due
	Roams, RoamsLate           uint64 // port changes; those incomplete when the next one was due
	Disconnects                uint64 // DISCONNECTs received, though no player sends any
	Unexpected                 uint64 // datagrams that a relay must not send to that player
	Stray                      uint64 // datagrams for a former port, or for an address without a player
	Unsent                     uint64 // datagrams that the kernel refused to send
	Ended                      uint64 // matches that both players have left
	// Errors counts ERRORs by code.
	Errors [16]uint64
}

// Lost returns the number of game datagrams that have not arrived.
func (c Counts) Lost() uint64 { return c.Sent - c.Received }

// Fatal returns the number of ERRORs that end a game: codes 1 and 4.
func (c Counts) Fatal() uint64 { return c.Errors[1] + c.Errors[4] }

// Since returns the difference to an earlier reading.
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

// String returns a one-line summary.
func (c Counts) String() string {
	s := fmt.Sprintf("%d players (%d bound, %d playing, %d failed): sent %d, lost %d",
		c.Players, c.Bound, c.Playing, c.Failed, c.Sent, c.Lost())
	if c.Sent > 0 {
		s += fmt.Sprintf(" (%.3f %%)", 100*float64(c.Lost())/float64(c.Sent))
	}
	for _, extra := range []struct {
		name string
		n    uint64
	}{
		{"duplicates", c.Duplicates}, {"BINDs", c.Binds}, {"re-BINDs", c.Rebinds}, {"late re-BINDs", c.RebindsLate},
		{"roams", c.Roams}, {"late roams", c.RoamsLate}, {"DISCONNECTs", c.Disconnects}, {"unexpected", c.Unexpected}, {"unsent", c.Unsent},
		{"matches ended", c.Ended},
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

// Counts returns the counters. Datagrams in flight are in Sent and not in
// Received; see Settle.
func (f *Fleet) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts
	for _, p := range f.players {
		if !p.departed {
			c.Players++
		}
		if p.Status == habits.Bound && !p.departed {
			c.Bound++
			if p.maySend() {
				c.Playing++
			}
		}
		c.Sent += p.sent
		c.Received += p.in.unique
		c.Duplicates += p.in.duplicates
	}
	return c
}

// Settle pauses the game until no datagram is in flight, or for 500 ms, and
// returns the counters of that moment.
func (f *Fleet) Settle() Counts { return f.settle(0, 500*time.Millisecond) }

// SettleTo is like Settle, but waits until at most lost datagrams are missing,
// for up to 15 s, since the machine may stall.
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

// Mark resets the record of resumed matches: a match has resumed when both
// players have received a datagram that was sent after Mark.
func (f *Fleet) Mark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mark = sock.Now()
	for _, p := range f.players {
		p.resumed = 0
	}
}

// Resumed returns how many matches have resumed within the given time after
// Mark.
func (f *Fleet) Resumed(within time.Duration) (matches int) {
	for _, d := range f.Resumptions() {
		if d <= within {
			matches++
		}
	}
	return matches
}

// Resumptions returns the sorted times from Mark until each match resumed,
// without the matches that have not.
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

// Rebinds returns the sorted latencies of the answers to scheduled BINDs.
func (f *Fleet) Rebinds() []time.Duration { return f.latencies(&f.rebinds) }

// Roams returns the sorted times from each port change until datagrams had
// arrived in both directions.
func (f *Fleet) Roams() []time.Duration { return f.latencies(&f.roams) }

// Delays returns the sorted one-way delays of game datagrams since the last
// call, at most the first million. Each contains up to 1 ms of the fleet's own
// polling interval.
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

// Captured returns the last BIND of each player, as an on-path attacker could
// have captured it.
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

// Quantile returns the given quantile (0 to 1) of a sorted list; 0 for an empty
// one.
func Quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// Point is a value at a time.
type Point struct {
	At    time.Duration
	Value float64
}

// Slope returns the growth of the value in the given time, by least squares. It
// returns 0 for fewer than two distinct times.
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
