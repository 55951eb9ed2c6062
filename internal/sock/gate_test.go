package sock

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestGate(t *testing.T) {
	var g gate
	if !g.enter(gateShut) || !g.mark(gateMuted) || g.mark(gateMuted) {
		t.Fatal("enter or mark")
	}
	if g.leave() || g.enter(gateMuted) || !g.enter(gateShut) || g.leave() {
		t.Fatal("a muted gate bars receivers only")
	}
	if !g.mark(gateShut) || g.mark(gateShut) || g.mark(gateMuted) || g.enter(gateShut) {
		t.Fatal("a shut gate bars all")
	}
	if g.leave() {
		t.Fatal("left while another is inside")
	}
	if !g.leave() {
		t.Fatal("the last one out was not told")
	}
}

// TestGateRace plays a descriptor that must not be used after it is closed and
// must be closed exactly once.
func TestGateRace(t *testing.T) {
	for range 200 {
		var g gate
		var closed, closes atomic.Int32
		var wg sync.WaitGroup
		leave := func() {
			if g.leave() {
				closed.Store(1)
				closes.Add(1)
			}
		}
		for range 4 {
			wg.Go(func() {
				for g.enter(gateShut) {
					if closed.Load() != 0 {
						t.Error("used after it was closed")
					}
					leave()
				}
			})
			wg.Go(func() {
				if g.mark(gateShut) {
					leave()
				}
			})
		}
		wg.Wait()
		if closes.Load() != 1 {
			t.Fatalf("closed %d times", closes.Load())
		}
	}
}
