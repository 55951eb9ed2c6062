package process

import (
	"context"
	"errors"
	"time"

	"github.com/ferryrelay/ferry/internal/server/events"
)

// ErrAlreadyRun is returned by a second call of Run, and by Run after Close.
var ErrAlreadyRun = errors.New("Run was called before, or the app is closed")

const (
	// lingerFor is how long open connections to the API may bring a last call after the shutdown has begun.
	lingerFor = time.Second
	// probeWithin bounds one attempt to reach the relay at the start.
	probeWithin = 2 * time.Second
)

// Run serves until ctx ends, Close is called or a drain is over, and then returns
// nil; or until a component fails, and then returns its error. No goroutine is left when it
// returns. It can be called once.
func (a *App) Run(ctx context.Context) error {
	if !a.parts.Begin() {
		return ErrAlreadyRun
	}
	defer a.parts.End()
	err := a.handover.receive(ctx)
	if err == nil && a.handover.from != nil {
		err = a.operator.status.bans.Load() // The process before this one may have changed the file.
	}
	if err != nil {
		return errors.Join(err, a.parts.Free())
	}
	err = a.parts.Run(ctx)
	a.operator.flight.Stop()
	if a.handover.to() != nil {
		return a.handover.finish(ctx)
	}
	return err
}

// runReady publishes that the process is ready, when it is, and ends that first of all.
func (a *App) runReady(ctx context.Context, ready *readiness, stream *events.Stream) error {
	var awake bool
	if a.relay != nil {
		awake = a.relay.wake(ctx)
	} else {
		awake = a.frontEnd.wake(ctx)
	}
	if awake && ready.store != nil {
		if err := checkRegions(ctx, ready.store, a.opts.Mode, a.opts.Config.Region); err != nil {
			return err
		}
	}
	if awake {
		stream.Ready.Publish(events.Ready{AdminURL: a.AdminURL()})
	}
	<-ctx.Done()
	ready.serving.Store(false)
	a.opts.Logger.Info("stopping")
	return nil
}

// Close releases an App that was never run, or makes Run return and waits for it. It may
// be called more than once.
func (a *App) Close() error { return a.parts.Close() }

// DrainFinally drains the relay with the time-out and threshold of the settings, at the end of which
// Run returns. It cannot be undone. The mode must have a relay.
func (a *App) DrainFinally(ctx context.Context) error { return a.relay.drain.DrainFinally(ctx) }

// ReloadOnSignal reads the settings again, and applies those that may change while the process
// runs, or logs why it applies none.
func (a *App) ReloadOnSignal(ctx context.Context) { a.settings.reloadOnSignal(ctx) }

// Upgrade replaces this process by a new one of the program that is on the disk now, see
// package upgrade, or logs and returns why it goes on. After it Run returns nil.
func (a *App) Upgrade(ctx context.Context) error {
	_, err := a.handover.Upgrade(ctx)
	return err
}
