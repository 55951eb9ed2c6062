package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

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
	c, ok := b.dialect.(Churner)
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
func (s *sessions) play(ctx context.Context, c Churner, play time.Duration) {
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
	if failure := (*StepError)(nil); errors.As(err, &failure) {
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

// StepError says in which step a session failed.
type StepError struct {
	Step string
	Err  error
}

// Error names the step.
func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *StepError) Unwrap() error { return e.Err }
