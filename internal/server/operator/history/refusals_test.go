package history

import (
	"testing"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
)

// TestRefusals: each outcome is explained once, and none that is no refusal.
func TestRefusals(t *testing.T) {
	t.Parallel()
	stats := enginetest.Start(t, engine.Config{}).Stats()
	seen := map[string]bool{"relayed": true, "bound": true}
	for _, r := range Refusals {
		_, answered := stats.Outcomes[r.Outcome]
		if _, dropped := stats.Drops[r.Outcome]; answered == dropped || seen[r.Outcome] || r.Why == "" {
			t.Errorf("%v: %q", r.Outcome, r.Why)
		}
		seen[r.Outcome] = true
	}
}
