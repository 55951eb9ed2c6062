package bench

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

func drain(c *credits, flows []flow) (taken []int32) {
	for {
		i, ok := c.take()
		if !ok {
			return taken
		}
		flows[i].inFlight++
		taken = append(taken, i)
	}
}

func TestCredits(t *testing.T) {
	flows := make([]flow, 3)
	c := newCredits(3, 2)
	if got := drain(&c, flows); len(got) != 6 || got[0] != 0 || got[1] != 1 || got[3] != 0 {
		t.Fatalf("first credits %v", got)
	}
	c.creditArrival(&flows[1], 1, 1, 10)
	if got := drain(&c, flows); len(got) != 1 || got[0] != 1 {
		t.Errorf("after an arrival: %v", got)
	}
	c.creditArrival(&flows[2], 2, 2, 10) // The first was overtaken.
	if got := drain(&c, flows); len(got) != 2 {
		t.Errorf("after a gap: %v", got)
	}
	c.creditArrival(&flows[2], 2, 0, 11) // And arrives late.
	if got := drain(&c, flows); len(got) != 0 {
		t.Errorf("after what was overtaken: %v", got)
	}
}

func TestCreditsRevive(t *testing.T) {
	flows := make([]flow, 2)
	c := newCredits(2, 4)
	drain(&c, flows)
	now := int64(time.Second)
	c.restoreStalled(flows, now)
	c.creditArrival(&flows[0], 0, 1, now+stallTimeout)
	drain(&c, flows)
	c.restoreStalled(flows, now+stallTimeout+1) // Flow 1 was silent for too long.
	got := drain(&c, flows)
	if len(got) != 4 || got[0] != 1 || flows[1].inFlight != 4 || flows[0].inFlight != 4 {
		t.Errorf("revived %v, in flight %d and %d", got, flows[0].inFlight, flows[1].inFlight)
	}
	for range 9 {
		c.creditArrival(&flows[1], 1, 1, now+2*stallTimeout) // Those that were given up, and more.
	}
	if got := drain(&c, flows); len(got) != 4 {
		t.Errorf("%d credits for a window of 4", len(got))
	}
}

// TestCreditsByArrival: what was overtaken earns its credit once.
func TestCreditsByArrival(t *testing.T) {
	cfg, err := Config{Matches: 1, Window: 8, Warmup: -1}.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	rig, err := benchrig.Direct{}.Open(t.Context(), planOf(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer rig.Close()
	g := newGenerator(&cfg, rig, 1)
	drain(&g.loop, g.flows)
	f := &g.flows[0]
	f.seq = 8
	for _, step := range []struct {
		seq  uint32
		left int32 // in flight after it
	}{{0, 7}, {3, 4}, {1, 4}, {3, 4}, {4, 3}, {2, 3}, {7, 0}} {
		g.account(f, &stamp{run: 1, seq: step.seq, due: g.measure}, g.measure+1)
		if f.inFlight != step.left {
			t.Errorf("after number %d: %d in flight, want %d", step.seq, f.inFlight, step.left)
		}
	}
	if g.loop.size != 8 {
		t.Errorf("%d credits, want 8", g.loop.size)
	}
}
