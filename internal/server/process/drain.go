package process

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

const drainLogInterval = 10 * time.Second

// drainer drains the relay of the process, at whose end Run returns. The relay does the work. Any
// goroutine may call its methods.
type drainer struct {
	relay    *engine.Server
	defaults engine.DrainConfig // of the settings
	changes  *events.Topic[events.Drain]
	log      *slog.Logger

	asking sync.Mutex // one change at a time; taken before mu
	mu     sync.Mutex // guards the following fields
	on     bool
	final  bool      // a signal began it
	until  time.Time // zero: no deadline
	cfg    engine.DrainConfig
}

// isOn reports whether a drain is under way. A process without a relay has no drainer.
func (d *drainer) isOn() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.on
}

func (d *drainer) set(cfg engine.DrainConfig, final bool) (undo func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	on, was, until, before := d.on, d.final, d.until, d.cfg
	d.on, d.final, d.until, d.cfg = true, was || final, time.Time{}, cfg
	if cfg.Deadline > 0 {
		d.until = time.Now().Add(cfg.Deadline)
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.on, d.final, d.until, d.cfg = on, was, until, before
	}
}

// Drain begins a drain, or changes how it ends: /readyz fails at once, new allocations
// are refused, and Run returns nil when at most cfg.Threshold allocations are left, or at
// the deadline, if it is not 0. Error: alloc.ErrUnavailable if the relay does not run.
func (d *drainer) Drain(ctx context.Context, cfg engine.DrainConfig) error {
	return d.drain(ctx, cfg, false)
}

// DrainFinally is Drain with the time-out of the settings. It cannot be
// undone.
func (d *drainer) DrainFinally(ctx context.Context) error { return d.drain(ctx, d.defaults, true) }

func (d *drainer) drain(ctx context.Context, cfg engine.DrainConfig, final bool) error {
	d.asking.Lock()
	defer d.asking.Unlock()
	undo := d.set(cfg, final)
	if err := d.relay.Drain(ctx, cfg); err != nil {
		undo()
		return err
	}
	d.changes.Publish(events.Drain{Draining: true})
	d.logState("draining: new allocations are refused, live matches continue")
	return nil
}

// Undrain accepts new allocations again. Errors: operator.ErrFinal for a drain that a signal
// began, alloc.ErrUnavailable if the relay does not run.
func (d *drainer) Undrain(ctx context.Context) error {
	d.asking.Lock()
	defer d.asking.Unlock()
	switch state := d.DrainState(); {
	case state.Final:
		return operator.ErrFinal
	case !state.Draining:
		return nil
	}
	if err := d.relay.Undrain(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	d.on = false
	d.mu.Unlock()
	d.changes.Publish(events.Drain{})
	d.log.Info("the drain was undone: new allocations are accepted")
	return nil
}

func (d *drainer) DrainState() operator.DrainState {
	left := d.relay.Stats().Allocations
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.on {
		return operator.DrainState{Allocations: left}
	}
	return operator.DrainState{
		Draining: true, Final: d.final, Deadline: d.until.Truncate(time.Second), Threshold: d.cfg.Threshold, Allocations: left,
	}
}

// drainDefaults returns the time-out of the settings, and the default deadline if the settings turn the drain at a signal off.
func drainDefaults(c *config.Config) engine.DrainConfig {
	return engine.DrainConfig{Deadline: cmp.Or(c.DrainTimeout, admin.DefaultDeadline)}
}

func (d *drainer) watch(ctx context.Context) {
	periodic.Run(ctx, drainLogInterval, func() {
		if d.isOn() {
			d.logState("draining")
		}
	})
}

func (d *drainer) logState(what string) {
	state := d.DrainState()
	fields := []any{"allocations", state.Allocations, "ends_at_allocations", state.Threshold}
	if !state.Deadline.IsZero() {
		fields = append(fields, "ends_within", time.Until(state.Deadline).Round(time.Second).String())
	}
	d.log.Info(what, fields...)
}

func (d *drainer) logEnd() {
	state := d.DrainState()
	if state.Allocations > state.Threshold {
		d.log.Warn("the drain's deadline has come: the process ends with allocations left", "allocations", state.Allocations)
		return
	}
	d.log.Info("the drain is over", "allocations", state.Allocations)
}
