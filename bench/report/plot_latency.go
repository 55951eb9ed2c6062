package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

func timeLabel(ns float64) string { return UnitTime.Format(ns) }

// timeTick writes a round time without the zeros that digits adds.
func timeTick(ns float64) string {
	number, unit, _ := strings.Cut(UnitTime.Format(ns), " ")
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + unit
}

// percentilePlot has a line per run over a scale of nines.
func percentilePlot(runs []bench.Result, names []string) plot {
	const id, title = "percentiles", "Latency by percentile"
	var all []series
	var values []float64
	most := 0.0
	numbers := table{Caption: title, Head: []string{"run", "percentile", "latency µs"}}
	for i, d := range distributions(runs, names) {
		s := series{name: d.name, class: class(i)}
		for _, q := range d.latency.Series {
			x, y := nines(q.Percent, d.latency.Samples), float64(q.Value)
			most = max(most, x)
			values = append(values, y)
			percent := strconv.FormatFloat(q.Percent, 'f', -1, 64)
			s.x, s.y = append(s.x, x), append(s.y, y)
			s.titles = append(s.titles, fmt.Sprintf("%s: %s %% within %s", d.name, percent, timeLabel(y)))
			numbers.Rows = append(numbers.Rows, []string{d.name, percent, micros(y)})
		}
		all = append(all, s)
	}
	if len(values) == 0 {
		return empty(id, title, "No run has samples of latency.")
	}
	a := area{ninesScale(most), logScale(values, timeTick), plotHeight}
	p := newPlot(id, title, "A line per run: which share of the datagrams arrived within which time. Further right are ever rarer, slower datagrams.", a)
	p.XLabel, p.YLabel = "share of datagrams that were at least as fast", "latency from the intended time"
	p.draw(a, all...)
	p.Numbers = numbers
	return p
}

// secondsOf returns one value per second of a run.
func secondsOf(r bench.Result, get func(bench.Second) float64) (values []float64) {
	for _, s := range r.Seconds {
		values = append(values, get(s))
	}
	return values
}

// over is what a plot over time draws of a second.
type over struct {
	name string
	get  func(bench.Second) float64
}

func latencies() []over {
	return []over{
		{"p50", func(s bench.Second) float64 { return float64(s.P50) }},
		{"p99", func(s bench.Second) float64 { return float64(s.P99) }},
		{"max", func(s bench.Second) float64 { return float64(s.Max) }},
	}
}

func counts() []over {
	return []over{
		{"offered", func(s bench.Second) float64 { return float64(s.Offered) }},
		{"sent", func(s bench.Second) float64 { return float64(s.Sent) }},
		{"delivered", func(s bench.Second) float64 { return float64(s.Delivered) }},
	}
}

// timeScale spans all seconds of a run, each of which ends where the next one
// begins.
func timeScale(r bench.Result) scale {
	first, last, _ := extent(secondsOf(r, func(s bench.Second) float64 { return float64(s.At) }), false)
	return exactScale(first, last+1, func(v float64) string { return digitsShort(v) + " s" })
}

// digitsShort writes whole numbers without a point.
func digitsShort(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// timeSeries returns one series for each of what. A point stands in the middle
// of its second.
func timeSeries(r bench.Result, what []over, text func(float64) string) (all []series) {
	at := secondsOf(r, func(s bench.Second) float64 { return float64(s.At) + 0.5 })
	for i, w := range what {
		s := series{name: w.name, class: class(i), x: at, y: secondsOf(r, w.get)}
		for j := range at {
			s.titles = append(s.titles, fmt.Sprintf("second %d: %s %s", r.Seconds[j].At, w.name, text(s.y[j])))
		}
		all = append(all, s)
	}
	return all
}

// shadeEnds marks what lies outside of the measured interval.
func (p *plot) shadeEnds(a area, r bench.Result) {
	p.band(a, a.x.lo, 0, "warm-up")
	p.band(a, r.Load.Duration.Seconds(), a.x.hi, "after the last was due")
}

// latencyOverTime has p50, p99 and the maximum of each second of one run. Y
// spans those of all runs, so that their plots can be compared by eye.
func latencyOverTime(i int, r bench.Result, name string, all []bench.Result) plot {
	id, title := fmt.Sprintf("latency-%d", i+1), "Latency over time: "+name
	if len(secondsPositive(r)) == 0 {
		return empty(id, title, "No datagram arrived in any second of the run.")
	}
	var values []float64
	for _, other := range all {
		values = append(values, secondsPositive(other)...)
	}
	a := area{timeScale(r), logScale(values, timeTick), plotHeight}
	p := newPlot(id, title, "Median, 99th percentile and maximum of the latency of what arrived in each second. Shaded seconds are not part of the measured interval.", a)
	p.XLabel, p.YLabel = "since the start of the measured interval", "latency from the intended time"
	p.shadeEnds(a, r)
	p.draw(a, timeSeries(r, latencies(), timeLabel)...)
	p.split(a, r)
	p.Numbers = table{Caption: title, Head: []string{"second", "p50 µs", "p99 µs", "max µs"}}
	for _, s := range r.Seconds {
		p.Numbers.Rows = append(p.Numbers.Rows, []string{strconv.Itoa(s.At), micros(float64(s.P50)), micros(float64(s.P99)), micros(float64(s.Max))})
	}
	return p
}

// secondsPositive returns all latencies of a run's seconds that can be drawn.
func secondsPositive(r bench.Result) (values []float64) {
	for _, w := range latencies() {
		for _, v := range secondsOf(r, w.get) {
			if v > 0 {
				values = append(values, v)
			}
		}
	}
	return values
}
