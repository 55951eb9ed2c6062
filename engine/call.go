package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/hook"
)

// ErrNotRunning is returned by methods of a [Server] before Run and after its end. It is an
// [alloc.ErrUnavailable].
var ErrNotRunning = fmt.Errorf("%w: the server does not run", alloc.ErrUnavailable)

var errFault = fmt.Errorf("%w: a fault in the relay, see its log", alloc.ErrUnavailable)

// call is a function that another goroutine has control run. Either control takes the call, and
// its caller then waits for the result, whatever its context says; or the caller withdraws it,
// and control never runs it. So a call that returns an error has changed nothing, unless do
// itself fails after a change.
type call struct {
	do    func(*control) error
	taken atomic.Bool // by control, or withdrawn by the caller
	done  chan error  // receives the result of a call that control has taken, or the reason of a refusal
}

// take returns true to one caller only.
func (c *call) take() bool { return c.taken.CompareAndSwap(false, true) }

func (c *call) refuse(err error) {
	if c.take() {
		c.done <- err
	}
}

// onControl runs do in the control goroutine and returns its error. Other errors mean that do has
// not run and will not: [ErrNotRunning], [alloc.ErrInHook], alloc.ErrUnavailable; but for errFault
// if do panicked.
func (s *Server) onControl(ctx context.Context, do func(*control) error) error {
	switch {
	case !s.ran.Load():
		return ErrNotRunning
	case ctx.Err() != nil:
		return contextError(ctx)
	case relayGoroutines.Running():
		return alloc.ErrInHook
	}
	c := &call{do: do, done: make(chan error, 1)}
	select {
	case s.control.calls <- c:
	case <-s.stopped:
		return ErrNotRunning
	case <-ctx.Done():
		return contextError(ctx)
	}
	return s.awaitCall(ctx, c)
}

func (s *Server) awaitCall(ctx context.Context, c *call) error {
	var err error
	select {
	case err := <-c.done:
		return err
	case <-s.stopped:
		err = ErrNotRunning
	case <-ctx.Done():
		err = contextError(ctx)
	}
	if c.take() {
		return err
	}
	return <-c.done
}

func contextError(ctx context.Context) error {
	return fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
}

func (c *control) serve(call *call) {
	if !call.take() {
		return
	}
	err := errFault
	defer func() { call.done <- err }()
	defer c.recoverFault("call")
	err = call.do(c)
}

// relayGoroutines are the functions on whose goroutines the relay calls the embedding program.
var relayGoroutines = hook.CallersOf((*control).run, (*worker).run, (*intake).run, (*Server).resumeFile, (*Server).serveWhile,
	(*Server).leave)
