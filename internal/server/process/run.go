package process

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/server/events"
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
	running := a.launch(ctx, fail)
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
	for i, w := range slices.Backward(running) {
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

// announce publishes that the process is ready, when it is.
func (a *App) announce(ctx context.Context) {
	var awake bool
	if a.relay != nil {
		awake = a.relay.wake(ctx)
	} else {
		awake = a.frontEnd.wake(ctx)
	}
	if !awake {
		return
	}
	a.events.Ready.Publish(events.Ready{AdminURL: a.AdminURL()})
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
