package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/bench"
)

type plot struct {
	ID    string   `json:"id"`
	Title string   `json:"title"`
	Desc  string   `json:"-"`
	Empty string   `json:"-"` // why there is nothing to draw
	X     axis     `json:"x"`
	Y     axis     `json:"y"`
	Lines []line   `json:"lines"`
	Marks []number `json:"marks"` // vertical lines, and shades before the first and after the last of two
	At    []number `json:"at"`    // of the points of all lines, rising
}

// table is a table of text cells. Each row has the length of Head.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

type axis struct {
	Label string `json:"label"`
	Kind  string `json:"kind"` // count; time, ns; nines, see countNines; seconds
	Log   bool   `json:"log"`  // shows positive values only
}

func (a axis) format(v number) string {
	switch f := float64(v); {
	case math.IsNaN(f):
		return dash
	case a.Kind == "time":
		return UnitTime.Format(f)
	case a.Kind == "nines":
		return strconv.FormatFloat(100-100/math.Pow(10, f), 'g', 7, 64) + " %"
	default:
		return groupDigits(strconv.FormatFloat(f, 'f', -1, 64))
	}
}

// line is a series of a plot: a value for each of plot.At, NaN for none.
type line struct {
	Name   string   `json:"name"`
	Values []number `json:"values"`
	points map[number]number
}

// number is null in JSON if it is not finite.
type number float64

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// MarshalJSON implements [json.Marshaler].
func (n number) MarshalJSON() ([]byte, error) {
	if !isFinite(float64(n)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// addLine adds a line, with NaN for values that the axis cannot show, unless it has no others.
func (p *plot) addLine(name string, points map[number]number) {
	l := line{Name: name, points: map[number]number{}}
	empty := true
	for x, y := range points {
		hidden := !isFinite(float64(y)) || y < 0 || y == 0 && p.Y.Log || p.Y.Kind == "time" && float64(y) >= never
		if hidden {
			y = number(math.NaN())
		}
		if isFinite(float64(x)) {
			l.points[x], empty = y, empty && hidden
		}
	}
	if !empty {
		p.Lines = append(p.Lines, l)
	}
}

// align sets At and the values of all lines. Without lines the plot is empty for a reason.
func (p plot) align(empty string) plot {
	if len(p.Lines) == 0 {
		p.Empty = empty
		return p
	}
	all := map[number]bool{}
	for _, l := range p.Lines {
		for x := range l.points {
			all[x] = true
		}
	}
	p.At = slices.Sorted(maps.Keys(all))
	for i := range p.Lines {
		l := &p.Lines[i]
		for _, x := range p.At {
			y, ok := l.points[x]
			if !ok {
				y = number(math.NaN())
			}
			l.Values = append(l.Values, y)
		}
	}
	return p
}

func (p plot) numbers() table {
	t := table{Caption: p.Title + ": " + p.Y.Label, Head: []string{p.X.Label}}
	for i, x := range p.At {
		row := []string{p.X.format(x)}
		for _, l := range p.Lines {
			if i == 0 {
				t.Head = append(t.Head, l.Name)
			}
			row = append(row, p.Y.format(l.Values[i]))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// countNines returns the number of nines of a percentile: 90 is 1, 99 is 2,
// 99.9 is 3. 100 % is the position of the last of n samples.
func countNines(percent float64, samples uint64) float64 {
	last := math.Log10(max(float64(samples), 1))
	if percent >= 100 {
		return last
	}
	return min(max(-math.Log10(1-percent/100), 0), max(last, 0))
}

// percentilePlot returns a plot of latency over percentiles with a line per run.
func percentilePlot(runs []bench.Result, names []string) plot {
	p := plot{
		ID: "percentiles", Title: "Latency by percentile",
		Desc: "Which share of the datagrams offered arrived within which time. A line ends where the lost ones begin.",
		X:    axis{Label: "share that was at least as fast", Kind: "nines"}, Y: axis{Label: "latency from the due time", Kind: "time", Log: true},
	}
	for i, r := range runs {
		points := map[number]number{}
		for _, q := range r.Latency.Series {
			points[number(countNines(q.Percent, r.Latency.Samples+r.Latency.Lost))] = number(q.Value)
		}
		p.addLine(names[i], points)
	}
	return p.align("No run has samples of latency.")
}

type secondValue struct {
	name string
	get  func(bench.Second) float64
}

var (
	latencies = []secondValue{
		{"p50", func(s bench.Second) float64 { return float64(s.P50) }},
		{"p99", func(s bench.Second) float64 { return float64(s.P99) }},
		{"max", func(s bench.Second) float64 { return float64(s.Max) }},
	}
	counts = []secondValue{
		{"offered", func(s bench.Second) float64 { return float64(s.Offered) }},
		{"sent", func(s bench.Second) float64 { return float64(s.Sent) }},
		{"delivered", func(s bench.Second) float64 { return float64(s.Delivered) }},
	}
)

// plotsOverTime returns plots of the latency and of the counts of each second of a run.
func plotsOverTime(i int, r bench.Result, name string) []plot {
	x := axis{Label: "second of the measured interval", Kind: "seconds"}
	latency := plot{
		ID: fmt.Sprintf("latency-%d", i+1), Title: "Latency over time: " + name,
		Desc: "Latency of what arrived in each second. Shaded seconds are not measured.",
		X:    x, Y: axis{Label: "latency from the due time", Kind: "time", Log: true},
	}
	rates := plot{
		ID: fmt.Sprintf("rates-%d", i+1), Title: "Datagrams over time: " + name,
		Desc: "Datagrams that were due, sent and delivered in each second. Where delivered is below sent, datagrams were lost or are on their way.",
		X:    x, Y: axis{Label: "datagrams in the second", Kind: "count"},
	}
	for _, of := range []struct {
		p      *plot
		values []secondValue
	}{{&latency, latencies}, {&rates, counts}} {
		p := of.p
		p.Marks = []number{0, number(r.Measured.Seconds())}
		for _, v := range of.values {
			points := map[number]number{}
			for _, s := range r.Seconds {
				points[number(s.At)] = number(v.get(s))
			}
			p.addLine(v.name, points)
		}
	}
	return []plot{latency.align("No datagram arrived in any second of the run."), rates.align("The run has no seconds.")}
}
