package main

import (
	"slices"

	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// Kinds of compared quantities.
const (
	kindCPU = "CPU"
	kindP50 = "p50"
	kindP99 = "p99"
	// kindBusy is CPU per datagram in a closed loop.
	kindBusy = "busy"
)

// value returns a sample's value of a kind, in nanoseconds.
func (s *sample) value(kind string) float64 {
	switch kind {
	case kindP50:
		return float64(s.Result.Latency.P50)
	case kindP99:
		return float64(s.Result.Latency.P99)
	}
	return s.Result.Server.PerDatagram
}

// row is one quantity of one scenario.
type row struct {
	scenario, kind string
	rate           float64 // 0 for kindBusy
}

// rows returns all quantities of a scenario with samples, in order.
func (s *session) rows(sc scenario) (list []row) {
	for _, rate := range sc.rates {
		list = append(list, row{sc.name, kindCPU, rate})
	}
	if sc.closed {
		list = append(list, row{sc.name, kindBusy, 0})
	}
	for _, kind := range []string{kindP50, kindP99} {
		for _, rate := range sc.rates {
			list = append(list, row{sc.name, kind, rate})
		}
	}
	return slices.DeleteFunc(list, func(r row) bool {
		return !slices.ContainsFunc(s.samples, func(one sample) bool { return r.of(&one) })
	})
}

// of reports whether a sample belongs to the row.
func (r row) of(s *sample) bool {
	kind := stepRate
	if r.kind == kindBusy {
		kind = stepClosed
	}
	return s.Scenario == r.scenario && s.Rate == r.rate && s.Step == kind
}

// comparison is one peer against another in one row.
type comparison struct {
	Ratio figures.Spread
	Left  int // invalid pairs
}

// compare pairs the runs of each round. It ignores the first round unless it is
// the only one.
func (s *session) compare(r row, ours, base string) (c comparison) {
	var a, b []float64
	for round := 1; round <= s.o.rounds; round++ {
		x, y := s.find(r, base, round), s.find(r, ours, round)
		if x == nil || y == nil || round == 1 && s.o.rounds > 1 {
			continue
		}
		if x.Bad != "" || y.Bad != "" {
			c.Left++
			continue
		}
		a, b = append(a, x.value(r.kind)), append(b, y.value(r.kind))
	}
	c.Ratio = figures.PairedRatio(a, b)
	return c
}

func (s *session) find(r row, peer string, round int) *sample {
	i := slices.IndexFunc(s.samples, func(one sample) bool {
		return one.Peer == peer && one.Round == round && r.of(&one)
	})
	if i < 0 {
		return nil
	}
	return &s.samples[i]
}

// spread returns a relay's own values over the valid rounds.
func (s *session) spread(r row, peer string) figures.Spread {
	var list []float64
	for round := 1; round <= s.o.rounds; round++ {
		if one := s.find(r, peer, round); one != nil && one.Bad == "" && (round > 1 || s.o.rounds == 1) {
			list = append(list, one.value(r.kind))
		}
	}
	return figures.Median(list)
}

// took returns the relays of a scenario that have samples.
func (s *session) took(sc scenario) (list []string) {
	for _, p := range sc.players(s.o) {
		if slices.ContainsFunc(s.samples, func(one sample) bool { return one.Scenario == sc.name && one.Peer == p.name }) {
			list = append(list, p.name)
		}
	}
	return list
}
