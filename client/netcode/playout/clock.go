package playout

import (
	"fmt"
	"slices"
	"time"
)

const (
	window       = 256 // snapshots that the delay is measured over
	exceeding    = 128 // one snapshot of so many may come after the delay
	warmUp       = 32  // snapshots before the delay may fall below the former one
	initialDelay = 100 * time.Millisecond
	maxSlew      = 0.05
	slewTime     = time.Second // in which a small error falls to 1/e
)

// Clock says which server time a client shows. It follows the server's clock with a delay that
// covers the jitter and the loss of snapshots, 99 % of the measured ones. The shown time never
// goes back. It runs up to 5 % faster or slower than the local time until it has the delay,
// stops at the newest snapshot, and jumps forward when it is further than maxDelay behind.
type Clock struct {
	length             time.Duration // of a tick of the server
	minDelay, maxDelay time.Duration

	start   time.Time // local time of the first snapshot; all durations are since it
	started bool

	// The server's time is in durations since the first snapshot, too.
	tick    uint32 // of the newest snapshot
	newest  time.Duration
	arrived time.Duration // local time

	samples [window]sample
	count   int           // of samples since the start or reset
	base    time.Duration // smallest offset
	delay   time.Duration // to have between base and the shown time
	former  time.Duration // delay before the reset

	now   time.Duration // local time up to which pos has run
	pos   time.Duration // server time
	shown time.Duration // newest pos that At returned
	stats ClockStats
}

type sample struct {
	offset time.Duration // local time less the server time of the snapshot
	age    time.Duration // local time less the server time of the snapshot before it
}

// ClockStats is the state of a Clock and what it has counted.
type ClockStats struct {
	// Delay is how far the shown time is behind the server time of the fastest snapshot.
	Delay time.Duration
	// Jitter is the smoothed difference of the latencies of successive snapshots, as in RFC 3550.
	Jitter time.Duration
	Resets uint64
	Held   uint64 // calls of At that stopped at the newest snapshot
}

// NewClock returns a clock for a server whose ticks last for tick, above 0 and at most 1 s. The
// delay stays from minDelay to maxDelay, well above the interval of snapshots; 0 means 500 ms.
func NewClock(tick, minDelay, maxDelay time.Duration) (*Clock, error) {
	if maxDelay == 0 {
		maxDelay = 500 * time.Millisecond
	}
	if tick <= 0 || tick > time.Second {
		return nil, fmt.Errorf("playout: the tick is %v, not above 0 and at most 1s", tick)
	}
	if minDelay < 0 || maxDelay < minDelay {
		return nil, fmt.Errorf("playout: the delay is within %v and %v", minDelay, maxDelay)
	}
	return &Clock{length: tick, minDelay: minDelay, maxDelay: maxDelay}, nil
}

// Snapshot takes the arrival of a snapshot. One that is not newer is ignored.
func (c *Clock) Snapshot(tick uint32, now time.Time) {
	if !c.started {
		c.started, c.start, c.tick = true, now, tick
		c.former = initialDelay
		c.restart(sample{age: c.length})
		c.shown = c.pos
		return
	}
	ahead := int32(tick - c.tick)
	if ahead <= 0 {
		return
	}
	at := max(now.Sub(c.start), c.arrived)
	gap, age := at-c.arrived, at-c.newest
	before := c.arrived - c.newest
	c.tick, c.arrived = tick, at
	c.newest += time.Duration(ahead) * c.length
	offset := at - c.newest
	if gap > c.maxDelay {
		c.former = c.delay
		c.stats.Resets++
		c.restart(sample{offset, offset + c.length})
		return
	}
	c.stats.Jitter += ((offset - before).Abs() - c.stats.Jitter) / 16
	c.measure(sample{offset, age})
}

func (c *Clock) restart(s sample) {
	c.count = 0
	c.measure(s)
	c.now = max(c.now, c.arrived)
	c.pos = c.now - c.base - c.delay
}

func (c *Clock) measure(s sample) {
	c.samples[c.count%window] = s
	c.count++
	n := min(c.count, window)
	var ages [window]time.Duration
	c.base = s.offset
	for i, s := range c.samples[:n] {
		ages[i] = s.age
		c.base = min(c.base, s.offset)
	}
	slices.Sort(ages[:n])
	c.delay = ages[n-1-n/exceeding] - c.base
	if c.count < warmUp {
		c.delay = max(c.delay, c.former)
	}
	c.delay = min(max(c.delay, c.minDelay), c.maxDelay)
}

// At returns the server time to show: fraction, from 0 up to but not 1, of the way from tick to
// the tick after it. It is false before the first snapshot.
func (c *Clock) At(now time.Time) (tick uint32, fraction float64, ok bool) {
	if !c.started {
		return 0, 0, false
	}
	at := max(now.Sub(c.start), c.now)
	c.run(at - c.now)
	c.now = at
	c.stats.Delay = at - c.base - c.pos
	c.shown = max(c.shown, c.pos)
	back := c.newest - c.shown // never below 0
	ticks := (back + c.length - 1) / c.length
	return c.tick - uint32(ticks), float64(ticks*c.length-back) / float64(c.length), true
}

func (c *Clock) run(d time.Duration) {
	target := min(c.now+d-c.base-c.delay, c.newest)
	behind := target - (c.pos + d)
	if behind > c.maxDelay {
		c.stats.Resets++
		c.pos = target
		return
	}
	share := min(float64(d)/float64(slewTime), 1)
	limit := maxSlew * float64(d)
	c.pos += d + time.Duration(min(max(float64(behind)*share, -limit), limit))
	if c.pos > c.newest {
		c.pos = c.newest
		c.stats.Held++
	}
}

// Stats returns the state as of the last call of At, and the counters.
func (c *Clock) Stats() ClockStats { return c.stats }
