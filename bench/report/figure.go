package report

import (
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// Figure is one value of a run.
type Figure struct {
	Name  string  `json:"name"` // unique within a run
	Unit  Unit    `json:"unit"`
	Value float64 `json:"value"`
	Known bool    `json:"known"` // false: was not measured
	// More is true when a higher value is the better one.
	More bool `json:"more"`
}

// Figures are the values of a run that tables and comparisons show, in their
// order. Runs of the same shape have the same names in the same places.
func Figures(r bench.Result) []Figure {
	return append(loadFigures(r), controlFigures(r.Control)...)
}

// loadFigures are all but those of the control plane.
func loadFigures(r bench.Result) []Figure {
	got, server := r.Latency.Samples > 0, r.Server.PID != 0
	arrived := float64(r.Server.Datagrams)
	switches := float64(r.Server.Voluntary + r.Server.Involuntary)
	list := []Figure{
		known("offered", UnitRate, r.OfferedRate, true),
		known("delivered", UnitRate, r.DeliveredRate, true),
		{"loss", UnitShare, r.LossRatio, r.Sent > 0, false},
		lasting("latency mean", r.Latency.Mean, got),
		lasting("latency p50", r.Latency.P50, got),
		lasting("latency p90", r.Latency.P90, got),
		lasting("latency p99", r.Latency.P99, got),
		lasting("latency p99.9", r.Latency.P999, got),
		lasting("latency max", r.Latency.Max, got),
		{"server CPU per datagram", UnitTime, r.Server.PerDatagram, server && arrived > 0, false},
		{"server CPU", UnitShare, quotient(float64(r.Server.Run), float64(r.Server.Wall)), server && r.Server.Wall > 0, false},
		{"server context switches per datagram", UnitNumber, quotient(switches, arrived), server && arrived > 0, false},
		{"server memory (RSS)", UnitBytes, float64(r.Server.RSS), server, false},
		{"server memory per endpoint", UnitBytes, perEndpoint(r), server && r.Setup.RSSAfter > r.Setup.RSSBefore && r.Load.Endpoints > 0, false},
		lasting("setup", r.Setup.Duration, r.Setup.Duration > 0),
		lasting("generator lag p99", r.Generator.Lag.P99, r.Generator.Lag.Samples > 0),
		{"generator busy", UnitShare, r.Generator.Busy, r.Generator.Busy > 0, false},
	}
	return append(append(list, churnFigures(r.Churn)...), netcodeFigures(r)...)
}

// netcodeFigures are what the games of the shape netcode saw.
func netcodeFigures(r bench.Result) (list []Figure) {
	n := r.Netcode
	if n == nil {
		return nil
	}
	for _, s := range []struct {
		name string
		of   *bench.Stream
	}{{"commands", &n.Commands}, {"snapshots", &n.Snapshots}} {
		got := s.of.Latency.Samples > 0
		list = append(list, known(s.name+" delivered", UnitCount, float64(s.of.Delivered), true),
			Figure{s.name + " lost", UnitShare, s.of.LossRatio, s.of.Sent > 0, false},
			lasting(s.name+" p50", s.of.Latency.P50, got), lasting(s.name+" p99", s.of.Latency.P99, got))
	}
	return append(list, lasting("connecting p99", n.Connect.P99, n.Connect.Samples > 0),
		known("connections ended", UnitCount, float64(n.Ended), false),
		Figure{"server CPU per player", UnitShare, quotient(quotient(float64(r.Server.Run), float64(r.Server.Wall)), float64(n.Players)),
			r.Server.Wall > 0 && n.Players > 0, false})
}

func churnFigures(c *bench.Churn) (list []Figure) {
	if c == nil {
		return nil
	}
	list = append(list, known("sessions finished", UnitRate, c.Rate, true),
		known("sessions failed", UnitCount, float64(c.Failed), false),
		known("sessions skipped", UnitCount, float64(c.Skipped), false))
	for _, s := range c.Steps {
		got := s.Latency.Samples > 0
		list = append(list, lasting(s.Name+" p50", s.Latency.P50, got), lasting(s.Name+" p99", s.Latency.P99, got))
	}
	return list
}

func known(name string, unit Unit, v float64, more bool) Figure {
	return Figure{name, unit, v, true, more}
}

func lasting(name string, d time.Duration, ok bool) Figure {
	return Figure{name, UnitTime, float64(d), ok, false}
}

// Text writes the value, or a dash for one that was not measured.
func (f Figure) Text() string {
	if !f.Known {
		return none
	}
	return f.Unit.Format(f.Value)
}

// quotient is 0 when there is nothing to divide by.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// perEndpoint is what the server's memory grew by while the endpoints were set
// up: process memory only, without that of the kernel.
func perEndpoint(r bench.Result) float64 {
	return quotient(float64(r.Setup.RSSAfter)-float64(r.Setup.RSSBefore), float64(r.Load.Endpoints))
}

// drops lists what was lost and where the machine says it happened. Zeros are
// part of it: they were looked for.
func drops(r bench.Result) []Figure {
	counts := []struct {
		name string
		n    uint64
	}{
		{"lost on the way", r.Lost},
		{"duplicated", r.Duplicated},
		{"reordered", r.Reordered},
		{"too late to tell", r.Late},
		{"corrupt", r.Corrupt},
		{"delivered to another endpoint", r.Misdelivered},
		{"refused by the generator's kernel", r.SendFailed},
		{"due but never sent", r.Unsent},
		{"dropped on the generator's sockets", r.Generator.Drops},
		{"machine: receive buffer full", r.System.RcvbufErrors},
		{"machine: send buffer full", r.System.SndbufErrors},
		{"machine: in errors", r.System.InErrors},
		{"machine: no such port", r.System.NoPorts},
	}
	var list []Figure
	for _, c := range counts {
		list = append(list, known(c.name, UnitCount, float64(c.n), false))
	}
	for _, name := range sorted(r.Errors) {
		list = append(list, known("error: "+name, UnitCount, float64(r.Errors[name]), false))
	}
	return list
}
