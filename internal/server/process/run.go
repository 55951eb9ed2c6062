package process

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

var (
	// ErrAlreadyRun is returned by a second call of Run, and by Run after Close.
	ErrAlreadyRun = errors.New("app: Run was called before, or the app is closed")
	// errEnded is returned for a component that ended before the shutdown.
	errEnded = errors.New("ended unexpectedly")
	// errDrained is returned for a relay that ended because a drain is over.
	errDrained = errors.New("drained")
)

const (
	// answerWithin is how long accepted calls of the API may continue after the shutdown
	// has begun.
	answerWithin = 2 * time.Second
	// probeWithin bounds one attempt to reach the relay at the start.
	probeWithin = 2 * time.Second
)

// Run serves until ctx ends, Close is called or a drain is over, and then returns
// nil; or until a component fails, and then returns its error. No goroutine is left when it
// returns. It can be called once.
func (a *App) Run(ctx context.Context) error {
	if !a.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	defer close(a.done)
	if a.opts.Parent != nil {
		if err := a.takeOver(ctx); err != nil {
			return errors.Join(err, a.freeAll())
		}
	}
	alive, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	crew := a.launch(ctx, fail)
	var watches sync.WaitGroup
	for _, watch := range append(a.background, a.announce) {
		watches.Go(func() {
			a.awaitServing(alive)
			watch(alive)
		})
	}

	var err error
	select {
	case <-a.quit:
	case <-alive.Done():
		err = context.Cause(alive)
		if err == errDrained || ctx.Err() != nil && err == context.Cause(ctx) {
			err = nil
		}
	}
	fail(nil)
	a.ready.Store(false)
	a.opts.Logger.Info("stopping")
	last := slices.IndexFunc(a.components, func(p component) bool { return p.name == sessionFileName || p.name == relayName })
	for i, w := range slices.Backward(crew) {
		w.stop()
		<-w.done
		if i == last && a.upgrades.to() != nil {
			err = a.give()
		}
	}
	watches.Wait()
	a.flight.Stop()
	a.players.close()
	if a.upgrades.to() != nil && err == nil {
		var last sync.WaitGroup
		last.Go(func() { _ = a.history.HandOver(a.upgrades.historyTo) }) // The new process logs what it lacks.
		a.hold(ctx)
		last.Wait()
	}
	return err
}

// runRelay runs the relay, which ends by itself after a drain.
func (a *App) runRelay(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if !a.handOverRelay() {
			end()
		}
	})
	err := a.relay.Run(life)
	if !stop() {
		<-ended
	}
	if err == nil && ctx.Err() == nil && a.relay.Draining() {
		a.logDrained()
		return errDrained
	}
	return err
}

// announce publishes that the process is ready, when it is.
func (a *App) announce(ctx context.Context) {
	awake := a.wakeRelay
	if a.frontEnd != nil {
		awake = a.frontEnd.wake
	}
	if !awake(ctx) {
		return
	}
	a.events.Ready.Publish(events.Ready{AdminURL: a.AdminURL()})
}

// wakeRelay waits until WebSockets are accepted and the relay has answered a probe. Under
// a flood that may take several attempts. It reports false if ctx ends before.
func (a *App) wakeRelay(ctx context.Context) bool {
	if a.websocket != nil {
		select {
		case <-a.websocket.Running():
		case <-ctx.Done():
			return false
		}
	}
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, probeWithin)
		err := a.relay.Probe(attempt)
		cancel()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			a.opts.Logger.Warn("the relay does not answer itself yet", "error", err)
		}
	}
	return false
}

// Close releases an App that was never run, or makes Run return and waits for it. It may
// be called more than once.
func (a *App) Close() error {
	first := a.ran.CompareAndSwap(false, true)
	a.closing.Do(func() { close(a.quit) })
	if !first {
		<-a.done
		return nil
	}
	defer close(a.done)
	return a.freeAll()
}

// freeAll releases the components, which do not run.
func (a *App) freeAll() error {
	var errs []error
	for _, p := range slices.Backward(a.components) {
		errs = append(errs, p.free())
	}
	return errors.Join(errs...)
}

// ignoreClosed returns nil for the error of a server that was stopped.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// drainLogInterval is the time between two log lines about a drain.
const drainLogInterval = 10 * time.Second

// draining is the state of the drain of the process. The relay does the work.
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

// set records a drain, and returns a function that undoes it.
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

// Drain begins a drain, or changes how it ends: /readyz fails at once, new allocations
// are refused, and Run returns nil when at most cfg.Threshold allocations are left, or at
// the deadline, if it is not 0. Error: alloc.ErrUnavailable if the relay does not run.
func (a *App) Drain(ctx context.Context, cfg engine.DrainConfig) error {
	return a.drain(ctx, cfg, false)
}

// DrainFinally is Drain with the time-out and threshold of the settings. It cannot be
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
	a.events.Drain.Publish(events.Drain{Draining: true})
	a.logDrain("draining: new allocations are refused, live matches continue")
	return nil
}

// Undrain accepts new allocations again. Errors: operator.ErrFinal for a drain that a signal
// began, alloc.ErrUnavailable if the relay does not run.
func (a *App) Undrain(ctx context.Context) error {
	d := &a.draining
	d.asking.Lock()
	defer d.asking.Unlock()
	switch state := a.DrainState(); {
	case state.Final:
		return operator.ErrFinal
	case !state.Draining:
		return nil
	}
	if err := a.relay.Undrain(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	d.on = false
	d.mu.Unlock()
	a.events.Drain.Publish(events.Drain{})
	a.opts.Logger.Info("the drain was undone: new allocations are accepted")
	return nil
}

// DrainState returns the state of the drain.
func (a *App) DrainState() operator.DrainState {
	left := a.allocations()
	d := &a.draining
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.on {
		return operator.DrainState{Allocations: left}
	}
	return operator.DrainState{
		Draining: true, Final: d.final, Deadline: d.until.Truncate(time.Second), Threshold: d.cfg.Threshold, Allocations: left,
	}
}

// drainDefaults returns the time-out and threshold of the settings, and the default
// deadline if the settings turn the drain at a signal off.
func (a *App) drainDefaults() engine.DrainConfig {
	c := &a.opts.Config
	cfg := engine.DrainConfig{Deadline: c.DrainTimeout, Threshold: c.DrainThreshold}
	if cfg.Deadline == 0 {
		cfg.Deadline = admin.DefaultDeadline
	}
	return cfg
}

// watchDrain logs the state of a drain every 10 s, until ctx ends.
func (a *App) watchDrain(ctx context.Context) {
	periodic.Run(ctx, drainLogInterval, func() {
		if a.draining.is() {
			a.logDrain("draining")
		}
	})
}

func (a *App) logDrain(what string) {
	state := a.DrainState()
	fields := []any{"allocations", state.Allocations, "ends_at_allocations", state.Threshold}
	if !state.Deadline.IsZero() {
		fields = append(fields, "ends_within", time.Until(state.Deadline).Round(time.Second).String())
	}
	a.opts.Logger.Info(what, fields...)
}

// logDrained logs how the drain ended.
func (a *App) logDrained() {
	state := a.DrainState()
	if state.Allocations > state.Threshold {
		a.opts.Logger.Warn("the drain's deadline has come: the process ends with allocations left", "allocations", state.Allocations)
		return
	}
	a.opts.Logger.Info("the drain is over", "allocations", state.Allocations)
}
