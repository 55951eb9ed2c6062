package main

import (
	"fmt"
	"slices"

	"github.com/ferryrelay/ferry/bench/report"
)

// goal is a target for a ratio.
type goal struct {
	scenario, kind string
	rate           float64 // 0: the highest rate with valid pairs
	ours, base     string
	limit          float64
	more           bool // at least limit, instead of at most
}

var goals = []goal{
	{scenario: "pairs", kind: kindCPU, ours: "ferry", base: "c", limit: 1.05},
	{scenario: "pairs", kind: kindCPU, ours: "ferry", base: "coturn", limit: 0.85},
	{scenario: "pairs", kind: kindCPU, ours: "ferry", base: "pion", limit: 0.70},
	{scenario: "star-up", kind: kindBusy, ours: "ferry", base: "c", limit: 0.45},
	{scenario: "star-up", kind: kindCPU, ours: "ferry", base: "c", limit: 0.45},
	{scenario: "pairs", kind: kindMax, ours: "ferry", base: "c", limit: 0.95, more: true},
	{scenario: "pairs", kind: kindP50, rate: 20_000, ours: "ferry", base: "c", limit: 1.10},
	{scenario: "pairs", kind: kindP99, rate: 20_000, ours: "ferry", base: "c", limit: 1.10},
	{scenario: "pairs", kind: kindP50, rate: 100_000, ours: "ferry", base: "c", limit: 1.10},
	{scenario: "pairs", kind: kindP99, rate: 100_000, ours: "ferry", base: "c", limit: 1.10},
	{scenario: "low-load", kind: kindCPU, rate: lowRate, ours: "ferry-200us", base: "c", limit: 0.75},
	{scenario: "low-load", kind: kindCPU, rate: lowRate, ours: "ferry-500us", base: "c", limit: 0.55},
	{scenario: "dtls", kind: kindCPU, rate: lowRate, ours: "ferry-dtls", base: "coturn-dtls", limit: 0.80},
}

// elsewhere are the goals that need no other relay.
var elsewhere = []string{
	"CPU per datagram with 1 M allocations against 1 k",
	"memory per bound allocation, and of 1 M",
	"allocations on the heap per forwarded datagram",
	"honest BINDs per second on one core, and what they cost forwarding",
}

// notMeasured is the verdict on a goal whose runs were not asked for.
const notMeasured = "not measured in this run"

// outcome is the result of a goal.
type outcome struct {
	What     string        `json:"what"`
	Goal     string        `json:"goal"`
	Ratio    report.Spread `json:"ratio"`
	Measured string        `json:"measured"`
	Verdict  string        `json:"verdict"` // met, missed, or why it is unknown
}

// judge compares a goal with the measured ratio.
func (s *session) judge(g goal) outcome {
	sign := "≤"
	if g.more {
		sign = "≥"
	}
	out := outcome{Goal: fmt.Sprintf("%s %.2f", sign, g.limit), Measured: "–"}
	r, c := s.best(g)
	out.What = fmt.Sprintf("%s: %s, %s / %s", g.scenario, measureName(r.kind, r.rate), title(g.ours), title(g.base))
	out.Ratio = c.Ratio
	switch {
	case c.Ratio.N == 0 && c.Left > 0:
		out.Verdict = fmt.Sprintf("not known: none of %d pairs counts", c.Left)
		return out
	case c.Ratio.N == 0:
		out.Verdict = notMeasured
		return out
	case g.more && c.Ratio.Median >= g.limit, !g.more && c.Ratio.Median <= g.limit:
		out.Verdict = "met"
	default:
		out.Verdict = "missed"
	}
	out.Measured = ratioText(c.Ratio)
	return out
}

// best returns the row of a goal: with rate 0 the highest rate with valid
// pairs.
func (s *session) best(g goal) (row, comparison) {
	if g.kind != kindCPU || g.rate > 0 {
		r := row{g.scenario, g.kind, g.rate}
		return r, s.compare(r, g.ours, g.base)
	}
	var r row
	var c comparison
	for _, rate := range slices.Backward(s.o.rates) {
		r = row{g.scenario, g.kind, rate}
		if c = s.compare(r, g.ours, g.base); c.Ratio.N > 0 {
			break
		}
	}
	return r, c
}

// outcomes returns the results of all goals.
func (s *session) outcomes() (list []outcome) {
	for _, g := range goals {
		list = append(list, s.judge(g))
	}
	return list
}
