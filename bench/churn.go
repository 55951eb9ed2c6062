package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

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
	lag    *hdrhistogram.Histogram
	hist   map[string]*hdrhistogram.Histogram
	failed map[string]uint64
}

// churn returns nil for other shapes.
func (b *testbed) churn(ctx context.Context, cfg *Config, lasts time.Duration) *Churn {
	c, ok := b.dialect.(benchrig.Churner)
	if cfg.Shape != shapeChurn || !ok {
		return nil
	}
	s := &sessions{lag: newHistogram(3), hist: map[string]*hdrhistogram.Histogram{}, failed: map[string]uint64{}}
	begin := time.Now()
	var wg sync.WaitGroup
	for n := int64(0); ; n++ {
		due := dueAt(begin, n, cfg.SessionRate)
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
			s.play(ctx, c, due, cfg.SessionLength)
		})
	}
	lasts = min(lasts, time.Since(begin)) // less if ctx has ended
	wg.Wait()
	return s.report(lasts)
}

func sleepUntil(ctx context.Context, due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err() == nil
}

func (s *sessions) play(ctx context.Context, c benchrig.Churner, due time.Time, play time.Duration) {
	s.mu.Lock()
	s.churn.Started++
	record(s.lag, int64(time.Since(due)))
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
	s.churn.Lag = newLatency(s.lag, 0, false)
	for _, name := range s.order {
		s.churn.Steps = append(s.churn.Steps, step{Name: name, Failed: s.failed[name], Latency: newLatency(s.hist[name], s.failed[name], false)})
	}
	return &s.churn
}
