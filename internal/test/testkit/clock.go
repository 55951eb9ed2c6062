package testkit

import (
	"sync/atomic"
	"time"
)

// Clock is a clock that a test advances, and that stands still otherwise. Its methods may be called from several
// goroutines.
type Clock struct {
	start time.Time
	ahead atomic.Int64 // ns
}

// NewClock returns a clock that stands at a time.
func NewClock(at time.Time) *Clock { return &Clock{start: at} }

// Now returns the clock's time.
func (c *Clock) Now() time.Time { return c.start.Add(time.Duration(c.ahead.Load())) }

// Advance advances the clock, or sets it back by a negative duration.
func (c *Clock) Advance(d time.Duration) { c.ahead.Add(int64(d)) }
