package report

import (
	"fmt"
	"math"

	"github.com/ferryrelay/ferry/bench"
)

const (
	barHeight = 18.0
	barStep   = 30.0
	nameSpace = 210.0 // left of the bars, for names
	nameRunes = 26
)

// cpuPlot has a bar per run whose server was measured.
func cpuPlot(runs []bench.Result, names []string) plot {
	const id, title = "cpu", "Server CPU per datagram"
	most, measured := 0.0, 0
	for _, r := range runs {
		if cpuKnown(r) {
			most, measured = max(most, r.Server.PerDatagram), measured+1
		}
	}
	if measured == 0 {
		return empty(id, title, "No run measured its server: that takes its process id.")
	}
	s := linearScale(0, most, timeTick)
	h := marginTop + barStep*float64(measured) + marginFoot
	a := area{s, scale{lo: 0, hi: 1}, h}
	p := newPlot(id, title, "A bar per run: time of the server on a processor divided by the datagrams that arrived.", a)
	p.XLabel = "time on a processor per datagram"
	p.Numbers = table{Caption: title, Head: []string{"run", "CPU per datagram ns", "user s", "system s", "datagrams"}}
	p.XTicks, p.Frame = nil, rect{X: px(nameSpace), Y: p.Frame.Y, W: px(plotWidth - marginRight - nameSpace), H: p.Frame.H}
	place := func(v float64) float64 {
		at, _ := s.at(v)
		return nameSpace + at*(plotWidth-marginRight-nameSpace-70)
	}
	for _, t := range s.ticks {
		p.XTicks = append(p.XTicks, mark{X: px(place(t.At)), Y: px(a.py(0)), Text: t.Label})
	}
	row := 0
	for i, r := range runs {
		if !cpuKnown(r) {
			continue
		}
		y := marginTop + barStep*float64(row) + (barStep-barHeight)/2
		row++
		v := r.Server.PerDatagram
		text := UnitTime.Format(v)
		p.Bars = append(p.Bars, bar{
			rect:  rect{X: px(nameSpace), Y: px(y), W: px(place(v) - nameSpace), H: px(barHeight), Title: names[i] + ": " + text},
			Class: class(i),
			Label: mark{X: px(place(v) + 6), Y: px(y + barHeight*0.75), Text: text},
		})
		p.YTicks = append(p.YTicks, mark{X: px(nameSpace), Y: px(y + barHeight/2), Text: short(names[i], nameRunes), Title: names[i]})
		p.Numbers.Rows = append(p.Numbers.Rows, []string{names[i], digits(v), seconds(r.Server.User), seconds(r.Server.System), UnitCount.Format(float64(r.Server.Datagrams))})
	}
	return p
}

// cpuKnown reports whether there is a bar to draw.
func cpuKnown(r bench.Result) bool {
	v := r.Server.PerDatagram
	return r.Server.PID != 0 && v > 0 && !math.IsInf(v, 0)
}

// comparisonFigures are those that the comparing plot shows; its table shows
// them all.
func comparisonFigures() []string {
	return []string{"delivered", "latency p50", "latency p99", "latency p99.9", "latency max", "server CPU per datagram", "server memory (RSS)"}
}

// comparisonPlot has a row per figure and in it a dot per run: in proportion to
// the first run, on a scale where half and double are equally far from 1.
func comparisonPlot(comparisons []Comparison, order []int, names []string) plot {
	const id, title = "comparison", "Runs in proportion to the first"
	values := []float64{0.8, 1.25}
	var rowsOf []string
	for _, want := range comparisonFigures() {
		found := false
		for _, c := range comparisons {
			if v := c.ratio(want); v > 0 {
				values, found = append(values, v), true
			}
		}
		if found {
			rowsOf = append(rowsOf, want)
		}
	}
	if len(rowsOf) == 0 {
		return empty(id, title, "No figure can be compared.")
	}
	s := logScale(values, func(v float64) string { return digitsShort(math.Round(v*1e6)/1e6) + "×" })
	h := marginTop + barStep*float64(len(rowsOf)) + marginFoot
	p := newPlot(id, title, "A row per figure and in it a dot per run: its value divided by that of the first run. The line at 1× is the first run.", area{s, scale{lo: 0, hi: 1}, h})
	p.XLabel, p.XTicks = "ratio to "+short(names[0], nameRunes), nil
	p.Frame = rect{X: px(nameSpace), Y: p.Frame.Y, W: px(plotWidth - marginRight - nameSpace), H: p.Frame.H}
	place := func(v float64) float64 {
		at, _ := s.at(v)
		return nameSpace + at*(plotWidth-marginRight-nameSpace)
	}
	foot := h - marginFoot
	for _, t := range s.ticks {
		p.XTicks = append(p.XTicks, mark{X: px(place(t.At)), Y: px(foot), Text: t.Label})
	}
	p.Lines = append(p.Lines, line{Class: "ideal", Name: names[0] + " = 1×", Path: fmt.Sprintf("M%s %sL%s %s", px(place(1)), px(marginTop), px(place(1)), px(foot))})
	p.ratioDots(comparisons, order, names, rowsOf, place)
	return p
}

// ratioDots adds the dots of each run and the rows' names.
func (p *plot) ratioDots(comparisons []Comparison, order []int, names, rowsOf []string, place func(float64) float64) {
	rowY := func(i int) float64 { return marginTop + barStep*(float64(i)+0.5) }
	for i, want := range rowsOf {
		p.YTicks = append(p.YTicks, mark{X: px(nameSpace), Y: px(rowY(i)), Text: want})
	}
	p.Numbers = table{Caption: p.Title, Head: []string{"figure"}}
	for _, at := range order {
		p.Numbers.Head = append(p.Numbers.Head, names[at])
	}
	spread := min(7, 18/float64(len(comparisons))) // Equal ratios stay apart.
	for n, c := range comparisons {
		off := spread * (float64(n) - float64(len(comparisons)-1)/2)
		l := line{Class: class(order[n]), Name: names[order[n]], Bold: true}
		for i, want := range rowsOf {
			if v := c.ratio(want); v > 0 {
				l.Dots = append(l.Dots, mark{X: px(place(v)), Y: px(rowY(i) + off), Title: fmt.Sprintf("%s: %s %s×", l.Name, want, ratio(v))})
			}
		}
		p.Lines = append(p.Lines, l)
	}
	for _, f := range comparisons[0].Figures {
		row := []string{f.Name + ", " + better(f.A) + " is better"}
		for _, c := range comparisons {
			row = append(row, ratio(c.ratio(f.Name)))
		}
		p.Numbers.Rows = append(p.Numbers.Rows, row)
	}
}

// ratio finds one of the comparison's ratios, 0 if it is not known.
func (c Comparison) ratio(name string) float64 {
	for _, f := range c.Figures {
		if f.Name == name {
			return f.Ratio
		}
	}
	return 0
}
