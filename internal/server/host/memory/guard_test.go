package memory

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// world is a process whose memory a test decides about.
type world struct {
	limit, used, allocations atomic.Int64 // limit and used in MiB
	looks                    atomic.Int64
	softened                 []int64 // the guard's
	collected                atomic.Int64
	log                      strings.Builder // the guard's
	*Guard
}

func newWorld(mib int64) *world {
	w := new(world)
	w.limit.Store(mib)
	w.Guard = NewGuard(Config{
		Limit:   func() Limit { return Limit{w.limit.Load() * mebi, "cgroup"} },
		Used:    func() int64 { w.looks.Add(1); return w.used.Load() * mebi },
		Soften:  func(bytes int64) { w.softened = append(w.softened, bytes) },
		Collect: func() { w.collected.Add(1) }, Allocations: func() int { return int(w.allocations.Load()) },
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	return w
}

// run runs the guard in a bubble while do goes on.
func (w *world) run(t *testing.T, do func()) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { w.Run(ctx) })
		do()
		cancel()
		done.Wait()
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestGuard(t *testing.T) {
	w := newWorld(100)
	w.run(t, func() {
		w.used.Store(79)
		w.allocations.Store(5)
		pass(idleEvery)
		if !w.Admit() {
			t.Error("refused at 79 %")
		}
		w.used.Store(81)
		pass(idleEvery)
		for range 2 {
			if w.Admit() {
				t.Error("let in at 81 %")
			}
		}
		w.used.Store(76)
		pass(idleEvery)
		if w.Admit() || !w.Stats().Tight {
			t.Error("let in at 76 %, after 81 %")
		}
		w.allocations.Store(4)
		if !w.Admit() {
			t.Error("refused, although it takes the place of one that has ended")
		}
		pass(slowly)
		if w.collected.Load() == 0 {
			t.Error("no collection while memory was short")
		}
		w.used.Store(74)
		pass(idleEvery)
		if w.allocations.Store(6); !w.Admit() {
			t.Error("refused at 74 %")
		}
	})
	if st := w.Stats(); st != (Stats{Limit: 100 * mebi, Refused: 3}) {
		t.Errorf("stats %+v", st)
	}
	log := w.log.String()
	for _, want := range []string{
		`level=INFO msg="memory limit" mib=100 from=cgroup refuse_allocations_above_mib=80`,
		"level=WARN msg=\"memory is short", "used_mib=81",
		"level=INFO msg=\"memory suffices again", "refused=3",
	} {
		if strings.Count(log, want) != 1 {
			t.Errorf("%q is not there once in\n%s", want, log)
		}
	}
}

// TestIntervals: the guard looks four times a second while allocations come or go.
func TestIntervals(t *testing.T) {
	w := newWorld(100)
	w.run(t, func() {
		for _, coming := range []int64{0, 1, 0} {
			pass(time.Second)
			before := w.looks.Load()
			for range 100 {
				w.allocations.Add(coming)
				pass(100 * time.Millisecond)
			}
			if got, want := w.looks.Load()-before, 10+30*coming; got < want-4 || got > want {
				t.Errorf("%d allocations each 100 ms: %d looks in 10 s, want %d", coming, got, want)
			}
		}
	})
}

// TestLimitChanges: a container is given more or less while it runs.
func TestLimitChanges(t *testing.T) {
	w := newWorld(100)
	w.run(t, func() {
		w.used.Store(85)
		pass(time.Second)
		if w.Admit() {
			t.Error("let in at 85 of 100 MiB")
		}
		w.limit.Store(200)
		pass(slowly)
		if !w.Admit() {
			t.Error("refused at 85 of 200 MiB")
		}
		w.limit.Store(0)
		w.used.Store(1000)
		pass(slowly)
		if !w.Admit() {
			t.Error("refused without a limit")
		}
	})
	if len(w.softened) != 2 || w.softened[0] != 90*mebi || w.softened[1] != 180*mebi {
		t.Errorf("soft limits %v", w.softened)
	}
}

// TestNoLimit: where the system does not tell, nothing is refused or set.
func TestNoLimit(t *testing.T) {
	w := newWorld(0)
	w.run(t, func() {
		w.used.Store(1 << 30)
		pass(time.Minute)
		if !w.Admit() || w.collected.Load() > 0 || len(w.softened) > 0 || w.log.Len() > 0 {
			t.Errorf("collected %d, softened %v, log %s", w.collected.Load(), w.softened, w.log.String())
		}
	})
}
