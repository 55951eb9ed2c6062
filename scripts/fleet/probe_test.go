//go:build lab && linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

const (
	// probeEvery is the time between two calls of each kind.
	probeEvery = 40 * time.Millisecond
	// maxSamples bounds the samples of a probe, enough for an hour.
	maxSamples    = 100_000
	maxUnanswered = 64
)

type kind uint8

const (
	allocating kind = iota
	joining
	// checking is a call that needs only the API node: the baseline of the latencies.
	checking
)

var storeCallNames = [...]string{allocating: "allocate", joining: "join"}

type sample struct {
	kind    kind
	at      time.Time // when it was made
	latency time.Duration
	relay   int // relay of the allocation; -1: none
	err     error
}

// status returns the HTTP status, 200 for success and 0 for a call without an
// answer.
func (s sample) status() int {
	var p *api.Problem
	switch {
	case s.err == nil:
		return http.StatusOK
	case errors.As(s.err, &p):
		return p.Status
	}
	return 0
}

// probe makes calls at a steady rate, whatever their result, until stop. The
// allocations never bind.
type probe struct {
	cancel context.CancelFunc
	calls  sync.WaitGroup

	mu      sync.Mutex // guards the following fields
	samples []sample
	skipped int // calls not made because maxUnanswered was reached
}

type probeConfig struct {
	balancer lab.Backend
	codes    []string // join codes, used in turn; none: no joins
	// region of the allocations; empty: no allocations.
	region           string
	callWithoutStore func() error // nil: no such calls
}

func startProbe(what probeConfig) *probe {
	ctx, cancel := context.WithCancel(context.Background())
	p := &probe{cancel: cancel}
	slots := make(chan struct{}, maxUnanswered)
	p.calls.Go(func() {
		ticker := time.NewTicker(probeEvery)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if what.region != "" {
				p.startCall(slots, allocating, func() (api.Allocation, error) {
					return what.balancer.Allocate(context.Background(), api.AllocateRequest{MaxConnections: 1, Region: what.region})
				})
			}
			if what.callWithoutStore != nil {
				p.startCall(slots, checking, func() (api.Allocation, error) { return api.Allocation{}, what.callWithoutStore() })
			}
			if len(what.codes) > 0 {
				p.startCall(slots, joining, func() (api.Allocation, error) {
					return what.balancer.Join(context.Background(), what.codes[n%len(what.codes)])
				})
			}
		}
	})
	return p
}

// startCall makes one call in the background.
func (p *probe) startCall(slots chan struct{}, k kind, call func() (api.Allocation, error)) {
	select {
	case slots <- struct{}{}:
	default:
		p.mu.Lock()
		p.skipped++
		p.mu.Unlock()
		return
	}
	p.calls.Go(func() {
		defer func() { <-slots }()
		s := sample{kind: k, at: time.Now(), relay: -1}
		var a api.Allocation
		if a, s.err = call(); s.err == nil {
			s.relay = relayOf(a, "udp")
		}
		s.latency = time.Since(s.at)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.samples) < maxSamples {
			p.samples = append(p.samples, s)
		}
	})
}

// stop waits for the calls in progress and returns all samples by time.
func (p *probe) stop() samples {
	p.cancel()
	p.calls.Wait()
	slices.SortFunc(p.samples, func(a, b sample) int { return a.at.Compare(b.at) })
	return p.samples
}

type samples []sample

func (all samples) ofKind(k kind) samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.kind != k })
}

func (all samples) exceptKind(k kind) samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.kind == k })
}

func (all samples) between(from, to time.Time) samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.at.Before(from) || s.at.After(to) })
}

func (all samples) failed() samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.err == nil })
}

func (all samples) statuses() map[int]int {
	n := make(map[int]int)
	for _, s := range all {
		n[s.status()]++
	}
	return n
}

func (all samples) latencies() []time.Duration {
	var d []time.Duration
	for _, s := range all {
		d = append(d, s.latency)
	}
	slices.Sort(d)
	return d
}

func (all samples) firstError() error {
	if f := all.failed(); len(f) > 0 {
		return f[0].err
	}
	return nil
}

// lastFailureAfter returns the time from moment to the last failed call after
// it; 0 if there was none.
func (all samples) lastFailureAfter(moment time.Time) time.Duration {
	f := all.between(moment, time.Now()).failed()
	if len(f) == 0 {
		return 0
	}
	return f[len(f)-1].at.Sub(moment)
}

const (
	// allocateCallers is the number of concurrent callers, each on a persistent
	// connection.
	allocateCallers = 8
	// maxAllocations bounds the allocations of the measurement, which all exist
	// for 10 s.
	maxAllocations = 200_000

	allocateRate   = 2000
	allocateWithin = 20 * time.Millisecond
)

// measureAllocateRate measures allocations per second through the API, the
// store and a relay, with the callers on the same machine.
func (b *testbed) measureAllocateRate(t *testing.T) {
	d := newBalancer(b.net.players, allocateCallers, b.balancer.stalls)
	defer d.close()
	ctx, cancel := context.WithTimeout(t.Context(), *allocateFor)
	defer cancel()
	took := make([][]time.Duration, allocateCallers)
	errs := make([]error, allocateCallers)
	begin := time.Now()
	var tasks sync.WaitGroup
	for w := range allocateCallers {
		tasks.Go(func() {
			for ctx.Err() == nil && len(took[w]) < maxAllocations/allocateCallers && errs[w] == nil {
				at := time.Now()
				_, errs[w] = d.Allocate(context.Background(), api.AllocateRequest{MaxConnections: 1})
				took[w] = append(took[w], time.Since(at))
			}
		})
	}
	tasks.Wait()
	lasted := time.Since(begin)
	all := slices.Concat(took...)
	slices.Sort(all)
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	rate, p99 := float64(len(all))/lasted.Seconds(), lab.Quantile(all, 0.99)
	b.table.checkTimeRow(t, "allocations per second, 8 callers", fmt.Sprintf("%.0f", rate), "2,000", rate >= allocateRate)
	b.table.checkTimeRow(t, "... p50, p99, at most", fmt.Sprintf("%s, %s, %s", tenMicros(lab.Quantile(all, 0.5)), tenMicros(p99),
		tenMicros(lab.Quantile(all, 1))),
		"p99 20 ms", p99 <= allocateWithin)
}

func tenMicros(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }
