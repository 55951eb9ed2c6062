// Package periodic calls functions at intervals.
package periodic

import (
	"context"
	"time"
)

// start is the phase of the process: its machine's others, and those of a fleet, have another.
var start = time.Now()

// Until returns the time until the next multiple of an interval since the start of the process. Whatever
// waits for a multiple of one interval shares its wake-ups.
func Until(every time.Duration) time.Duration {
	d := every - time.Since(start)%every
	if d > every {
		d -= every // Time in a test bubble is before the start.
	}
	return d
}

// Next returns a channel that receives at the next multiple of an interval.
func Next(every time.Duration) <-chan time.Time { return time.After(Until(every)) }

// Run calls f at each multiple of an interval until ctx ends. Every must be positive.
func Run(ctx context.Context, every time.Duration, f func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-Next(every):
			f()
		}
	}
}
