package lab

import (
	"math/rand/v2"
	"testing"
)

// TestFlow: against a map, with loss, duplicates and reordering within the window.
func TestFlow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var f flow
	seen := map[uint64]bool{}
	for i := range uint64(200_000) {
		n := i + rng.Uint64N(1000)
		if i > 1000 && rng.IntN(2) == 0 {
			n -= rng.Uint64N(1000)
		}
		if got := f.take(n); got == seen[n] {
			t.Fatalf("number %d: new %v", n, got)
		}
		seen[n] = true
	}
	if f.unique != uint64(len(seen)) || f.unique+f.duplicates != 200_000 {
		t.Errorf("%d and %d, want %d of 200,000", f.unique, f.duplicates, len(seen))
	}
	if !f.take(1_000_000) || f.take(1_000_000) || f.take(1_000_000-flowWindow) || !f.take(1_000_001-flowWindow) {
		t.Error("a jump over the window")
	}
}
