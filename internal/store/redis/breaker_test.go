package redisstore

import (
	"testing"
	"time"
)

// enter asks for leave and expects whether it is given, and whether as a probe.
func enter(t *testing.T, b *breaker, now time.Time, given, probe bool) ticket {
	t.Helper()
	got, ok := b.enter(now)
	if ok != given || got.probe != probe {
		t.Fatalf("enter = %+v, %v; want a probe: %v, leave: %v", got, ok, probe, given)
	}
	return got
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	b := breaker{failures: 3}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	call := func(v verdict) (open, changed bool) {
		t.Helper()
		return b.leave(enter(t, &b, now, true, false), v, now)
	}
	// It takes three in a row; what a caller abandons does not count either way.
	for _, v := range []verdict{unanswered, unanswered, answered, unanswered, abandoned, unanswered} {
		if open, _ := call(v); open {
			t.Fatal("open after two failures in a row")
		}
	}
	late := enter(t, &b, now, true, false)
	if open, changed := call(unanswered); !open || !changed {
		t.Fatal("not open after three failures in a row")
	}
	// Calls that were under way change nothing.
	if open, changed := b.leave(late, answered, now); !open || changed {
		t.Fatal("a call from before has closed it")
	}
	enter(t, &b, now, false, false)
	enter(t, &b, now.Add(probeEvery/2-1), false, false)
	now = now.Add(probeEvery)
	probe := enter(t, &b, now, true, true)
	enter(t, &b, now.Add(time.Hour), false, false) // One at a time.
	if open, changed := b.leave(probe, unanswered, now); !open || changed {
		t.Fatal("a probe without an answer has closed it")
	}
	enter(t, &b, now.Add(probeEvery/2-1), false, false)
	now = now.Add(probeEvery)
	// A caller that leaves while it probes makes room for another at once.
	b.leave(enter(t, &b, now, true, true), abandoned, now)
	if open, changed := b.leave(enter(t, &b, now, true, true), answered, now); open || !changed {
		t.Fatal("a probe with an answer has not closed it")
	}
	// It begins to count anew.
	call(unanswered)
	if open, _ := call(unanswered); open {
		t.Fatal("open after two failures")
	}
	if open, opened, closed, refused := b.stats(); open || opened != 1 || closed != 1 || refused != 4 {
		t.Errorf("stats: %v, %d, %d, %d", open, opened, closed, refused)
	}
}
