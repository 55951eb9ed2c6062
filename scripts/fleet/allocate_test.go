//go:build lab && linux

package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

const (
	// callers allocate as fast as they are answered, each over a connection that
	// stays.
	callers = 8
	// maxAllocations bounds what one measurement reserves: it is all held for
	// 10 s.
	maxAllocations = 200_000

	allocateRate   = 2000
	allocateWithin = 20 * time.Millisecond
)

// allocate measures how many hosts a second are placed over HTTP, the store and
// a relay, with the callers on the same machine as everything else.
func (y *testbed) allocate(t *testing.T) {
	d := newBalancer(y.net.players, callers, y.balancer.stalls)
	defer d.close()
	ctx, cancel := context.WithTimeout(t.Context(), *allocateFor)
	defer cancel()
	took := make([][]time.Duration, callers)
	errs := make([]error, callers)
	begin := time.Now()
	var tasks sync.WaitGroup
	for w := range callers {
		tasks.Go(func() {
			for ctx.Err() == nil && len(took[w]) < maxAllocations/callers && errs[w] == nil {
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
	y.table.measure(t, "allocations per second, 8 callers", fmt.Sprintf("%.0f", rate), "2,000", rate >= allocateRate)
	y.table.measure(t, "... p50, p99, at most", fmt.Sprintf("%s, %s, %s", us1(lab.Quantile(all, 0.5)), us1(p99), us1(lab.Quantile(all, 1))),
		"p99 20 ms", p99 <= allocateWithin)
}

func us1(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }
