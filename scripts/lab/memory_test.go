//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

// backends is how many tokens press for allocations: each may make 6,000 calls
// a minute.
const backends = 100

// TestMemoryCap is F21 and G21: under a flood, and with callers who reserve as
// much as they may, a relay in 256 MiB refuses with 503 and is never killed.
func TestMemoryCap(t *testing.T) {
	limit := int64(*memoryCap) * mebi
	if why := Missing(); why == "" {
		if probe, err := NewMemoryCap(limit); err == nil {
			probe.Remove()
		} else if os.Getenv("CI") == "true" {
			t.Fatal(err)
		} else {
			t.Skip(err)
		}
	}
	var bound MemoryCap
	l := newLab(t, func(c *RelayConfig) {
		var err error
		if bound, err = NewMemoryCap(limit); err != nil {
			t.Fatal(err)
		}
		c.Cap, c.Tokens, c.Flags = &bound, backends, []string{"--bind-timeout", "1h"}
	})
	f, _ := l.fleet(l.players(10, 30))
	rubbish := l.pool(func() []byte { return Malformed(l.rng) })
	got := new(answers)
	for range pressRounds {
		before := got.full.Load()
		pressure := l.press(*memoryDuration, got)
		l.flood(20_000, *memoryDuration, rubbish)
		pressure()
		if !*long || before > 0 {
			break // the last round began and ended without room
		}
	}
	kills, err := bound.Kills()
	if err != nil {
		t.Fatal(err)
	}
	peak, err := bound.Peak()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d allocations made, %d refused with 503, %d with 429, %d otherwise; peak %d MiB, RSS %d MiB, %d killed",
		got.made.Load(), got.full.Load(), got.limited.Load(), got.other.Load(), peak/mebi, l.rss()/mebi, kills)
	if kills != 0 || !l.relay.Alive() {
		t.Errorf("the kernel killed %d processes", kills)
	}
	if got.other.Load() != 0 {
		t.Errorf("%d answers were neither 201 nor 503 nor 429, such as: %v", got.other.Load(), got.first())
	}
	if got.made.Load() == 0 {
		t.Error("nothing was allocated")
	}
	if *long && got.full.Load() == 0 {
		t.Error("never answered 503: the pressure was too low to decide anything")
	}
	l.unharmed(f.Counts())
	l.alive(f, 10*time.Second)
}

// answers are those of the API under pressure.
type answers struct {
	made, full, limited, other atomic.Int64
	err                        atomic.Pointer[error]
}

func (a *answers) first() error {
	if e := a.err.Load(); e != nil {
		return *e
	}
	return nil
}

// count sorts an answer by its status.
func (a *answers) count(err error) {
	var problem *api.Problem
	switch {
	case err == nil:
		a.made.Add(1)
	case errors.As(err, &problem) && problem.Status == http.StatusServiceUnavailable:
		a.full.Add(1)
	case errors.As(err, &problem) && problem.Status == http.StatusTooManyRequests:
		a.limited.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
	default:
		a.other.Add(1)
		a.err.CompareAndSwap(nil, &err)
	}
}

// pressRounds bounds how often the long form presses: how many allocations fill
// the memory is known, how fast a machine makes them is not.
const pressRounds = 6

// press reserves from all backends for a time; what it returns waits for the
// end of that.
func (l *lab) press(d time.Duration, got *answers) (wait func()) {
	ctx, cancel := context.WithTimeout(l.Context(), d)
	var done sync.WaitGroup
	for w := range 4 {
		done.Go(func() {
			var callers []*api.Client
			for b := w; b < backends; b += 4 {
				callers = append(callers, l.relay.API(l.net.Clients, b))
			}
			for i := 0; ctx.Err() == nil; i++ {
				_, err := callers[i%len(callers)].Allocate(ctx, api.AllocateRequest{MaxConnections: 100})
				if ctx.Err() == nil {
					got.count(err)
				}
			}
		})
	}
	return func() {
		done.Wait()
		cancel()
	}
}
