package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Calls are requests of one kind to the control plane. Counts are of those that
// were due in the measured interval.
type Calls struct {
	Offered  uint64 `json:"offered"` // due
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	// AnsweredRate is Answered per second.
	AnsweredRate float64 `json:"answeredRate"`
	// Latency is from the due time to the answer.
	Latency Latency `json:"latency"`
	Lag     Latency `json:"lag"` // from the due time until it was sent
}

// callAtRate lets workers call one after the other from one time to another, at a rate per second.
// Call has the time at which it was due, and that at which a worker was ready for it.
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
				due := dueAt(from, next.Add(1)-1, rate)
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
