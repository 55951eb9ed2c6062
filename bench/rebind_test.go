package bench

import (
	"testing"
	"time"
)

// TestRebinder: an endpoint that gets ERROR 3 is bound again at once, repeats after a second
// without an answer, and counts once, however often it loses its binding.
func TestRebinder(t *testing.T) {
	const ms = int64(time.Millisecond)
	var b rebinder
	if b.report() != nil {
		t.Error("a report without an ERROR 3")
	}
	due := func(want ...int32) {
		t.Helper()
		if len(b.due) != len(want) {
			t.Errorf("due %v, want %v", b.due, want)
		}
		b.due = b.due[:0]
	}
	b.answer(3, 500*ms) // to a BIND of BindRate
	for at := range int64(1000) {
		b.mismatch(7, (1000+at)*ms) // one for each datagram
	}
	due(7)
	b.mismatch(8, 1500*ms)
	b.mismatch(7, 2000*ms) // The first BIND was lost.
	due(8, 7)
	b.answer(7, 2010*ms)
	b.answer(7, 2011*ms) // to the first one, late
	b.answer(8, 2500*ms)
	b.mismatch(7, 4000*ms) // another restart
	due(7)
	b.answer(7, 4005*ms)
	b.mismatch(9, 4100*ms) // never answered
	due(9)
	r := b.report()
	if r.Endpoints != 3 || r.Bound != 2 || r.Latency.Samples != 3 || r.Duration != 3005*time.Millisecond {
		t.Errorf("%+v", r)
	}
	if max := r.Latency.Max; max < 1009*time.Millisecond || max > 1012*time.Millisecond {
		t.Errorf("longest %v, want 1.01 s", max)
	}
}
