// Package periodic calls functions at intervals.
package periodic

import (
	"context"
	"time"
)

// Run calls f after each interval until ctx ends. Every must be positive.
func Run(ctx context.Context, every time.Duration, f func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f()
		}
	}
}
