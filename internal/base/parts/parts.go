// Package parts runs the parts of a program in the order of dependency, and stops them in reverse order.
package parts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

var (
	// ErrEnded is wrapped by the error of Run if a part has ended without one.
	ErrEnded = errors.New("ended unexpectedly")
	// ErrDone is returned by the Run of a part after which the whole is to end without an error.
	ErrDone = errors.New("done")
)

// Part is a component. If one ends before the group is stopped, the group ends.
type Part struct {
	Name string // in errors
	// Run works until ctx ends, and returns nil when it has stopped.
	Run func(ctx context.Context) error
	// Ready is closed when the parts that depend on this one may start. Nil: at once.
	Ready <-chan struct{}
	// Free releases a part that is never run. Nil: it holds nothing.
	Free func() error
}

// Open is a part that other parts use until they have ended, such as a file.
func Open(name string, closeIt func() error) Part {
	return Part{Name: name, Free: closeIt, Run: func(ctx context.Context) error {
		<-ctx.Done()
		return closeIt()
	}}
}

// Group are parts in the order of dependency: a part uses only those before it. Parts are added before
// Begin; then any goroutine may call Stop and Close.
type Group struct {
	parts []Part
	tasks []func(context.Context) // what goes on besides, while all parts run

	began   atomic.Bool
	stopped context.Context
	stop    context.CancelFunc
	ended   chan struct{} // closed by End
}

// NewGroup returns a group without parts.
func NewGroup() *Group {
	g := &Group{ended: make(chan struct{})}
	g.stopped, g.stop = context.WithCancel(context.Background())
	return g
}

// Add adds the last part.
func (g *Group) Add(p Part) { g.parts = append(g.parts, p) }

// AddTasks adds what goes on besides while all parts run.
func (g *Group) AddTasks(all ...func(context.Context)) { g.tasks = append(g.tasks, all...) }

// Begin reports whether the group may be run, which is so once. Then End must be called.
func (g *Group) Begin() bool { return g.began.CompareAndSwap(false, true) }

// End lets Close return.
func (g *Group) End() { close(g.ended) }

// Ended returns a channel that is closed by End.
func (g *Group) Ended() <-chan struct{} { return g.ended }

// Stop begins the end of Run.
func (g *Group) Stop() { g.stop() }

// Close stops Run and waits for End, or frees parts that are never run. It may be called again.
func (g *Group) Close() error {
	first := g.Begin()
	g.stop()
	if !first {
		<-g.ended
		return nil
	}
	defer g.End()
	return g.Free()
}

// Run starts the parts in their order, each when those before it are ready, and then the tasks. It
// stops them in reverse order, each when those after it have ended, when ctx ends or Stop is called, and
// returns nil; or when a part ends, and returns the error of that. No goroutine is left.
func (g *Group) Run(ctx context.Context) error {
	serving, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer context.AfterFunc(g.stopped, func() { fail(ErrDone) })()
	stops := g.start(serving, fail)
	var tasks sync.WaitGroup
	for _, task := range g.tasks {
		tasks.Go(func() {
			if serving.Err() == nil {
				task(serving)
			}
		})
	}
	<-serving.Done()
	_ = freeAll(g.parts[len(stops):])
	for _, stop := range slices.Backward(stops) {
		stop()
	}
	tasks.Wait()
	cause := context.Cause(serving)
	if errors.Is(cause, ErrDone) || ctx.Err() != nil && cause == context.Cause(ctx) {
		return nil
	}
	return cause
}

// start starts the parts until ctx ends. It returns functions that stop those that were started and
// wait for their end, and calls fail for one that ends before.
func (g *Group) start(ctx context.Context, fail func(error)) (stops []func()) {
	for _, p := range g.parts {
		if ctx.Err() != nil {
			break
		}
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		var running sync.WaitGroup
		running.Go(func() {
			err := p.Run(life)
			if err == nil {
				err = ErrEnded
			}
			fail(fmt.Errorf("%s: %w", p.Name, err))
		})
		stops = append(stops, func() {
			end()
			running.Wait()
		})
		if p.Ready != nil {
			select {
			case <-p.Ready:
			case <-ctx.Done():
			}
		}
	}
	return stops
}

// Free releases the parts of a group that is not run.
func (g *Group) Free() error { return freeAll(g.parts) }

// freeAll releases parts that are never run, the last one first.
func freeAll(parts []Part) error {
	var errs []error
	for _, p := range slices.Backward(parts) {
		if p.Free != nil {
			errs = append(errs, p.Free())
		}
	}
	return errors.Join(errs...)
}
