package app

import (
	"context"
	"fmt"
)

// part is what the process ends with if it fails.
type part struct {
	name string
	// run works until ctx ends, and then returns nil when nothing of it is left.
	run func(ctx context.Context) error
	// free is for a part that is never run.
	free func() error
}

// add adds a part, which ends before those that were added before it.
func (a *App) add(p part) { a.parts = append(a.parts, p) }

// watch adds what goes on besides the parts, until the end begins.
func (a *App) watch(all ...func(context.Context)) { a.watched = append(a.watched, all...) }

// working is a part that runs.
type working struct {
	stop context.CancelFunc
	done chan struct{} // closed when run has returned
}

// launch runs all parts. Each has a context of its own, which outlives ctx: the
// parts are stopped one after another. One that ends before is told to fail.
func (a *App) launch(ctx context.Context, fail func(error)) (crew []working) {
	for _, p := range a.parts {
		life, stop := context.WithCancel(context.WithoutCancel(ctx))
		w := working{stop, make(chan struct{})}
		crew = append(crew, w)
		go func() {
			defer close(w.done)
			defer stop()
			err := p.run(life)
			if err == nil {
				err = errEnded
			}
			if err != errDrained {
				err = fmt.Errorf("app: %s: %w", p.name, err)
			}
			fail(err)
		}()
	}
	return crew
}
