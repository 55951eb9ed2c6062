package history

import (
	"testing"

	"github.com/ferryrelay/ferry/engine"
)

// TestRefusals: each outcome is explained once, and none that is no refusal.
func TestRefusals(t *testing.T) {
	t.Parallel()
	seen := map[engine.Outcome]bool{}
	for _, r := range Refusals {
		if seen[r.Outcome] || r.Why == "" || r.Outcome == engine.OutRelayed || r.Outcome == engine.OutBound {
			t.Errorf("%v: %q", r.Outcome, r.Why)
		}
		seen[r.Outcome] = true
	}
}
