package bench

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// unevenTraffic has a burst, and datagrams at times that nothing divides.
func unevenTraffic() *traffic {
	return &traffic{players: 3, cycle: 70 * time.Millisecond, datagrams: []trafficDatagram{
		{at: 0, size: 24, player: 0},
		{at: 3 * time.Millisecond, size: 1200, player: 1, down: true},
		{at: 3 * time.Millisecond, size: 1434, player: 1, down: true},
		{at: 3 * time.Millisecond, size: 100, player: 2, down: true},
		{at: 41 * time.Millisecond, size: 55, player: 2},
	}}
}

// TestTrafficSchedule: the schedule has each datagram of each match at its time, and counts
// them to the datagram, at any speed.
func TestTrafficSchedule(t *testing.T) {
	for _, speed := range []float64{0, 1000, 123_456.7} {
		cfg, err := Config{Load: Load{Traffic: "uneven", Matches: 7, Rate: speed}, traffic: unevenTraffic()}.withDefaults(benchrig.Direct{})
		if err != nil {
			t.Fatal(err)
		}
		const start = int64(5e18)
		s := newTrafficSchedule(&cfg, start)
		factor := cfg.Rate / (cfg.traffic.rate() * 7)
		seen, last := map[int][]int64{}, start
		for n := range uint64(5000) {
			next := s.next()
			due, flow := next.due, next.flow
			d := cfg.traffic.datagrams[s.first[0].number%int64(len(cfg.traffic.datagrams))]
			if due < last {
				t.Fatalf("due %d after %d", due, last)
			}
			if due > last {
				if got := newTrafficSchedule(&cfg, start).before(due); n < 500 && got != n {
					t.Fatalf("%d are due before %d, want %d", got, due-start, n)
				}
			}
			if up := flow%6 < 3; up == d.down || flow%3 != int(d.player) {
				t.Fatalf("flow %d for %+v", flow, d)
			}
			seen[flow] = append(seen[flow], due)
			last = due
			s.advance()
		}
		cycle := float64(cfg.traffic.cycle) / factor
		for flow, all := range seen {
			step := 1
			if flow%6 == 4 { // two in a cycle
				step = 2
			}
			for i := step; i < len(all); i++ {
				if got := float64(all[i] - all[i-step]); got < cycle-2 || got > cycle+2 {
					t.Fatalf("flow %d: %v ns after a cycle of %v", flow, got, cycle)
				}
			}
		}
		if len(seen) != 7*4 {
			t.Errorf("%d flows have datagrams", len(seen))
		}
	}
}

// TestTrafficRun: each datagram arrives with its size, and none of the silent flows has a gap.
func TestTrafficRun(t *testing.T) {
	t.Parallel()
	r := run(t, Config{
		Load:    Load{Traffic: "uneven", Matches: 5, Duration: 700 * time.Millisecond, Warmup: -1, Drain: 2 * time.Second},
		traffic: unevenTraffic(),
	}, benchrig.Direct{Header: benchrig.DefaultHeader})
	want := uint64(5 * 10 * len(unevenTraffic().datagrams))
	if r.Offered != want || r.Sent+r.Unsent != want || r.Lost != 0 || r.Corrupt+r.Misdelivered+r.Duplicated != 0 {
		t.Errorf("offered %d, sent %d, unsent %d, lost %d, corrupt %d, misdelivered %d; want %d",
			r.Offered, r.Sent, r.Unsent, r.Lost, r.Corrupt, r.Misdelivered, want)
	}
	l := r.Load
	if l.Traffic != "uneven" || l.Payload != 1434 || l.Players != 3 || l.Shape != shapeStar || l.Flows != 30 {
		t.Errorf("load %+v", l)
	}
	if r.Gaps.Endpoints != 5*3 {
		t.Errorf("datagrams are due to %d endpoints", r.Gaps.Endpoints)
	}
}

// TestTrafficConfig: what contradicts Traffic is an error.
func TestTrafficConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"shape": func(c *Config) { c.Shape = shapePairs }, "payload": func(c *Config) { c.Payload = 100 },
		"window": func(c *Config) { c.Window = 1 }, "direction": func(c *Config) { c.Direction = directionUp },
		"replace": func(c *Config) { c.ReplaceRate = 1 },
	} {
		cfg := Config{Load: Load{Traffic: TrafficProfiles()[0]}}
		change(&cfg)
		if _, err := cfg.withDefaults(benchrig.Direct{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
