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
	"github.com/ferryrelay/ferry/internal/benchrig"
)

const (
	// bindPatience is how long an endpoint waits for the answer to a repeated
	// handshake before it may send the next, in ns. Answers carry nothing by
	// which they could be told apart, so that only one is under way.
	bindPatience = int64(500 * time.Millisecond)
	// bindSearch bounds the endpoints that are looked at for one that is free.
	bindSearch = 64
)

// turns gives repeated handshakes their times: number n is due at
// start + n/rate.
type turns struct {
	start int64
	rate  float64 // per second; 0 = none
	next  int64
}

// due returns the time of the next one.
func (t *turns) due() int64 { return t.start + int64(float64(t.next)/t.rate*1e9) }

// binds are the repeated handshakes of a run. The generator's goroutine owns
// them.
type binds struct {
	turns
	from     int64       // those due from here on are counted in calls
	under    []handshake // what is under way, by endpoint
	cursor   int         // endpoint whose turn it is
	waitsFor int         // under way in all
	calls    Calls
	latency  *hdrhistogram.Histogram
}

// handshake is a BIND that waits for its answer; zero is none.
type handshake struct {
	due, sent int64 // ns of sock.Now; latency counts from the one, patience from the other
}

func newBinds(start, from int64, rate float64, endpoints int) binds {
	b := binds{turns: turns{start: start, rate: rate}, from: from}
	if rate > 0 {
		b.under, b.latency = make([]handshake, endpoints), newHistogram(3)
	}
	return b
}

// free returns the next endpoint with nothing under way, and gives up what has
// been for too long; false if all that it looked at are waiting.
func (b *binds) free(now int64) (ep int, ok bool) {
	for range min(bindSearch, len(b.under)) {
		ep = b.cursor
		if b.cursor++; b.cursor == len(b.under) {
			b.cursor = 0
		}
		if u := b.under[ep]; u.sent != 0 && now-u.sent > bindPatience {
			b.under[ep] = handshake{}
			b.waitsFor--
		}
		if b.under[ep].sent == 0 {
			return ep, true
		}
	}
	return 0, false
}

// sent notes a handshake of ep that is under way.
func (b *binds) sent(ep int, due, now int64) {
	b.under[ep] = handshake{due, now}
	b.waitsFor++
	if due >= b.from {
		b.calls.Sent++
	}
}

// answered notes an answer to ep, which may be one that was given up.
func (b *binds) answered(ep int, now int64) {
	if ep < 0 || ep >= len(b.under) || b.under[ep].sent == 0 {
		return
	}
	due := b.under[ep].due
	b.under[ep] = handshake{}
	b.waitsFor--
	if due >= b.from {
		b.calls.Answered++
		record(b.latency, now-due)
	}
}

// report is what became of those that were due from one time to another.
func (b *binds) report(from, to int64) *Calls {
	c := b.calls
	c.Latency = summarise(b.latency, true)
	return c.finish(time.Duration(to - from))
}

// sendBinds queues the handshakes that are due.
func (g *generator) sendBinds(now int64) int {
	b := &g.binds
	for n := range burst {
		due := b.due()
		if due > now || due >= g.end {
			return n
		}
		b.next++
		if due >= b.from {
			b.calls.Offered++
		}
		ep, ok := b.free(now)
		if !ok {
			continue
		}
		if pkt := g.rig.Endpoints[ep].Rebind; pkt != nil {
			g.add(ep, pkt)
			g.count.bindsSent++
			b.sent(ep, due, now)
		}
	}
	return burst
}

// maxSessions bounds the sessions of a churn that are under way.
const maxSessions = 2000

// sessions counts what became of the sessions of a churn. The lock guards all
// that is not atomic.
type sessions struct {
	running atomic.Int64

	mu     sync.Mutex
	churn  Churn
	order  []string
	hist   map[string]*hdrhistogram.Histogram
	failed map[string]uint64
}

// churn begins sessions at the configured rate for so long, waits until they
// have ended, and reports. It returns nil for other shapes.
func (b *bed) churn(ctx context.Context, cfg *Config, lasts time.Duration) *Churn {
	c, ok := b.dialect.(benchrig.Churner)
	if cfg.Shape != ShapeChurn || !ok {
		return nil
	}
	s := &sessions{hist: map[string]*hdrhistogram.Histogram{}, failed: map[string]uint64{}}
	begin := time.Now()
	var wg sync.WaitGroup
	for n := 0; ; n++ {
		due := begin.Add(time.Duration(float64(n) / cfg.ChurnRate * 1e9))
		if due.Sub(begin) >= lasts || !sleepUntil(ctx, due) {
			break
		}
		if s.running.Add(1) > maxSessions {
			s.running.Add(-1)
			s.skip()
			continue
		}
		wg.Go(func() {
			defer s.running.Add(-1)
			s.play(ctx, c, cfg.ChurnPlay)
		})
	}
	wg.Wait()
	return s.report(time.Since(begin))
}

// sleepUntil returns false when ctx ends first. Sessions need no precision
// below a millisecond.
func sleepUntil(ctx context.Context, due time.Time) bool {
	wait := time.Until(due)
	if wait < time.Millisecond {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

func (s *sessions) skip() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.churn.Skipped++
}

// play plays one session.
func (s *sessions) play(ctx context.Context, c benchrig.Churner, play time.Duration) {
	s.mu.Lock()
	s.churn.Started++
	s.mu.Unlock()
	err := c.Session(ctx, play, s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.churn.Finished++
		return
	}
	if ctx.Err() != nil {
		return // The run was interrupted.
	}
	s.churn.Failed++
	step := "other"
	if failure := (*benchrig.StepError)(nil); errors.As(err, &failure) {
		step = failure.Step
	}
	s.know(step)
	s.failed[step]++
}

// know makes a step part of the report. The lock is held.
func (s *sessions) know(step string) *hdrhistogram.Histogram {
	h := s.hist[step]
	if h == nil {
		h = newHistogram(3)
		s.hist[step] = h
		s.order = append(s.order, step)
	}
	return h
}

func (s *sessions) done(step string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record(s.know(step), int64(took))
}

func (s *sessions) report(took time.Duration) *Churn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.churn.Rate = float64(s.churn.Finished) / took.Seconds()
	for _, name := range s.order {
		s.churn.Steps = append(s.churn.Steps, Step{Name: name, Failed: s.failed[name], Latency: summarise(s.hist[name], false)})
	}
	return &s.churn
}

// allocating asks an API for allocations while datagrams are forwarded. The
// lock guards all fields below it.
type allocating struct {
	reserver benchrig.Reserver // nil: there is nothing to do
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
		a.reserver, _ = b.dialect.(benchrig.Reserver)
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
