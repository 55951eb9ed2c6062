package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// scenario is one kind of load.
type scenario struct {
	name      string
	about     string
	shape     string
	direction string
	matches   int
	closed    bool      // also measure a closed loop, which saturates both sides
	rates     []float64 // nil: those of the command line
	variants  []string  // if set: only ferry, the C loop and these
	secure    bool      // ferry and coturn over DTLS, and ferry over plain UDP
}

// window is the number of datagrams in flight per flow in a closed loop: with
// hundreds of flows the relay always has work, and no buffer overflows.
const window = 8

// step is one measurement of a scenario.
type step struct {
	kind string  // stepRate or stepClosed
	rate float64 // of stepRate, else 0
}

// The kinds of steps.
const (
	stepRate   = "rate"   // an open loop
	stepClosed = "closed" // a closed loop
)

// steps returns the measurements of a round in order.
func (s *scenario) steps() (list []step) {
	for _, rate := range s.rates {
		list = append(list, step{stepRate, rate})
	}
	if s.closed {
		list = append(list, step{stepClosed, 0})
	}
	return list
}

// lowRate is a rate at which wake-ups cost more than datagrams.
const lowRate = 20_000

var scenarios = []scenario{
	{
		name: "pairs", about: "200 hosts with 1 player each, both ways, spread evenly",
		shape: "pairs", direction: "both", matches: 200, closed: true,
	},
	{
		name: "star-up", about: "20 hosts with 10 players each, players to host, all of a match at once",
		shape: "star", direction: "up", matches: 20, closed: true,
	},
	{
		name: "star-both", about: "20 hosts with 10 players each, both ways, all of a match at once",
		shape: "star", direction: "both", matches: 20, closed: true,
	},
	{
		name: "star-merge", about: "star-up next to a C loop that merges by destination too: what there is to gain here",
		shape: "star", direction: "up", matches: 20, rates: []float64{5 * lowRate}, closed: true,
		variants: []string{"c-merge"},
	},
	{
		name: "dtls", about: "pairs over DTLS",
		shape: "pairs", direction: "both", matches: 200, rates: []float64{lowRate, 2 * lowRate}, closed: true, secure: true,
	},
}

func scenarioNames() (list []string) {
	for _, s := range scenarios {
		list = append(list, s.name)
	}
	return list
}

// chosen returns the selected scenarios with their rates.
func chosen(o options) (list []scenario) {
	for _, s := range scenarios {
		if !wants(o.shapes, s.name) {
			continue
		}
		if s.rates == nil {
			s.rates = o.rates
		}
		list = append(list, s)
	}
	return list
}

// players returns the relays of a scenario in the order of the first round.
func (s *scenario) players(o options) (list []peer) {
	if s.secure {
		for _, p := range append(slices.Clone(secured), peers[0]) {
			if wants(o.only, p.base()) {
				list = append(list, p)
			}
		}
		return list
	}
	multiplexes := o.multiplexes && s.variants == nil && s.shape == "pairs"
	for _, p := range peers {
		if wants(o.only, p.name) && (s.variants == nil || p.name == "ferry" || p.name == "c") {
			list = append(list, p)
		}
	}
	for _, p := range variants {
		if (slices.Contains(s.variants, p.name) || p.name == multiplexed && multiplexes) && wants(o.only, p.base()) {
			list = append(list, p)
		}
	}
	return list
}

// config returns the configuration of a run.
func (s *scenario) config(o options, st step) bench.Config {
	cfg := bench.Config{
		Label: bench.Label{Limits: "off"}, Sources: o.net().sources, AllowRemote: o.remote(),
		Load: bench.Load{
			Shape: s.shape, Direction: s.direction, Matches: s.matches, Rate: st.rate, Payload: o.payload,
			Duration: o.duration, Warmup: cmp.Or(o.warmup, bench.None), Pinned: true, CPU: o.generatorCPU,
		},
	}
	if st.kind == stepClosed {
		cfg.Window = window
	}
	return cfg
}

// estimate returns the approximate duration of all runs.
func estimate(o options) (total time.Duration) {
	const around = 700 * time.Millisecond // set-up and drain
	for _, s := range chosen(o) {
		total += time.Duration(o.rounds*len(s.players(o))*len(s.steps())) * (o.duration + o.warmup + around)
	}
	return total
}

// measureName returns the name of a quantity in tables.
func measureName(kind string, rate float64) string {
	switch kind {
	case kindBusy:
		return fmt.Sprintf("CPU per datagram, closed loop of %d", window)
	case kindCPU:
		return fmt.Sprintf("CPU per datagram at %s/s", thousands(rate))
	}
	return fmt.Sprintf("%s at %s/s", kind, thousands(rate))
}

// thousands formats a rate with separators.
func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
