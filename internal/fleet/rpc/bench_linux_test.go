package rpc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkSustained starts calls at a constant rate, whether or not earlier calls have
// ended. It reports latencies from the scheduled start, and the processor time of both
// sides and the fake relay. One iteration is one call: -benchtime 20000x takes 10 s at
// 2,000/s.
func BenchmarkSustained(b *testing.B) {
	for _, http := range []int{1, 2} {
		b.Run(fmt.Sprintf("http%d/2000", http), func(b *testing.B) { sustain(b, 2000, http == 2, nil) })
	}
}

// BenchmarkStall is BenchmarkSustained with a relay that stalls for 500 ms in the
// middle, and callers with a deadline of 250 ms. It reports the calls that fail beyond
// the 500 that must.
func BenchmarkStall(b *testing.B) {
	const stalled = 1000 // calls, at 2,000/s
	for _, http := range []int{1, 2} {
		b.Run(fmt.Sprintf("http%d", http), func(b *testing.B) {
			var still atomic.Bool
			gate := make(chan struct{})
			sustain(b, 2000, http == 2, &stall{
				before: func(context.Context) {
					if still.Load() {
						<-gate
					}
				},
				due: func(i int) {
					switch i {
					case b.N / 3:
						still.Store(true)
					case b.N/3 + stalled:
						still.Store(false)
						close(gate)
					}
				},
				within: 250 * time.Millisecond,
			})
		})
	}
}

type stall struct {
	before func(context.Context) // of the relay
	due    func(i int)           // is called at the start of each call
	within time.Duration         // what callers wait
}

func sustain(b *testing.B, rate int, h2 bool, wrong *stall) {
	if wrong == nil {
		wrong = &stall{before: func(context.Context) {}, due: func(int) {}, within: defaultDeadline}
	} else if b.N < 3000 {
		return // the first call of a benchmark finds out how long it takes
	}
	x := newBenchCluster(b, h2)
	x.relay.Before = wrong.before
	remote := x.remote()
	took := make([]time.Duration, b.N)
	var all sync.WaitGroup
	var failed atomic.Int64
	b.ResetTimer()
	used, begin := processorTime(b), time.Now()
	for i := range took {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		wrong.due(i)
		all.Go(func() {
			ctx, cancel := context.WithTimeout(b.Context(), wrong.within)
			defer cancel()
			if _, err := remote.ReserveHost(ctx, testHost()); err != nil {
				failed.Add(1)
			}
			took[i] = time.Since(due)
		})
	}
	all.Wait()
	wall := time.Since(begin)
	used = processorTime(b) - used
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) }
	b.ReportMetric(at(0.5), "p50-µs")
	b.ReportMetric(at(0.99), "p99-µs")
	b.ReportMetric(100*used.Seconds()/wall.Seconds(), "%cpu")
	b.ReportMetric(float64(failed.Load()), "failed")
	b.ReportMetric(float64(x.dialer.Stats().Dialed), "dialed")
	b.ReportMetric(0, "ns/op")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
