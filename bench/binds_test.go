package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/benchrig"
)

// TestBinds: one handshake of an endpoint is under way at a time, and times are
// those of its own answer.
func TestBinds(t *testing.T) {
	b := newBinds(0, 10, 1000, 3)
	for want := range 3 {
		if ep, ok := b.takeEndpoint(5); !ok || ep != want {
			t.Fatalf("endpoint %d, %v", ep, ok)
		}
		b.recordSent(want, int64(5+5*want), 20) // 5 is before what counts.
	}
	if ep, ok := b.takeEndpoint(20); ok {
		t.Errorf("endpoint %d is free", ep)
	}
	b.recordAnswer(0, 100)
	b.recordAnswer(1, 10_010)
	b.recordAnswer(1, 10_020) // Nothing is under way any more.
	b.recordAnswer(-1, 10_020)
	b.recordAnswer(3, 10_020)
	if ep, ok := b.takeEndpoint(20_000); !ok || ep != 0 {
		t.Errorf("endpoint %d, %v", ep, ok)
	}
	late := bindTimeout + 100
	for _, want := range []int{1, 2, 0} { // 2 is given up.
		if ep, ok := b.takeEndpoint(late); !ok || ep != want {
			t.Errorf("endpoint %d, %v, want %d", ep, ok, want)
		}
	}
	if b.pendingCount != 0 {
		t.Errorf("%d under way", b.pendingCount)
	}
	b.recordAnswer(2, late) // Too late.
	c := b.report(10, 10+int64(time.Second))
	if c.Sent != 2 || c.Answered != 1 || c.AnsweredRate != 1 || c.Latency.Samples != 1 || c.Latency.Max < 10_000 || c.Latency.Max > 10_100 {
		t.Errorf("%+v", c)
	}
	// Patience begins when it was sent, however late that was.
	b.recordSent(0, 5, late)
	b.cursor = 0
	if ep, ok := b.takeEndpoint(late + 1); !ok || ep != 1 {
		t.Errorf("endpoint %d, %v, want 1", ep, ok)
	}
	if none := newBinds(0, 0, 0, 3); none.rate != 0 || none.pending != nil {
		t.Error("memory for no BINDs")
	}
}

// refusing is an API that refuses every second call.
type refusing struct {
	benchrig.Direct
	n int
}

func (r *refusing) Reserve(context.Context) error {
	switch r.n++; r.n % 3 {
	case 0:
		return fmt.Errorf("allocate: %w", &api.Problem{Status: 429})
	case 1:
		return errors.New("no route")
	}
	return nil
}

// TestAllocatingRefused: refusals have names and no latency.
func TestAllocatingRefused(t *testing.T) {
	cfg := Config{AllocateWorkers: 1, AllocateRate: 9, Drain: 15 * time.Second}
	b := testbed{dialect: &refusing{}}
	begin := time.Now()
	a := b.newAllocationLoad(&cfg, begin, begin.Add(time.Second))
	a.Run(t.Context())
	r := Result{Errors: map[string]uint64{"allocate failed": 1}}
	c := a.report(&r)
	if c.Offered != 9 || c.Sent == 0 || c.Answered+c.Refused != c.Sent || c.Latency.Samples != c.Answered {
		t.Errorf("%+v", c)
	}
	if r.Errors["allocate failed"]+r.Errors["allocate refused with status 429"] != 1+c.Refused {
		t.Errorf("%+v, errors %v", c, r.Errors)
	}
	if a = (&testbed{dialect: benchrig.Direct{}}).newAllocationLoad(&Config{}, begin, begin); a.report(&r) != nil {
		t.Error("a report on nothing")
	}
}

// TestAllocatingCutShort: calls that the end of ctx cuts short were never made.
func TestAllocatingCutShort(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := testbed{dialect: hanging{cancel: cancel}}
	begin := time.Now()
	a := b.newAllocationLoad(&Config{AllocateWorkers: 1}, begin, begin.Add(time.Hour))
	a.Run(ctx)
	r := Result{Errors: map[string]uint64{}}
	if c := a.report(&r); c.Sent != 0 || len(r.Errors) != 0 || c.Duration > time.Minute {
		t.Errorf("%+v, errors %v", c, r.Errors)
	}
}

// hanging is an API that does not answer.
type hanging struct {
	benchrig.Direct
	cancel func()
}

func (h hanging) Reserve(ctx context.Context) error {
	h.cancel()
	<-ctx.Done()
	return ctx.Err()
}
