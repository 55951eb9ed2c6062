package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// part is a component of the process. If one ends before the shutdown, the process ends.
type part struct {
	name string // in errors
	// run works until ctx ends, and returns nil when it has stopped.
	run func(ctx context.Context) error
	// ready is closed when the parts that depend on this one may start. Nil: at once.
	ready <-chan struct{}
	// free releases a part that is never run. Nil: it holds nothing.
	free func() error
}

// group are the parts of a process in the order of dependency: a part uses only those before it.
type group struct {
	parts []part
	tasks []func(context.Context) // what goes on besides, while all parts run
}

func (g *group) add(p part) { g.parts = append(g.parts, p) }

func (g *group) addTasks(all ...func(context.Context)) { g.tasks = append(g.tasks, all...) }

// run starts the parts in their order, each when those before it are ready, and then the tasks. It
// stops them in reverse order, each when those after it have ended, when ctx ends, and returns
// nil; or when a part ends, and returns the error of that. No goroutine is left.
func (g *group) run(ctx context.Context) error {
	serving, fail := context.WithCancelCause(ctx)
	defer fail(nil)
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
	if ctx.Err() != nil && context.Cause(serving) == context.Cause(ctx) {
		return nil
	}
	return context.Cause(serving)
}

// start starts the parts until ctx ends. It returns functions that stop those that were started and
// wait for their end, and calls fail for one that ends before.
func (g *group) start(ctx context.Context, fail func(error)) (stops []func()) {
	for _, p := range g.parts {
		if ctx.Err() != nil {
			break
		}
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		var running sync.WaitGroup
		running.Go(func() {
			err := p.run(life)
			if err == nil {
				err = errEnded
			}
			fail(fmt.Errorf("%s: %w", p.name, err))
		})
		stops = append(stops, func() {
			end()
			running.Wait()
		})
		if p.ready != nil {
			select {
			case <-p.ready:
			case <-ctx.Done():
			}
		}
	}
	return stops
}

func (g *group) free() error { return freeAll(g.parts) }

// freeAll releases parts that are never run, the last one first.
func freeAll(parts []part) error {
	var errs []error
	for _, p := range slices.Backward(parts) {
		if p.free != nil {
			errs = append(errs, p.free())
		}
	}
	return errors.Join(errs...)
}
