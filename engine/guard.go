package engine

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/hook"
)

const (
	// slowHook: while a hook runs, no player can bind or connect.
	slowHook = 100 * time.Millisecond
	// blockingHook is after how long calls that wait for control are refused, since the hook may
	// wait for one of them.
	blockingHook = 5 * time.Second
)

// hookGuard runs the functions of the embedding program that control calls: none can end the
// process or block it in silence. One runs at a time; any goroutine may call watch.
type hookGuard struct {
	shared  *shared                     // its clock
	log     *slog.Logger                // nil: that of shared
	running atomic.Pointer[guardedHook] // nil: none
}

type guardedHook struct {
	hook.Reporter
	began    atomic.Int64 // ms; of the call that runs
	reported atomic.Int64 // ms; began of the last call that watch has reported
}

func newGuardedHook(name string) *guardedHook {
	return &guardedHook{Reporter: hook.Reporter{Name: name, Slow: slowHook, Effect: "no player can bind or connect while it runs"}}
}

func (g *hookGuard) logger() *slog.Logger { return cmp.Or(g.log, g.shared.log) }

// begin is paired with a deferred end, which ends a panic.
func (g *hookGuard) begin(h *guardedHook) *guardedHook {
	h.began.Store(g.shared.clock())
	g.running.Store(h)
	hook.Begin()
	return h
}

func (g *hookGuard) end(h *guardedHook) {
	fault := recover()
	hook.End()
	g.running.Store(nil)
	now := g.shared.clock()
	h.Done(g.logger(), time.Duration(now)*time.Millisecond, time.Duration(now-h.began.Load())*time.Millisecond, fault)
}

func (g *hookGuard) watch(calls <-chan *call) {
	h := g.running.Load()
	if h == nil {
		return
	}
	began := h.began.Load()
	ran := time.Duration(g.shared.clock()-began) * time.Millisecond
	if ran < blockingHook {
		return
	}
	if h.reported.Swap(began) != began {
		g.logger().Error("a hook does not return: no player can bind or connect, and calls fail",
			"hook", h.Name, "running_for", ran, "threshold", blockingHook)
	}
	for {
		select {
		case c := <-calls:
			c.refuse(fmt.Errorf("%w: hook %s has not returned for %v", alloc.ErrInHook, h.Name, ran))
		default:
			return
		}
	}
}

func guard[E any](g *hookGuard, name string, f func(E)) func(E) {
	if f == nil {
		return nil
	}
	h := newGuardedHook(name)
	return func(e E) {
		defer g.end(g.begin(h))
		f(e)
	}
}

func guardCall(g *hookGuard, name string, f func()) func() {
	if f == nil {
		return nil
	}
	guarded := guard(g, name, func(struct{}) { f() })
	return func() { guarded(struct{}{}) }
}

// If Admit panics, the reservation fails.
func (g *hookGuard) hooks(h Hooks) Hooks {
	if admit := h.Admit; admit != nil {
		guarded := newGuardedHook("Admit")
		h.Admit = func(project string, allocations, players int) (err error) {
			err = errFault
			defer g.end(g.begin(guarded))
			err = admit(project, allocations, players)
			if err != nil && !errors.Is(err, alloc.ErrDenied) &&
				!errors.Is(err, alloc.ErrProjectQuota) && !errors.Is(err, alloc.ErrProjectInactive) {
				guarded.Failed(g.logger(), time.Duration(g.shared.clock())*time.Millisecond, err)
			}
			return err
		}
	}
	h.OnReserve = guard(g, "OnReserve", h.OnReserve)
	h.OnBind = guard(g, "OnBind", h.OnBind)
	h.OnConnect = guard(g, "OnConnect", h.OnConnect)
	h.OnDisconnect = guard(g, "OnDisconnect", h.OnDisconnect)
	h.OnEnd = guard(g, "OnEnd", h.OnEnd)
	h.OnMigrate = guard(g, "OnMigrate", h.OnMigrate)
	h.OnMigrationEnd = guard(g, "OnMigrationEnd", h.OnMigrationEnd)
	h.OnReturn = guard(g, "OnReturn", h.OnReturn)
	h.Private.OnCode = guard(g, "OnCode", h.Private.OnCode)
	h.Private.OnPlayerLimit = guard(g, "OnPlayerLimit", h.Private.OnPlayerLimit)
	h.Private.OnRefuse = guard(g, "OnRefuse", h.Private.OnRefuse)
	h.Private.OnLargeMessage = guard(g, "OnLargeMessage", h.Private.OnLargeMessage)
	return h
}
