package app

import (
	"context"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

// bandwidth turns what projects have relayed since the start into bytes per
// second. It belongs to one goroutine.
type bandwidth struct {
	at    time.Time
	bytes map[string]uint64 // by project, at that time; nil: never asked
}

// measure returns the bytes per second of each project since the last call, and
// nothing at the first one.
func (b *bandwidth) measure(all []engine.Usage, now time.Time) map[string]int64 {
	bytes := make(map[string]uint64)
	for i := range all {
		if project := all[i].Name.Project; project != "" {
			bytes[project] += all[i].Bytes
		}
	}
	perSecond := make(map[string]int64)
	if d := now.Sub(b.at).Seconds(); b.bytes != nil && d > 0 {
		for project, n := range bytes {
			perSecond[project] = int64(float64(n-min(n, b.bytes[project])) / d)
		}
	}
	b.at, b.bytes = now, bytes
	return perSecond
}

// rates are what projects relay per second, where the relay is in this process.
type rates struct {
	mu  sync.Mutex // guards now
	now map[string]int64
}

// of returns the bytes per second of a project.
func (r *rates) of(project string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now[project]
}

// run asks the relay every 2 s, as relays of a fleet report, until ctx ends, while
// somebody wants to know.
func (r *rates) run(ctx context.Context, wanted func() bool, usage func(context.Context, ...string) ([]engine.Usage, error)) {
	ticker := time.NewTicker(leaseEvery)
	defer ticker.Stop()
	var b bandwidth
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !wanted() {
			b = bandwidth{}
			continue
		}
		all, err := usage(ctx)
		if err != nil {
			continue // The relay does not run yet, or no more.
		}
		now := b.measure(all, time.Now())
		r.mu.Lock()
		r.now = now
		r.mu.Unlock()
	}
}
