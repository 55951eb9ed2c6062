package process

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

func (r running) allocate(t *testing.T) error {
	t.Helper()
	_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	return err
}

func TestDrainRunsDry(t *testing.T) {
	t.Parallel()
	c := local()
	c.BindTimeout = time.Hour
	r := start(t, options(c, Serve))
	if err := r.allocate(t); err != nil {
		t.Fatal(err)
	}
	if err := r.relay.drain.Drain(t.Context(), engine.DrainConfig{}); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(r.handover.ready.check(), errDraining) {
		t.Errorf("ready: %v", r.handover.ready.check())
	}
	var problem *api.Problem
	if err := r.allocate(t); !errors.As(err, &problem) || problem.Status != 503 {
		t.Errorf("a new allocation: %v", err)
	}
	if st := r.relay.drain.DrainState(); !st.Draining || st.Final || !st.Deadline.IsZero() || st.Allocations != 1 {
		t.Errorf("state %+v", st)
	}
	if err := r.relay.drain.Drain(t.Context(), engine.DrainConfig{Threshold: 1}); err != nil {
		t.Error(err)
	}
	if err := <-r.ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := r.relay.drain.Drain(t.Context(), engine.DrainConfig{}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Drain after the end: %v", err)
	}
}

func TestUndrain(t *testing.T) {
	t.Parallel()
	c := local()
	c.BindTimeout, c.DrainTimeout = time.Hour, time.Hour
	r := start(t, options(c, Serve))
	if err := errors.Join(r.relay.drain.Undrain(t.Context()), r.allocate(t)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		r.relay.drain.Drain(t.Context(), engine.DrainConfig{}), r.relay.drain.Undrain(t.Context()), r.allocate(t), r.handover.ready.check(),
	); err != nil {
		t.Errorf("after a drain that was undone: %v", err)
	}
	if err := r.relay.drain.DrainFinally(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.relay.drain.Undrain(t.Context()); err != operator.ErrFinal {
		t.Errorf("a final drain was undone: %v", err)
	}
	if err := r.relay.drain.Drain(t.Context(), engine.DrainConfig{Deadline: time.Minute}); err != nil {
		t.Error(err)
	}
	if st := r.relay.drain.DrainState(); !st.Final || time.Until(st.Deadline) > time.Minute {
		t.Errorf("with another deadline: %+v", st)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.relay.drain.Drain(ctx, engine.DrainConfig{}); err != nil && !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("no call waits: %v", err)
	}
}

// TestDrainDefaults: without a configured deadline there is a default.
func TestDrainDefaults(t *testing.T) {
	t.Parallel()
	c := local()
	if d := drainDefaults(&c); d != (engine.DrainConfig{Deadline: time.Hour}) {
		t.Errorf("%+v", d)
	}
	c.DrainTimeout = time.Minute
	if d := drainDefaults(&c); d != (engine.DrainConfig{Deadline: time.Minute}) {
		t.Errorf("%+v", d)
	}
}
