package playout

import "time"

// Target returns the delay that the clock approaches.
func (c *Clock) Target() time.Duration { return c.delay }

// Slack returns the smoothed number of ticks for which commands wait, and its mean deviation.
func (b *CommandBuffer) Slack() (mean, deviation float64) { return b.slack, b.deviation }
