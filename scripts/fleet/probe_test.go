//go:build lab && linux

package fleet

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

const (
	// probeEvery is the time between two calls of each kind.
	probeEvery = 40 * time.Millisecond
	// maxSamples bounds the samples of a probe: an hour of calls.
	maxSamples = 100_000
	// maxUnanswered bounds the calls of a probe that wait for an answer.
	maxUnanswered = 64
)

// kind is which call of the API a sample is of.
type kind uint8

const (
	allocating kind = iota
	joining
	// looking is a call that needs nothing but the API node and this machine's
	// attention: what it takes, any call takes.
	looking
)

// needStore are the calls that do, and their names for people.
var needStore = [...]string{allocating: "allocate", joining: "join"}

// sample is one call of a probe.
type sample struct {
	kind  kind
	at    time.Time // when it was made
	took  time.Duration
	relay int // where the answer leads; -1: nowhere
	err   error
}

// status is the HTTP status of a refusal, 0 where there was no answer and 200
// for all that is well.
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

// probe makes calls at a steady rate, independent of their outcome, until
// it is stopped. Its hosts and joiners never bind.
type probe struct {
	stopped context.CancelFunc
	calls   sync.WaitGroup

	mu      sync.Mutex // guards the following fields
	samples []sample
	skipped int // calls that were not made because too many waited
}

// probed says what a probe calls.
type probed struct {
	balancer lab.Backend
	codes    []string // that it joins in turn; none: no joins
	// region is where it allocates hosts; empty: no allocations.
	region string
	look   func() error // makes a call that needs no store; nil: no such calls
}

func startProbe(what probed) *probe {
	ctx, cancel := context.WithCancel(context.Background())
	p := &probe{stopped: cancel}
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
				p.try(slots, allocating, func() (api.Allocation, error) {
					return what.balancer.Allocate(context.Background(), api.AllocateRequest{MaxConnections: 1, Region: what.region})
				})
			}
			if what.look != nil {
				p.try(slots, looking, func() (api.Allocation, error) { return api.Allocation{}, what.look() })
			}
			if len(what.codes) > 0 {
				p.try(slots, joining, func() (api.Allocation, error) {
					return what.balancer.Join(context.Background(), what.codes[n%len(what.codes)])
				})
			}
		}
	})
	return p
}

// try makes one call in the background.
func (p *probe) try(slots chan struct{}, k kind, call func() (api.Allocation, error)) {
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
		s.took = time.Since(s.at)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.samples) < maxSamples {
			p.samples = append(p.samples, s)
		}
	})
}

// stop waits for the calls under way, and returns all in the order in which
// they were made.
func (p *probe) stop() samples {
	p.stopped()
	p.calls.Wait()
	slices.SortFunc(p.samples, func(a, b sample) int { return a.at.Compare(b.at) })
	return p.samples
}

// samples are calls in the order in which they were made.
type samples []sample

// of returns those of a kind.
func (all samples) of(k kind) samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.kind != k })
}

// without returns those of all kinds but one.
func (all samples) without(k kind) samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.kind == k })
}

// between returns those that were made in a time.
func (all samples) between(from, to time.Time) samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.at.Before(from) || s.at.After(to) })
}

// failed returns those that were refused or not answered.
func (all samples) failed() samples {
	return slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.err == nil })
}

// statuses counts the answers by HTTP status.
func (all samples) statuses() map[int]int {
	n := make(map[int]int)
	for _, s := range all {
		n[s.status()]++
	}
	return n
}

// latencies are how long the answers took, in order of length.
func (all samples) latencies() []time.Duration {
	var d []time.Duration
	for _, s := range all {
		d = append(d, s.took)
	}
	slices.Sort(d)
	return d
}

// first returns an error of those, for a person to read; nil for none.
func (all samples) first() error {
	if f := all.failed(); len(f) > 0 {
		return f[0].err
	}
	return nil
}

// wellAfter is how long after a moment the last failure was made; 0 if there was
// none.
func (all samples) wellAfter(moment time.Time) time.Duration {
	f := all.between(moment, time.Now()).failed()
	if len(f) == 0 {
		return 0
	}
	return f[len(f)-1].at.Sub(moment)
}
