package netcode

import "time"

// clock is the driver's own time: that of the caller, which never goes back.
type clock struct {
	started bool
	last    time.Time     // the caller's clock at the last Update
	behind  time.Duration // by how much the caller's clock went back, unless it returned
	elapsed time.Duration
}

// maxStep bounds by how much one Update moves the clock; more times out all.
const maxStep = 24 * time.Hour

func (c *clock) advance(now time.Time) {
	step := now.Sub(c.last)
	switch {
	case !c.started:
		c.started, step = true, 0
	case step < 0:
		c.behind -= step
		step = 0
	case step >= c.behind: // The clock has returned: what it went back does not count.
		step -= c.behind
		c.behind = 0
	}
	c.elapsed += min(step, maxStep)
	c.last = now
}

func (c *clock) millis() uint32 { return millisOf(c.elapsed) }

func millisOf(t time.Duration) uint32 { return uint32(t/time.Millisecond) + 1 }
