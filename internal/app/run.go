package app

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

var (
	// ErrAlreadyRun is returned by a second call of Run, and by Run after Close.
	ErrAlreadyRun = errors.New("app: Run was called before, or the app is closed")
	// errEnded is for a part that ended although nobody asked it to.
	errEnded = errors.New("ended unexpectedly")
	// errDrained is for a relay that ended since it has run dry.
	errDrained = errors.New("drained")
)

const (
	// answerWithin is how long calls that the API has taken may go on when the
	// end has come.
	answerWithin = 2 * time.Second
	// probeWithin bounds one attempt to reach the relay at the start.
	probeWithin = 2 * time.Second
)

// Run serves until ctx ends, Close is called or a drain is over, and then returns
// nil; or until a part fails, and then returns its error. No goroutine is left when it
// returns. It can be called once.
func (a *App) Run(ctx context.Context) error {
	if !a.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	defer close(a.done)
	alive, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	crew := a.launch(ctx, fail)
	var watches sync.WaitGroup
	for _, watch := range append(a.watched, a.announce) {
		watches.Go(func() { watch(alive) })
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
	for _, w := range slices.Backward(crew) {
		w.stop()
		<-w.done
	}
	watches.Wait()
	a.players.close()
	return err
}

// runRelay runs the relay, which ends by itself after a drain.
func (a *App) runRelay(ctx context.Context) error {
	err := a.relay.Run(ctx)
	if err == nil && ctx.Err() == nil && a.relay.Draining() {
		a.sayDrained()
		return errDrained
	}
	return err
}

// announce says that the process is ready, when it is.
func (a *App) announce(ctx context.Context) {
	awake := a.wakeRelay
	if a.front != nil {
		awake = a.front.wake
	}
	if !awake(ctx) {
		return
	}
	a.ready.Store(true)
	if a.opts.OnReady != nil {
		a.opts.OnReady()
	}
}

// wakeRelay waits until callers of WebSocket are let in and the relay has
// answered. Under a flood that may take several attempts, which is no reason to
// give up. It reports false when ctx ends before.
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

// Close frees everything: that of an App that was never run, or by making Run
// return, for which it waits. It may be called more than once.
func (a *App) Close() error {
	first := a.ran.CompareAndSwap(false, true)
	a.closing.Do(func() { close(a.quit) })
	if !first {
		<-a.done
		return nil
	}
	defer close(a.done)
	var errs []error
	for _, p := range slices.Backward(a.parts) {
		errs = append(errs, p.free())
	}
	return errors.Join(errs...)
}

// ignoreClosed leaves out the error that only says that a server was stopped.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
