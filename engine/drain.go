package engine

import (
	"context"
	"sync/atomic"
	"time"
)

// DrainConfig says how a drain ends.
type DrainConfig struct {
	// Deadline is how long the drain may take. Zero: until the threshold.
	Deadline time.Duration
	// Threshold ends the drain when no more allocations than that are left.
	Threshold int
}

// drain is what control knows of a drain. It belongs to control but for active.
type drain struct {
	active    atomic.Bool
	until     int64 // ms; 0: no deadline
	threshold int
	finish    func() // ends Run
}

// Drain lets the relay run dry: it takes no more allocations for hosts, still
// takes players for hosts that live, and relays as before. When no more than
// cfg.Threshold allocations are left, those included that may yet come back after
// a restart, or at the deadline, Run returns nil. A
// second Drain replaces what the first one said. Error: alloc.ErrUnavailable
// when the relay does not run.
func (s *Server) Drain(ctx context.Context, cfg DrainConfig) error {
	return s.ask(ctx, func(c *control) {
		c.drain.until = 0
		if cfg.Deadline > 0 {
			c.drain.until = c.shared.clock() + cfg.Deadline.Milliseconds()
		}
		c.drain.threshold = cfg.Threshold
		c.drain.active.Store(true)
	})
}

// Undrain lets the relay take new allocations again. Error: as for Drain.
func (s *Server) Undrain(ctx context.Context) error {
	return s.ask(ctx, func(c *control) { c.drain.active.Store(false) })
}

// Draining reports whether the relay runs dry. It may be called at any time.
func (s *Server) Draining() bool { return s.control.drain.active.Load() }

// drainSome ends the run when the drain is over.
func (c *control) drainSome(now int64) {
	d := &c.drain
	if !d.active.Load() {
		return
	}
	left, _, _ := c.shared.table.Counts()
	if c.shared.recovering(now) {
		left += c.recovery.missing // They may yet come back.
	}
	if left <= d.threshold || d.until != 0 && now >= d.until {
		d.finish()
	}
}
