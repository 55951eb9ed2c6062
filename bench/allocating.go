package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/alloc/api"
)

// allocating asks an API for allocations while datagrams are forwarded. The
// lock guards all fields below it.
type allocating struct {
	reserver Reserver // nil: there is nothing to do
	workers  int
	rate     float64 // per second, 0: as many as are answered
	from     time.Time
	end      time.Time     // Run brings it forward when ctx ends, after the workers
	patience time.Duration // after end, for answers
	next     atomic.Int64

	mu      sync.Mutex
	calls   Calls
	latency *hdrhistogram.Histogram
	errors  map[string]uint64
}

// newAllocating prepares the calls that cfg asks for between two times.
func (b *bed) newAllocating(cfg *Config, from, end time.Time) *allocating {
	a := &allocating{
		workers: cfg.AllocateWorkers, rate: cfg.AllocateRate, from: from, end: end, patience: cfg.Drain,
		latency: newHistogram(3), errors: map[string]uint64{},
	}
	if a.workers > 0 {
		a.reserver, _ = b.dialect.(Reserver)
	}
	return a
}

// Run makes the calls. It ends when all are answered, or with ctx.
func (a *allocating) Run(ctx context.Context) {
	if a.reserver == nil {
		return
	}
	var workers sync.WaitGroup
	if pause(ctx, a.from) {
		for range a.workers {
			workers.Go(func() { a.work(ctx) })
		}
	}
	workers.Wait()
	if now := time.Now(); ctx.Err() != nil && now.Before(a.end) {
		a.end = now
	}
}

// pause returns false when ctx ends before the time.
func pause(ctx context.Context, until time.Time) bool {
	if wait := time.Until(until); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err() == nil
}

// work makes one call after the other.
func (a *allocating) work(ctx context.Context) {
	for {
		begin := time.Now()
		due := begin
		if a.rate > 0 {
			due = a.due(a.next.Add(1) - 1)
		}
		if !due.Before(a.end) || !begin.Before(a.end) || !pause(ctx, due) {
			return
		}
		if due.After(begin) {
			due = time.Now()
		}
		a.call(ctx, due)
	}
}

// due is when call n is due.
func (a *allocating) due(n int64) time.Time {
	return a.from.Add(time.Duration(float64(n) / a.rate * 1e9))
}

// before counts the calls that are due before a time.
func (a *allocating) before(t time.Time) uint64 {
	n := max(int64(t.Sub(a.from).Seconds()*a.rate)-1, 0)
	for a.due(n).Before(t) {
		n++
	}
	return uint64(n)
}

// call makes one call. What the end of ctx cuts short was never made.
func (a *allocating) call(ctx context.Context, due time.Time) {
	bounded, cancel := context.WithDeadline(ctx, a.end.Add(a.patience))
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
	a.errors[explainCall(err)]++
}

// explainCall names the failure of a call for Result.Errors.
func explainCall(err error) string {
	if p := (*api.Problem)(nil); errors.As(err, &p) {
		return fmt.Sprintf("allocate refused with status %d", p.Status)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "allocate not answered in time"
	}
	return "allocate failed"
}

// report is what became of the calls, once Run has ended; refusals are added to
// the errors of r. It is nil if there was nothing to do.
func (a *allocating) report(r *Result) *Calls {
	if a.reserver == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, n := range a.errors {
		r.Errors[name] += n
	}
	lasted := max(a.end.Sub(a.from), 0)
	a.calls.Offered = a.calls.Sent
	if a.rate > 0 {
		a.calls.Offered = max(a.before(a.from.Add(lasted)), a.calls.Sent)
	}
	a.calls.Latency = summarise(a.latency, true)
	return a.calls.finish(lasted)
}
