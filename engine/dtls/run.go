package dtls

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// maxTick is how far the coarse clock of sessions is behind.
const maxTick = 250 * time.Millisecond

// sweepTicks is how often the table is swept, in ticks.
const sweepTicks = 4

// Run serves handshakes until ctx ends, see [engine.Records]. It fails only when
// it is called a second time.
func (r *Records) Run(ctx context.Context, send func(to endpoint.Endpoint, pkt []byte)) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("dtls: Run was called before")
	}
	var wg sync.WaitGroup
	for _, w := range r.workers {
		wg.Go(func() { w.run(ctx, send) })
	}
	r.control(ctx)
	wg.Wait()
	return nil
}

// control moves the clock and ends idle sessions. Time in which the process stood
// still hardly counts: the clock moves by a few ticks at most.
func (r *Records) control(ctx context.Context) {
	tick := min(maxTick, r.conf.Idle/8)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := r.now()
	for n := 1; ; n++ {
		now := r.now()
		r.clock.Add(min(now-last, int64(sweepTicks*tick)))
		last = now
		if n%sweepTicks == 0 {
			r.sweep()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Records) sweep() {
	r.conf.Sessions.Touch()
	r.forgetDormant()
	if r.table.sessions.Load() == 0 {
		return
	}
	idle := r.table.sweep(r.clock.Load() - int64(r.conf.Idle))
	r.counters[Idle].Add(uint64(idle))
}
