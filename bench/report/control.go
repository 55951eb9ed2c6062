package report

import (
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// controlFigures are what the control plane did and what forwarding did
// meanwhile. All details are in controlTables.
func controlFigures(c *bench.Control) (list []Figure) {
	if c == nil {
		return nil
	}
	if b := c.Without; b != nil {
		list = append(list,
			lasting("p99 without control plane", b.Latency.P99, b.Latency.Samples > 0),
			lasting("p99 with control plane", c.With.Latency.P99, c.With.Latency.Samples > 0),
			lasting("p99 moved by", c.P99Moved, c.Compares()))
	}
	for _, k := range kinds(c) {
		got := k.calls.Latency.Samples > 0
		list = append(list, known(k.name+" answered", UnitRate, k.calls.AnsweredRate, true),
			lasting(k.name+" p50", k.calls.Latency.P50, got), lasting(k.name+" p99", k.calls.Latency.P99, got))
	}
	return list
}

// kind is one kind of calls of the control plane.
type kind struct {
	name  string
	calls *bench.Calls
}

// kinds are those that a run had.
func kinds(c *bench.Control) (list []kind) {
	for _, k := range []kind{{"BINDs", c.Binds}, {"allocations", c.Allocations}} {
		if k.calls != nil {
			list = append(list, k)
		}
	}
	return list
}

// controlTables are forwarding without and with work for the control plane, and
// that work. There are none for runs without it.
func controlTables(r bench.Result) (list []table) {
	c := r.Control
	if c == nil {
		return nil
	}
	if c.Without != nil {
		list = append(list, partsTable(c))
	}
	return append(list, callsTable(r.Load, c))
}

// partsTable sets the two parts of a run beside one another.
func partsTable(c *bench.Control) table {
	a, b := c.Without, &c.With
	t := table{Caption: "Forwarding without and with work for the control plane", Head: []string{"forwarding", "without", "with", "moved by"}}
	row := func(name string, u Unit, of func(*bench.Part) (v float64, known bool)) {
		x, okX := of(a)
		y, okY := of(b)
		moved := none
		if okX && okY {
			moved = signed(u, y-x)
		}
		t.Rows = append(t.Rows, []string{name, Figure{Unit: u, Value: x, Known: okX}.Text(), Figure{Unit: u, Value: y, Known: okY}.Text(), moved})
	}
	lasts := func(get func(*bench.Part) (bench.Latency, time.Duration)) func(*bench.Part) (float64, bool) {
		return func(p *bench.Part) (float64, bool) {
			l, d := get(p)
			return float64(d), l.Samples > 0
		}
	}
	t.Rows = append(t.Rows, []string{"measured", UnitTime.Format(float64(a.Duration)), UnitTime.Format(float64(b.Duration)), ""})
	row("delivered", UnitRate, func(p *bench.Part) (float64, bool) { return p.DeliveredRate, p.Duration > 0 })
	row("loss", UnitShare, func(p *bench.Part) (float64, bool) { return p.LossRatio, p.Sent > 0 })
	row("latency p50", UnitTime, lasts(func(p *bench.Part) (bench.Latency, time.Duration) { return p.Latency, p.Latency.P50 }))
	row("latency p99", UnitTime, lasts(func(p *bench.Part) (bench.Latency, time.Duration) { return p.Latency, p.Latency.P99 }))
	row("latency p99.9", UnitTime, lasts(func(p *bench.Part) (bench.Latency, time.Duration) { return p.Latency, p.Latency.P999 }))
	row("generator lag p99", UnitTime, lasts(func(p *bench.Part) (bench.Latency, time.Duration) { return p.Lag, p.Lag.P99 }))
	row("server CPU", UnitShare, func(p *bench.Part) (float64, bool) {
		return quotient(float64(p.Server.Run), float64(p.Server.Wall)), p.Server.Wall > 0
	})
	return t
}

// signed writes a difference with its sign.
func signed(u Unit, v float64) string {
	if v > 0 {
		return "+" + u.Format(v)
	}
	return u.Format(v)
}

// callsTable has a row for each kind of calls.
func callsTable(l bench.Load, c *bench.Control) table {
	t := table{
		Caption: "Work of the control plane meanwhile",
		Head:    []string{"control plane", "asked for", "offered", "sent", "answered", "refused", "answered/s", "p50", "p99"},
	}
	count := func(n uint64) string { return UnitCount.Format(float64(n)) }
	for _, k := range kinds(c) {
		asked := UnitRate.Format(l.BindRate)
		if k.calls == c.Allocations {
			asked = allocateText(l)
		}
		p50, p99 := none, none
		if lat := k.calls.Latency; lat.Samples > 0 {
			p50, p99 = UnitTime.Format(float64(lat.P50)), UnitTime.Format(float64(lat.P99))
		}
		t.Rows = append(t.Rows, []string{
			k.name, asked, count(k.calls.Offered), count(k.calls.Sent), count(k.calls.Answered),
			count(k.calls.Refused), UnitRate.Format(k.calls.AnsweredRate), p50, p99,
		})
	}
	return t
}

// allocateText says how fast allocations were asked for.
func allocateText(l bench.Load) string {
	if l.AllocateRate > 0 {
		return fmt.Sprintf("%s, %d at a time", UnitRate.Format(l.AllocateRate), l.AllocateWorkers)
	}
	return fmt.Sprintf("all it can, %d at a time", l.AllocateWorkers)
}

// controlDoubts says that the generator had its part in what moved.
func controlDoubts(c *bench.Control) (list []string) {
	if !c.Compares() {
		return nil
	}
	lag := c.With.Lag.P99 - c.Without.Lag.P99
	if c.P99Moved > 0 && lag > c.P99Moved/2 {
		list = append(list, fmt.Sprintf("the generator's own lag moved by %s at p99 while forwarding moved by %s: that is not all the server's",
			UnitTime.Format(float64(lag)), UnitTime.Format(float64(c.P99Moved))))
	}
	for _, k := range kinds(c) {
		if k.calls.Sent < k.calls.Offered {
			list = append(list, fmt.Sprintf("%s of %s %s could not be sent in time",
				UnitCount.Format(float64(k.calls.Offered-k.calls.Sent)), UnitCount.Format(float64(k.calls.Offered)), k.name))
		}
	}
	return list
}

// split marks where the control plane begins to work in a plot over time.
func (p *plot) split(a area, r bench.Result) {
	at, ok := a.x.at(r.Load.Baseline.Seconds())
	if r.Control == nil || r.Control.Without == nil || !ok {
		return
	}
	x := px(a.px(at))
	p.Lines = append(p.Lines, line{
		Class: "ideal", Name: "BINDs and allocations begin",
		Path: fmt.Sprintf("M%s %sL%s %s", x, px(a.py(0)), x, px(a.py(1))),
	})
}

// distribution is a line of the plot over percentiles.
type distribution struct {
	name    string
	latency bench.Latency
}

// distributions are one per run, or two where there is forwarding without and
// with work for the control plane.
func distributions(runs []bench.Result, names []string) (list []distribution) {
	for i, r := range runs {
		if c := r.Control; c.Compares() {
			list = append(list, distribution{names[i] + ", without", c.Without.Latency}, distribution{names[i] + ", with", c.With.Latency})
			continue
		}
		list = append(list, distribution{names[i], r.Latency})
	}
	return list
}
