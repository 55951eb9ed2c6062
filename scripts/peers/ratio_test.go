package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// pretend is a session of pairs at 20,000/s; figures are CPU ns per datagram by
// peer and round, 0 for a round that does not count.
func pretend(rounds int, figures map[string][]float64) *session {
	s := &session{o: options{rounds: rounds, rates: []float64{lowRate}, payload: 112, shapes: []string{"pairs"}}}
	for round := 1; round <= rounds; round++ {
		for _, p := range peers {
			if list := figures[p.name]; len(list) >= round {
				one := sample{Scenario: "pairs", Peer: p.name, Round: round, Step: stepRate, Rate: lowRate}
				one.Result.Server.PerDatagram = list[round-1]
				one.Result.Latency.P50 = time.Duration(list[round-1])
				if one.Bad = ""; list[round-1] == 0 {
					one.Bad = "it was noisy"
				}
				s.samples = append(s.samples, one)
			}
		}
	}
	return s
}

func TestCompare(t *testing.T) {
	r := row{"pairs", kindCPU, lowRate}
	for _, c := range []struct {
		name           string
		rounds         int
		ferry, c       []float64
		median, lo, hi float64
		n, left        int
	}{
		{"first round does not count", 4, []float64{900, 10, 20, 30}, []float64{1, 10, 10, 10}, 2, 1, 3, 3, 0},
		{"one round counts", 1, []float64{3}, []float64{2}, 1.5, 1.5, 1.5, 1, 0},
		{"ratio of pairs, not of medians", 4, []float64{1, 10, 20, 30}, []float64{1, 30, 20, 10}, 1, 1. / 3, 3, 3, 0},
		{"bad pairs are left out", 4, []float64{1, 0, 20, 30}, []float64{1, 10, 10, 0}, 2, 2, 2, 1, 2},
		{"a missing run is no pair", 3, []float64{1, 10, 10}, []float64{1, 5}, 2, 2, 2, 1, 0},
		{"nothing", 2, nil, []float64{1, 2}, 0, 0, 0, 0, 0},
	} {
		got := pretend(c.rounds, map[string][]float64{"ferry": c.ferry, "c": c.c}).compare(r, "ferry", "c")
		if got.Ratio.N != c.n || got.Left != c.left || math.Abs(got.Ratio.Median-c.median) > 1e-9 ||
			math.Abs(got.Ratio.Min-c.lo) > 1e-9 || math.Abs(got.Ratio.Max-c.hi) > 1e-9 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestJudge(t *testing.T) {
	s := pretend(2, map[string][]float64{"ferry": {1, 104}, "c": {1, 100}, "coturn": {1, 100}, "pion": {1, 0}})
	g := goal{scenario: "pairs", kind: kindCPU, ours: "ferry", base: "c", limit: 1.05}
	for _, c := range []struct {
		name string
		edit func(*goal)
		want string
	}{
		{"below", func(*goal) {}, "met"},
		{"above", func(g *goal) { g.limit = 1.03 }, "missed"},
		{"at least", func(g *goal) { g.more = true }, "missed"},
		{"at least, reached", func(g *goal) { g.more, g.limit = true, 1.04 }, "met"},
		{"latency", func(g *goal) { g.kind, g.rate = kindP50, lowRate }, "met"},
		{"bad runs", func(g *goal) { g.base = "pion" }, "not known: none of 1 pairs counts"},
		{"another rate", func(g *goal) { g.rate = 100_000 }, "not measured in this run"},
		{"no search", func(g *goal) { g.kind = kindMax }, "not measured in this run"},
	} {
		one := g
		c.edit(&one)
		if got := s.judge(one); got.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", c.name, got, c.want)
		}
	}
	if got := s.judge(g); !strings.Contains(got.What, "at 20,000/s, ferry / C loop") || got.Goal != "≤ 1.05" {
		t.Errorf("the goal reads %+v", got)
	}
}

// TestBestRate verifies that a goal without a rate uses the highest rate that
// both relays sustained.
func TestBestRate(t *testing.T) {
	s := pretend(2, map[string][]float64{"ferry": {1, 2}, "c": {1, 2}})
	s.o.rates = append(s.o.rates, 50_000, 100_000)
	for _, one := range s.samples[:4:4] {
		one.Rate = 50_000
		s.samples = append(s.samples, one)
		one.Rate, one.Bad = 100_000, "9 % lost"
		s.samples = append(s.samples, one)
	}
	r, c := s.best(goal{scenario: "pairs", kind: kindCPU, ours: "ferry", base: "c"})
	if r.rate != 50_000 || c.Ratio.N != 1 {
		t.Errorf("judged at %.0f/s with %+v", r.rate, c)
	}
}

func TestDoubt(t *testing.T) {
	good := bench.Result{Sent: 1000, Delivered: 1000, Limit: bench.LimitNone}
	good.Server.PerDatagram = 3000
	good.System = bench.System{Idle: 1000, Steal: 5}
	for _, c := range []struct {
		name string
		edit func(*bench.Result)
		kind string
		want string
	}{
		{"good", func(*bench.Result) {}, stepRate, ""},
		{"steal", func(r *bench.Result) { r.System.Steal = 20 }, stepRate, "hypervisor"},
		{"generator", func(r *bench.Result) { r.Limit = bench.LimitGenerator }, stepRate, "generator"},
		{"generator in a search", func(r *bench.Result) { r.Limit = bench.LimitGenerator }, stepSearch, ""},
		{"generator in a closed loop", func(r *bench.Result) { r.Limit = bench.LimitGenerator }, stepClosed, ""},
		{"loss", func(r *bench.Result) { r.LossRatio = 0.01 }, stepRate, "1.00 % lost"},
		{"little loss", func(r *bench.Result) { r.LossRatio, r.Limit = 0.0005, bench.LimitServer }, stepRate, ""},
		{"nothing", func(r *bench.Result) { r.Delivered = 0 }, stepRate, "nothing"},
		{"no time", func(r *bench.Result) { r.Server.PerDatagram = 0 }, stepRate, "CPU"},
	} {
		r := good
		c.edit(&r)
		if got := doubt(&r, c.kind); got != c.want && (c.want == "" || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestCeiling verifies that the highest rate of a search is valid only if the
// relay failed above it.
func TestCeiling(t *testing.T) {
	run := func(rate, loss float64, drops uint64) bench.Result {
		r := bench.Result{LossRatio: loss, LimitReason: "reason"}
		r.Load.Rate, r.Generator.Drops = rate, drops
		return r
	}
	best := run(100, 0, 0)
	for _, c := range []struct {
		name string
		all  []bench.Result
		ok   bool
	}{
		{"the relay lost", []bench.Result{best, run(200, 0.1, 0)}, true},
		{"only a lower rate lost", []bench.Result{run(50, 0.1, 0), best}, false},
		{"the generator was late", []bench.Result{best, run(200, 0, 0)}, false},
		{"the generator lost", []bench.Result{best, run(200, 0.1, 7)}, false},
		{"the lowest failure decides: relay", []bench.Result{best, run(400, 0, 0), run(400, 0, 0), run(200, 0.1, 0)}, true},
		{"the lowest failure decides: generator", []bench.Result{best, run(400, 0.1, 0), run(200, 0, 0)}, false},
		{"one of two tries", []bench.Result{best, run(200, 0.1, 0), run(200, 0, 0)}, true},
		{"the other of two tries", []bench.Result{best, run(200, 0, 0), run(200, 0.1, 0)}, true},
		{"nothing failed", []bench.Result{best}, false},
	} {
		if got := ceiling(&best, c.all); (got == "") != c.ok {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestSpoilt(t *testing.T) {
	for _, c := range []struct {
		name string
		one  sample
		want bool
	}{
		{"good", sample{}, false},
		{"generator", sample{Bad: "x", Result: bench.Result{Limit: bench.LimitGenerator}}, true},
		{"steal", sample{Bad: "x", Result: bench.Result{Limit: bench.LimitNone}}, true},
		{"the relay lost", sample{Bad: "x", Result: bench.Result{Limit: bench.LimitServer}}, false},
		{"a search", sample{Bad: "x", Step: stepSearch, Result: bench.Result{Limit: bench.LimitGenerator}}, false},
	} {
		if got := c.one.spoilt(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
