package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/benchrig"
)

// allocationLoad requests allocations from an API during the run. mu guards all fields
// below it.
type allocationLoad struct {
	reserver      benchrig.Reserver // nil: there is nothing to do
	workers       int
	rate          float64 // per second, 0: as many as are answered
	from          time.Time
	end           time.Time     // Run moves it forward when ctx ends, after the workers
	answerTimeout time.Duration // after end, for answers

	mu      sync.Mutex
	calls   Calls
	latency *hdrhistogram.Histogram
	errors  map[string]uint64
}

func (b *testbed) newAllocationLoad(cfg *Config, from, end time.Time) *allocationLoad {
	a := &allocationLoad{
		workers: cfg.Control.AllocateWorkers, rate: cfg.Control.AllocateRate, from: from, end: end, answerTimeout: cfg.Drain,
		latency: newHistogram(3), errors: map[string]uint64{},
	}
	if a.workers > 0 {
		a.reserver, _ = b.dialect.(benchrig.Reserver)
	}
	return a
}

func (a *allocationLoad) Run(ctx context.Context) {
	if a.reserver == nil {
		return
	}
	callAtRate(ctx, a.workers, a.rate, a.from, a.end, func(due, begin time.Time) {
		if due.After(begin) {
			due = time.Now() // A late wake-up is not the server's delay.
		}
		a.call(ctx, due)
	})
	if now := time.Now(); ctx.Err() != nil && now.Before(a.end) {
		a.end = now
	}
}

// callAtRate lets workers call one after the other from one time to another, at a rate per second
// or, if that is 0, as fast as calls return. Call has the time at which it was due, and that at
// which a worker was ready for it.
func callAtRate(ctx context.Context, workers int, rate float64, from, end time.Time, call func(due, begin time.Time)) {
	if !sleepUntil(ctx, from) {
		return
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				begin := time.Now()
				due := begin
				if rate > 0 {
					due = dueAt(from, next.Add(1)-1, rate)
				}
				if !due.Before(end) || !begin.Before(end) || !sleepUntil(ctx, due) {
					return
				}
				call(due, begin)
			}
		})
	}
	all.Wait()
}

func dueAt(from time.Time, n int64, rate float64) time.Time {
	return from.Add(time.Duration(float64(n) / rate * 1e9))
}

// call makes one call. A call that the end of ctx interrupts does not count.
func (a *allocationLoad) call(ctx context.Context, due time.Time) {
	bounded, cancel := context.WithDeadline(ctx, a.end.Add(a.answerTimeout))
	defer cancel()
	err := a.reserver.Reserve(bounded)
	took := time.Since(due)
	if err != nil && ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls.Sent++
	if err == nil {
		a.calls.Answered++
		record(a.latency, int64(took))
		return
	}
	a.calls.Refused++
	a.errors[describeCallError(err)]++
}

func describeCallError(err error) string {
	if p := (*api.Problem)(nil); errors.As(err, &p) {
		return fmt.Sprintf("allocate refused with status %d", p.Status)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "allocate not answered in time"
	}
	return "allocate failed"
}

// report returns the counts and latency of the calls, once Run has ended, and adds
// the failures to the errors of r. It is nil if there was nothing to do.
func (a *allocationLoad) report(r *Result) *Calls {
	if a.reserver == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, n := range a.errors {
		r.Errors[name] += n
	}
	lasted := max(a.end.Sub(a.from), 0)
	a.calls.Offered = max(uint64(math.Ceil(lasted.Seconds()*a.rate-1e-6)), a.calls.Sent)
	a.calls.Latency = newLatency(a.latency, missing(a.calls.Answered, a.calls.Offered), true)
	return a.calls.setRate(lasted)
}
