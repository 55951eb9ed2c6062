package app

import (
	"context"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
)

// sayEvery is the time between two lines about what is left in a drain.
const sayEvery = 10 * time.Second

// draining is what the process knows of its drain. The relay does the work.
type draining struct {
	asking sync.Mutex // one change at a time; taken before mu
	mu     sync.Mutex // guards the following fields
	on     bool
	final  bool      // a signal began it
	until  time.Time // zero: no deadline
	cfg    engine.DrainConfig
}

func (d *draining) is() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.on
}

// set notes a drain, and returns what undoes that.
func (d *draining) set(cfg engine.DrainConfig, final bool) (undo func()) {
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

// Drain lets the process run dry, or changes how a drain ends: /readyz says no
// at once, new allocations are refused, and Run returns nil when no more than
// cfg.Threshold allocations are left, or at the deadline, of which 0 is none.
// Error: alloc.ErrUnavailable when the relay does not run.
func (a *App) Drain(ctx context.Context, cfg engine.DrainConfig) error {
	return a.drain(ctx, cfg, false)
}

// DrainFinally is Drain with the settings' time-out and threshold, and cannot be
// undone.
func (a *App) DrainFinally(ctx context.Context) error { return a.drain(ctx, a.drainDefaults(), true) }

func (a *App) drain(ctx context.Context, cfg engine.DrainConfig, final bool) error {
	d := &a.draining
	d.asking.Lock()
	defer d.asking.Unlock()
	undo := d.set(cfg, final)
	if err := a.relay.Drain(ctx, cfg); err != nil {
		undo()
		return err
	}
	a.ears.drained()
	a.sayDraining("draining: new allocations are refused, what runs goes on")
	return nil
}

// Undrain takes new allocations again. Errors: admin.ErrFinal for a drain that
// a signal began, alloc.ErrUnavailable when the relay does not run.
func (a *App) Undrain(ctx context.Context) error {
	d := &a.draining
	d.asking.Lock()
	defer d.asking.Unlock()
	switch state := a.DrainState(); {
	case state.Final:
		return admin.ErrFinal
	case !state.Draining:
		return nil
	}
	if err := a.relay.Undrain(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	d.on = false
	d.mu.Unlock()
	a.ears.drained()
	a.opts.Logger.Info("the drain was undone: new allocations are taken")
	return nil
}

// DrainState returns what is known of the drain.
func (a *App) DrainState() admin.DrainState {
	left := a.allocations()
	d := &a.draining
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.on {
		return admin.DrainState{Allocations: left}
	}
	return admin.DrainState{
		Draining: true, Final: d.final, Deadline: d.until.Truncate(time.Second), Threshold: d.cfg.Threshold, Allocations: left,
	}
}

// drainDefaults are the settings' time-out and threshold, and the usual
// deadline where they say that a signal does not drain.
func (a *App) drainDefaults() engine.DrainConfig {
	c := &a.opts.Config
	cfg := engine.DrainConfig{Deadline: c.DrainTimeout, Threshold: c.DrainThreshold}
	if cfg.Deadline == 0 {
		cfg.Deadline = admin.DefaultDeadline
	}
	return cfg
}

// watchDrain says every 10 s how far a drain is, until ctx ends.
func (a *App) watchDrain(ctx context.Context) {
	ticker := time.NewTicker(sayEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if a.draining.is() {
				a.sayDraining("draining")
			}
		}
	}
}

func (a *App) sayDraining(what string) {
	state := a.DrainState()
	fields := []any{"allocations", state.Allocations, "ends_at_allocations", state.Threshold}
	if !state.Deadline.IsZero() {
		fields = append(fields, "ends_within", time.Until(state.Deadline).Round(time.Second).String())
	}
	a.opts.Logger.Info(what, fields...)
}

// sayDrained says how the drain ended.
func (a *App) sayDrained() {
	state := a.DrainState()
	if state.Allocations > state.Threshold {
		a.opts.Logger.Warn("the drain's deadline has come: the process ends with allocations left", "allocations", state.Allocations)
		return
	}
	a.opts.Logger.Info("the drain is over", "allocations", state.Allocations)
}
