package main

import (
	"math"
	"testing"
)

var test = Costs{Wake: 5e-6, Batch: 1e-6, Datagram: 2e-6, MaxBatch: 64, Buffer: 4096}

// TestNothingVanishes: what arrives is sent, dropped or still waits, at every load.
func TestNothingVanishes(t *testing.T) {
	for _, load := range []float64{0.01, 0.5, 0.99, 3} {
		for _, burst := range []int{1, 50} {
			r := simulate(test, Load{Rate: load * test.saturation(), Burst: burst, Share: 0.5}, 0.5, 3)
			if r.Arrived != r.Sent+r.Dropped+r.Left || r.Arrived == 0 {
				t.Errorf("load %v, bursts of %d: %d arrived, %d sent, %d dropped, %d left", load, burst, r.Arrived, r.Sent, r.Dropped, r.Left)
			}
			if overloaded := load > 1; overloaded != (r.Dropped > 0) {
				t.Errorf("load %v, bursts of %d: %d dropped", load, burst, r.Dropped)
			}
			if sent := float64(r.Sent) / r.Time; load > 1 && math.Abs(sent/test.saturation()-1) > 0.02 {
				t.Errorf("an overloaded worker sends %.0f/s, want %.0f", sent, test.saturation())
			}
		}
	}
}

// TestSingleServer: without batches and sleeps the worker is a queue with one server and a
// fixed service time (M/D/1), whose mean wait is known.
func TestSingleServer(t *testing.T) {
	c := Costs{Datagram: 10e-6, MaxBatch: 1, Buffer: 1 << 20}
	for _, load := range []float64{0.3, 0.6, 0.8} {
		r := simulate(c, Load{Rate: load / c.Datagram}, 20, 4)
		mean := 0.0
		for _, d := range r.delays {
			mean += d / float64(len(r.delays))
		}
		want := c.Datagram * (1 + load/(2*(1-load)))
		if math.Abs(mean/want-1) > 0.03 {
			t.Errorf("load %v: mean delay %.2f µs, want %.2f", load, mean*1e6, want*1e6)
		}
	}
}

// TestMonotony: more load means larger batches, cheaper datagrams and longer delays.
func TestMonotony(t *testing.T) {
	var last Run
	for i, load := range []float64{0.05, 0.3, 0.6, 0.9} {
		r := simulate(test, Load{Rate: load * test.saturation()}, 1, 5)
		if i > 0 && (r.PerDatagram() > last.PerDatagram() || r.BatchSize() < last.BatchSize()) {
			t.Errorf("load %v: %.2f µs in batches of %.1f after %.2f µs and %.1f", load, r.PerDatagram()*1e6, r.BatchSize(),
				last.PerDatagram()*1e6, last.BatchSize())
		}
		last = r
	}
	g := Game{Players: 10, UpHz: 30, DownHz: 30, UpBytes: 60, DownBytes: 300}
	few, many := capacity(large, g, test, control, 0.5), capacity(large, g, test, control, 0.7)
	if few.Players >= many.Players {
		t.Errorf("%d players at half load, %d at 70 %%", few.Players, many.Players)
	}
	if small := imbalance(g, 1_000_000, 62, 1); small > imbalance(g, 10_000, 62, 1) || small < 1 {
		t.Errorf("imbalance of a million players %v", small)
	}
}

// TestLimits: each part of a machine can be the first limit.
func TestLimits(t *testing.T) {
	g := Game{Players: 10, UpHz: 30, DownHz: 30, UpBytes: 60, DownBytes: 300}
	for want, change := range map[string]func(m *Machine, k *Control){
		"the most loaded worker":            func(m *Machine, _ *Control) { m.Workers = 2 },
		"datagrams per second of the cards": func(m *Machine, _ *Control) { m.NICMpps = 0.01 },
		"line rate of the cards":            func(m *Machine, _ *Control) { m.NICGbps = 0.01 },
		"control":                           func(_ *Machine, k *Control) { k.Bind = 1 },
		"memory":                            func(m *Machine, _ *Control) { m.MemoryGiB = 0.001 },
	} {
		m, k := large, control
		change(&m, &k)
		if x := capacity(m, g, test, k, 0.7); x.Limit != want {
			t.Errorf("the first limit is %s, want %s", x.Limit, want)
		}
	}
}

// TestFit: the costs of simulated runs are found again, as far as they matter.
func TestFit(t *testing.T) {
	c := test
	c.Cooling = 30e-6
	point := func(rate float64) Point {
		r := simulate(c, Load{Rate: rate}, 2, 6)
		return Point{rate, r.PerDatagram(), r.BatchSize()}
	}
	got := fit([]Point{point(2_000), point(30_000), point(150_000), {0, c.Datagram + c.Batch/40, 40}}, c.MaxBatch, c.Buffer)
	for _, rate := range []float64{5_000, 60_000, 250_000} {
		if want := point(rate); math.Abs(got.perDatagram(want)/want.PerDatagram-1) > 0.05 {
			t.Errorf("at %.0f/s %.2f µs, want %.2f; fitted %+v", rate, got.perDatagram(want)*1e6, want.PerDatagram*1e6, got)
		}
	}
}
