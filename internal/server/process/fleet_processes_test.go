package process

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

type fixedProcesses []placement.SeenAPIProcess

func (f fixedProcesses) AnnounceAPI(context.Context, placement.APIProcess) ([]placement.SeenAPIProcess, error) {
	return f, nil
}
func (fixedProcesses) WithdrawAPI(context.Context, uint64) error { return nil }

// TestRestartedAPIProcess: a process that has crashed and started again is listed once, in its own list and in
// that of another one; one that is dead, or is another one at the same machine, is listed.
func TestRestartedAPIProcess(t *testing.T) {
	t.Parallel()
	seen := func(boot uint64, name, url string, age, up time.Duration) placement.SeenAPIProcess {
		return placement.SeenAPIProcess{APIProcess: placement.APIProcess{Boot: boot, Name: name, URL: url, State: "ready", Up: up}, Age: age}
	}
	const first, second = "http://192.0.2.1:7777", "http://192.0.2.1:8777"
	p := newAPIProcesses(fixedProcesses{
		seen(1, "own", first, 20*time.Second, time.Hour),             // this one, before it crashed
		seen(2, "own", second, 20*time.Second, time.Hour),            // dead
		seen(3, "other", first, 4*time.Second, time.Hour),            // crashed a moment ago
		seen(4, "other", first, 100*time.Millisecond, 3*time.Second), // and started again
		seen(5, "other", second, time.Second, time.Hour),
		seen(6, "twin", first, time.Second, time.Hour), // two that other machines cannot tell apart
		seen(7, "twin", first, time.Second, time.Minute),
	}, func() placement.APIProcess {
		return placement.APIProcess{Name: "own", URL: first, Up: 10 * time.Second}
	}, slog.New(slog.DiscardHandler))
	p.announce(t.Context())
	for _, away := range []bool{false, true} {
		got := map[string]int{}
		for _, n := range p.nodes(away) {
			got[n.ID+" "+n.API]++
			if dead := n.State == operator.StateDead; dead != (n.ID == "own" && !away) {
				t.Errorf("store away %v: %s at %s is %s", away, n.ID, n.API, n.State)
			}
		}
		if len(got) != 4 || got["own "+second] != 1 || got["other "+first] != 1 || got["other "+second] != 1 || got["twin "+first] != 2 {
			t.Errorf("store away %v: %v", away, got)
		}
	}
}
