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

const (
	// bindTimeout is the time, in ns, after which an endpoint repeats a handshake
	// without an answer. Answers do not identify their handshake, so that an endpoint
	// has only one in flight.
	bindTimeout = int64(500 * time.Millisecond)
	// bindCandidates bounds the endpoints that takeEndpoint examines.
	bindCandidates = 64
)

// rateSchedule is the schedule of repeated handshakes: number n is due at
// start + n/rate.
type rateSchedule struct {
	start int64
	rate  float64 // per second; 0 = none
	next  int64
}

func (t *rateSchedule) due() int64 { return t.start + int64(float64(t.next)/t.rate*1e9) }

// binds has the repeated handshakes of a run. The generator's goroutine owns it.
type binds struct {
	rateSchedule
	from         int64       // those due from here on are counted in calls
	pending      []handshake // by endpoint
	cursor       int         // the next endpoint
	pendingCount int         // in flight
	calls        Calls
	latency      *hdrhistogram.Histogram
}

// handshake is a BIND that waits for its answer; zero is none.
type handshake struct {
	due, sent int64 // ns of sock.Now; latency counts from due, the time-out from sent
}

func newBinds(start, from int64, rate float64, endpoints int) binds {
	b := binds{rateSchedule: rateSchedule{start: start, rate: rate}, from: from}
	if rate > 0 {
		b.pending, b.latency = make([]handshake, endpoints), newHistogram(3)
	}
	return b
}

// takeEndpoint returns the next endpoint without a pending handshake, and drops those
// that timed out; false if all that it examined are waiting.
func (b *binds) takeEndpoint(now int64) (ep int, ok bool) {
	for range min(bindCandidates, len(b.pending)) {
		ep = b.cursor
		if b.cursor++; b.cursor == len(b.pending) {
			b.cursor = 0
		}
		if u := b.pending[ep]; u.sent != 0 && now-u.sent > bindTimeout {
			b.pending[ep] = handshake{}
			b.pendingCount--
		}
		if b.pending[ep].sent == 0 {
			return ep, true
		}
	}
	return 0, false
}

// recordSent records a handshake of ep.
func (b *binds) recordSent(ep int, due, now int64) {
	b.pending[ep] = handshake{due, now}
	b.pendingCount++
	if due >= b.from {
		b.calls.Sent++
	}
}

// recordAnswer records an answer to ep, which may answer a handshake that timed out.
func (b *binds) recordAnswer(ep int, now int64) {
	if ep < 0 || ep >= len(b.pending) || b.pending[ep].sent == 0 {
		return
	}
	due := b.pending[ep].due
	b.pending[ep] = handshake{}
	b.pendingCount--
	if due >= b.from {
		b.calls.Answered++
		record(b.latency, now-due)
	}
}

// report returns the counts and latency of the handshakes due between two times.
func (b *binds) report(from, to int64) *Calls {
	c := b.calls
	c.Latency = newLatency(b.latency, missing(c.Answered, c.Offered), true)
	return c.setRate(time.Duration(to - from))
}

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
		ep, ok := b.takeEndpoint(now)
		if !ok {
			continue
		}
		if pkt := g.rig.Endpoints[ep].Rebind; pkt != nil {
			g.add(ep, pkt)
			g.count.bindsSent++
			b.recordSent(ep, due, now)
		}
	}
	return burst
}

// maxSessions bounds the concurrent sessions of the shape churn.
const maxSessions = 2000

// sessions counts the sessions of the shape churn by outcome. mu guards all fields
// below it.
type sessions struct {
	running atomic.Int64

	mu     sync.Mutex
	churn  Churn
	ends   []time.Time // of the finished ones
	order  []string
	hist   map[string]*hdrhistogram.Histogram
	failed map[string]uint64
}

// churn starts sessions at the configured rate for the time lasts, waits until they
// have ended, and reports. It returns nil for other shapes.
func (b *testbed) churn(ctx context.Context, cfg *Config, lasts time.Duration) *Churn {
	c, ok := b.dialect.(benchrig.Churner)
	if cfg.Shape != ShapeChurn || !ok {
		return nil
	}
	s := &sessions{hist: map[string]*hdrhistogram.Histogram{}, failed: map[string]uint64{}}
	begin := time.Now()
	var wg sync.WaitGroup
	for n := int64(0); ; n++ {
		due := dueAt(begin, n, cfg.ChurnRate)
		if due.Sub(begin) >= lasts || !sleepUntil(ctx, due) {
			break
		}
		if s.running.Add(1) > maxSessions {
			s.running.Add(-1)
			s.mu.Lock()
			s.churn.Skipped++
			s.mu.Unlock()
			continue
		}
		wg.Go(func() {
			defer s.running.Add(-1)
			s.play(ctx, c, cfg.ChurnPlay)
		})
	}
	lasts = min(lasts, time.Since(begin)) // less if ctx has ended
	wg.Wait()
	return s.report(lasts)
}

// sleepUntil returns true at the time due, or false when ctx ends first.
func sleepUntil(ctx context.Context, due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err() == nil
}

func (s *sessions) play(ctx context.Context, c benchrig.Churner, play time.Duration) {
	s.mu.Lock()
	s.churn.Started++
	s.mu.Unlock()
	err := c.Session(ctx, play, s.recordStep)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.churn.Finished++
		s.ends = append(s.ends, time.Now())
		return
	}
	if ctx.Err() != nil {
		return // interrupted, not failed
	}
	s.churn.Failed++
	step := "other"
	if failure := (*benchrig.StepError)(nil); errors.As(err, &failure) {
		step = failure.Step
	}
	s.histogram(step)
	s.failed[step]++
}

// histogram returns the histogram of a step, which becomes part of the report. The
// caller holds mu.
func (s *sessions) histogram(step string) *hdrhistogram.Histogram {
	h := s.hist[step]
	if h == nil {
		h = newHistogram(3)
		s.hist[step] = h
		s.order = append(s.order, step)
	}
	return h
}

func (s *sessions) recordStep(step string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record(s.histogram(step), int64(took))
}

// report returns the result of sessions that began for the time lasts. Their rate is that of the
// ends in as long a time from the first one: the time until then and that of the last sessions
// are of the sessions' length, which is no lack of speed.
func (s *sessions) report(lasts time.Duration) *Churn {
	s.mu.Lock()
	defer s.mu.Unlock()
	inTime := 0
	for _, end := range s.ends {
		if end.Sub(s.ends[0]) < lasts {
			inTime++
		}
	}
	if inTime > 0 {
		s.churn.Rate = float64(inTime) / lasts.Seconds()
	}
	for _, name := range s.order {
		s.churn.Steps = append(s.churn.Steps, Step{Name: name, Failed: s.failed[name], Latency: newLatency(s.hist[name], s.failed[name], false)})
	}
	return &s.churn
}

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

// newAllocationLoad returns the calls of cfg between two times.
func (b *testbed) newAllocationLoad(cfg *Config, from, end time.Time) *allocationLoad {
	a := &allocationLoad{
		workers: cfg.AllocateWorkers, rate: cfg.AllocateRate, from: from, end: end, answerTimeout: cfg.Drain,
		latency: newHistogram(3), errors: map[string]uint64{},
	}
	if a.workers > 0 {
		a.reserver, _ = b.dialect.(benchrig.Reserver)
	}
	return a
}

// Run makes the calls. It ends when all are answered, or with ctx.
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

// dueAt returns the time at which call n of a rate per second is due.
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

// describeCallError returns the name of a failed call in Result.Errors.
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
