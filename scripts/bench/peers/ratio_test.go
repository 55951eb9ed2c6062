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

func TestDoubt(t *testing.T) {
	good := bench.Result{Sent: 1000, Delivered: 1000, Valid: true}
	good.Server.PerDatagram = 3000
	caused := func(side string) func(*bench.Result) {
		return func(r *bench.Result) {
			r.Valid, r.Causes = side == "server", []bench.Cause{{Limit: side, Reason: "the " + side}}
		}
	}
	for _, c := range []struct {
		name string
		edit func(*bench.Result)
		kind string
		want string
	}{
		{"good", func(*bench.Result) {}, stepRate, ""},
		{"steal", caused("machine"), stepRate, "machine"},
		{"generator", caused("generator"), stepRate, "generator"},
		{"generator in a closed loop", caused("generator"), stepClosed, ""},
		{"loss", func(r *bench.Result) { r.LossRatio = 0.01 }, stepRate, "1.00 % lost"},
		{"little loss", caused("server"), stepRate, ""},
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

func TestSpoilt(t *testing.T) {
	run := func(valid bool, sides ...string) (r bench.Result) {
		r.Valid = valid
		for _, side := range sides {
			r.Causes = append(r.Causes, bench.Cause{Limit: side, Reason: "x"})
		}
		return r
	}
	for _, c := range []struct {
		name string
		one  sample
		want bool
	}{
		{"good", sample{}, false},
		{"generator", sample{Bad: "x", Result: run(false, "generator")}, true},
		{"steal", sample{Bad: "x", Result: run(false, "machine")}, true},
		{"the relay lost", sample{Bad: "x", Result: run(true, "server")}, false},
		{"the relay and the generator", sample{Bad: "x", Result: run(false, "generator", "server")}, true},
	} {
		if got := c.one.spoilt(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
