package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// Sizes of a plot in units of its view box. The page scales it.
const (
	plotWidth   = 720.0
	plotHeight  = 320.0
	marginLeft  = 84.0
	marginRight = 32.0
	marginTop   = 12.0
	marginFoot  = 50.0
	// maxDots is the number of points above which a line is drawn without dots.
	maxDots = 130
	// colours is the number of line colours in the style sheet; further lines
	// repeat them with another dash pattern.
	colours = 6
)

// plot is the input of the plot template; all positions are in view box units.
type plot struct {
	ID      string
	Title   string
	Desc    string // text alternative, one sentence
	Empty   string // message if there is nothing to draw
	XLabel  string
	YLabel  string
	Height  string
	Frame   rect
	XTicks  []mark
	YTicks  []mark
	Bands   []rect
	Lines   []line
	Bars    []bar
	Labels  []mark // labels within the frame
	Numbers table
}

type rect struct{ X, Y, W, H, Title string }

// mark is a label at a position.
type mark struct{ X, Y, Text, Title string }

// line is a series: dots, connected if Path is not empty.
type line struct {
	Class string
	Name  string
	Path  string
	Dots  []mark
	Bold  bool // larger dots, for series without a line
}

type bar struct {
	rect
	Class string
	Label mark
}

// table is a table of text cells. Each row has the length of Head.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// series is a line before its positions are computed.
type series struct {
	name   string
	class  string
	x, y   []float64
	titles []string // per point
	dots   bool     // dots without a line
}

// class returns the style class of the i-th series.
func class(i int) string {
	return fmt.Sprintf("s%d d%d", i%colours, (i/colours+i)%4)
}

// formatCoordinate formats a coordinate; a value that is not finite becomes one
// that does not break the drawing.
func formatCoordinate(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// area is the area inside the frame.
type area struct {
	x, y scale
	h    float64 // height of the whole drawing
}

func (a area) px(p float64) float64 { return marginLeft + p*(plotWidth-marginLeft-marginRight) }
func (a area) py(p float64) float64 { return a.h - marginFoot - p*(a.h-marginFoot-marginTop) }

// newPlot returns a plot with a frame and ticks.
func newPlot(id, title, desc string, a area) plot {
	p := plot{ID: id, Title: title, Desc: desc, Height: formatCoordinate(a.h)}
	p.Frame = rect{X: formatCoordinate(a.px(0)), Y: formatCoordinate(a.py(1)), W: formatCoordinate(a.px(1) - a.px(0)), H: formatCoordinate(a.py(0) - a.py(1))}
	for _, t := range a.x.ticks {
		if at, ok := a.x.at(t.At); ok {
			p.XTicks = append(p.XTicks, mark{X: formatCoordinate(a.px(at)), Y: formatCoordinate(a.py(0)), Text: t.Label})
		}
	}
	for _, t := range a.y.ticks {
		if at, ok := a.y.at(t.At); ok {
			p.YTicks = append(p.YTicks, mark{X: formatCoordinate(a.px(0)), Y: formatCoordinate(a.py(at)), Text: t.Label})
		}
	}
	return p
}

// draw adds a line for each series. A point without a position interrupts the
// line.
func (p *plot) draw(a area, all ...series) {
	for _, s := range all {
		l := line{Class: s.class, Name: s.name, Bold: s.dots}
		var path strings.Builder
		move := true
		for i := range s.x {
			x, okX := a.x.at(s.x[i])
			y, okY := a.y.at(s.y[i])
			if !okX || !okY {
				move = true
				continue
			}
			l.Dots = append(l.Dots, mark{X: formatCoordinate(a.px(x)), Y: formatCoordinate(a.py(y)), Title: s.titles[i]})
			verb := "L"
			if move {
				verb = "M"
			}
			move = false
			path.WriteString(verb + formatCoordinate(a.px(x)) + " " + formatCoordinate(a.py(y)))
		}
		if !s.dots {
			l.Path = path.String()
			if len(l.Dots) > maxDots {
				l.Dots = nil
			}
		}
		p.Lines = append(p.Lines, l)
	}
}

// band shades the range from lo to hi of the x axis.
func (p *plot) band(a area, lo, hi float64, title string) {
	x0, ok0 := a.x.at(lo)
	x1, ok1 := a.x.at(hi)
	if ok0 && ok1 && x1 > x0 {
		p.Bands = append(p.Bands, rect{X: formatCoordinate(a.px(x0)), Y: p.Frame.Y, W: formatCoordinate(a.px(x1) - a.px(x0)), H: p.Frame.H, Title: title})
	}
}

// empty returns a plot with a message instead of data.
func empty(id, title, why string) plot {
	return plot{ID: id, Title: title, Empty: why}
}

// formatMicros formats nanoseconds as microseconds.
func formatMicros(ns float64) string {
	if math.IsNaN(ns) || math.IsInf(ns, 0) {
		return dash
	}
	return formatOneDigit(ns / 1000)
}

// formatOneDigit formats a number with grouped digits and one decimal.
func formatOneDigit(v float64) string {
	whole, rest, _ := strings.Cut(strconv.FormatFloat(v, 'f', 1, 64), ".")
	return groupDigits(whole) + "." + rest
}

// truncate shortens s to limit characters.
func truncate(s string, limit int) string {
	r := []rune(s)
	if len(r) <= limit {
		return s
	}
	return string(r[:limit-1]) + "…"
}

const (
	barHeight = 18.0
	barStep   = 30.0
	nameSpace = 210.0 // width of the names to the left of the bars
	nameRunes = 26
)

// cpuPlot returns a plot with a bar per run with a measured server.
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
	p.XTicks, p.Frame = nil, rect{X: formatCoordinate(nameSpace), Y: p.Frame.Y, W: formatCoordinate(plotWidth - marginRight - nameSpace), H: p.Frame.H}
	place := func(v float64) float64 {
		at, _ := s.at(v)
		return nameSpace + at*(plotWidth-marginRight-nameSpace-70)
	}
	for _, t := range s.ticks {
		p.XTicks = append(p.XTicks, mark{X: formatCoordinate(place(t.At)), Y: formatCoordinate(a.py(0)), Text: t.Label})
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
			rect:  rect{X: formatCoordinate(nameSpace), Y: formatCoordinate(y), W: formatCoordinate(place(v) - nameSpace), H: formatCoordinate(barHeight), Title: names[i] + ": " + text},
			Class: class(i),
			Label: mark{X: formatCoordinate(place(v) + 6), Y: formatCoordinate(y + barHeight*0.75), Text: text},
		})
		p.YTicks = append(p.YTicks, mark{X: formatCoordinate(nameSpace), Y: formatCoordinate(y + barHeight/2), Text: truncate(names[i], nameRunes), Title: names[i]})
		p.Numbers.Rows = append(p.Numbers.Rows, []string{names[i], digits(v), formatSeconds(r.Server.User), formatSeconds(r.Server.System), UnitCount.Format(float64(r.Server.Datagrams))})
	}
	return p
}

// cpuKnown reports whether the CPU time of the server was measured.
func cpuKnown(r bench.Result) bool {
	v := r.Server.PerDatagram
	return r.Server.IsServer() && v > 0 && !math.IsInf(v, 0)
}

// comparisonFigures returns the names of the figures in the comparison plot;
// its table has all figures.
func comparisonFigures() []string {
	return []string{"delivered", "latency p50", "latency p99", "latency p99.9", "latency max of the delivered", "server CPU per datagram", "server memory (RSS)"}
}

// comparisonPlot returns a plot with a row per figure and a dot per run, at its
// ratio to the first run on a logarithmic scale.
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
	p.XLabel, p.XTicks = "ratio to "+truncate(names[0], nameRunes), nil
	p.Frame = rect{X: formatCoordinate(nameSpace), Y: p.Frame.Y, W: formatCoordinate(plotWidth - marginRight - nameSpace), H: p.Frame.H}
	place := func(v float64) float64 {
		at, _ := s.at(v)
		return nameSpace + at*(plotWidth-marginRight-nameSpace)
	}
	foot := h - marginFoot
	for _, t := range s.ticks {
		p.XTicks = append(p.XTicks, mark{X: formatCoordinate(place(t.At)), Y: formatCoordinate(foot), Text: t.Label})
	}
	p.Lines = append(p.Lines, line{Class: "ideal", Name: names[0] + " = 1×", Path: fmt.Sprintf("M%s %sL%s %s", formatCoordinate(place(1)), formatCoordinate(marginTop), formatCoordinate(place(1)), formatCoordinate(foot))})
	p.ratioDots(comparisons, order, names, rowsOf, place)
	return p
}

// ratioDots adds the dots of each run and the names of the rows.
func (p *plot) ratioDots(comparisons []Comparison, order []int, names, rowsOf []string, place func(float64) float64) {
	rowY := func(i int) float64 { return marginTop + barStep*(float64(i)+0.5) }
	for i, want := range rowsOf {
		p.YTicks = append(p.YTicks, mark{X: formatCoordinate(nameSpace), Y: formatCoordinate(rowY(i)), Text: want})
	}
	p.Numbers = table{Caption: p.Title, Head: []string{"figure"}}
	for _, at := range order {
		p.Numbers.Head = append(p.Numbers.Head, names[at])
	}
	spread := min(7, 18/float64(len(comparisons))) // Dots of equal ratios do not overlap.
	for n, c := range comparisons {
		off := spread * (float64(n) - float64(len(comparisons)-1)/2)
		l := line{Class: class(order[n]), Name: names[order[n]], Bold: true}
		for i, want := range rowsOf {
			if v := c.ratio(want); v > 0 {
				l.Dots = append(l.Dots, mark{X: formatCoordinate(place(v)), Y: formatCoordinate(rowY(i) + off), Title: fmt.Sprintf("%s: %s %s×", l.Name, want, ratio(v))})
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

// ratio returns the ratio of a figure; 0 if unknown.
func (c Comparison) ratio(name string) float64 {
	for _, f := range c.Figures {
		if f.Name == name {
			return f.Ratio
		}
	}
	return 0
}

func timeLabel(ns float64) string { return UnitTime.Format(ns) }

// timeTick formats a round time without trailing zeros.
func timeTick(ns float64) string {
	number, unit, _ := strings.Cut(UnitTime.Format(ns), " ")
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + unit
}

// percentilePlot returns a plot of latency over percentiles with a line per
// run.
func percentilePlot(runs []bench.Result, names []string) plot {
	const id, title = "percentiles", "Latency by percentile"
	var all []series
	var values []float64
	most := 0.0
	numbers := table{Caption: title, Head: []string{"run", "percentile", "latency µs"}}
	for i, d := range distributions(runs, names) {
		s := series{name: d.name, class: class(i)}
		for _, q := range d.latency.Series {
			x, y := countNines(q.Percent, d.latency.Samples+d.latency.Lost), float64(q.Value)
			most = max(most, x)
			values = append(values, y)
			percent := strconv.FormatFloat(q.Percent, 'f', -1, 64)
			s.x, s.y = append(s.x, x), append(s.y, y)
			s.titles = append(s.titles, fmt.Sprintf("%s: %s %% within %s", d.name, percent, timeLabel(y)))
			numbers.Rows = append(numbers.Rows, []string{d.name, percent, formatMicros(y)})
		}
		all = append(all, s)
	}
	if len(values) == 0 {
		return empty(id, title, "No run has samples of latency.")
	}
	a := area{ninesScale(most), logScale(values, timeTick), plotHeight}
	p := newPlot(id, title, "A line per run: which share of the datagrams offered arrived within which time. Further right are ever rarer, slower datagrams. A line ends where the lost ones begin.", a)
	p.XLabel, p.YLabel = "share of datagrams that were at least as fast", "latency from the intended time"
	p.draw(a, all...)
	p.Numbers = numbers
	return p
}

// secondsOf returns one value for each second of a run.
func secondsOf(r bench.Result, get func(bench.Second) float64) (values []float64) {
	for _, s := range r.Seconds {
		values = append(values, get(s))
	}
	return values
}

// secondValue is a value of a second in a plot over time.
type secondValue struct {
	name string
	get  func(bench.Second) float64
}

func latencies() []secondValue {
	return []secondValue{
		{"p50", func(s bench.Second) float64 { return float64(s.P50) }},
		{"p99", func(s bench.Second) float64 { return float64(s.P99) }},
		{"max", func(s bench.Second) float64 { return float64(s.Max) }},
	}
}

func counts() []secondValue {
	return []secondValue{
		{"offered", func(s bench.Second) float64 { return float64(s.Offered) }},
		{"sent", func(s bench.Second) float64 { return float64(s.Sent) }},
		{"delivered", func(s bench.Second) float64 { return float64(s.Delivered) }},
	}
}

// timeScale returns a scale that spans all seconds of a run.
func timeScale(r bench.Result) scale {
	first, last, _ := extent(secondsOf(r, func(s bench.Second) float64 { return float64(s.At) }), false)
	return exactScale(first, last+1, func(v float64) string { return digitsShort(v) + " s" })
}

// digitsShort formats a number with the fewest digits.
func digitsShort(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// timeSeries returns a series for each value. A point is at the middle of its
// second.
func timeSeries(r bench.Result, what []secondValue, text func(float64) string) (all []series) {
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

// shadeEnds shades the seconds outside of the measured interval.
func (p *plot) shadeEnds(a area, r bench.Result) {
	p.band(a, a.x.lo, 0, "warm-up")
	p.band(a, r.Load.Duration.Seconds(), a.x.hi, "after the last was due")
}

// latencyOverTime plots p50, p99 and the maximum of each second. The y axis
// spans the values of all runs, so that their plots are comparable.
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
		p.Numbers.Rows = append(p.Numbers.Rows, []string{strconv.Itoa(s.At), formatMicros(float64(s.P50)), formatMicros(float64(s.P99)), formatMicros(float64(s.Max))})
	}
	return p
}

// secondsPositive returns all positive latencies of a run's seconds.
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

// kneeLoss is the highest loss at which a rate counts as sustained.
const kneeLoss = 0.001

func rateLabel(v float64) string { return groupDigits(strconv.FormatFloat(v, 'f', -1, 64)) }

// ratesOverTime plots the offered, sent and delivered rate of each second.
func ratesOverTime(i int, r bench.Result, name string) plot {
	id, title := fmt.Sprintf("rates-%d", i+1), "Offered against delivered: "+name
	var values []float64
	for _, w := range counts() {
		values = append(values, secondsOf(r, w.get)...)
	}
	_, most, ok := extent(values, false)
	if !ok {
		return empty(id, title, "The run has no seconds.")
	}
	a := area{timeScale(r), linearScale(0, most, rateLabel), plotHeight}
	p := newPlot(id, title, "Datagrams that were due, sent and delivered in each second. Where delivered falls below sent, datagrams were lost or are on their way.", a)
	p.XLabel, p.YLabel = "since the start of the measured interval", "datagrams in the second"
	p.shadeEnds(a, r)
	p.draw(a, timeSeries(r, counts(), rateLabel)...)
	p.split(a, r)
	p.Numbers = table{Caption: title, Head: []string{"second", "offered", "sent", "delivered"}}
	for _, s := range r.Seconds {
		p.Numbers.Rows = append(p.Numbers.Rows, []string{strconv.Itoa(s.At), rateLabel(float64(s.Offered)), rateLabel(float64(s.Sent)), rateLabel(float64(s.Delivered))})
	}
	return p
}

// ratesOverRuns plots the requested and delivered rate with a dot per run. A
// dot on the diagonal has no loss.
func ratesOverRuns(runs []bench.Result, names []string) plot {
	const id, title = "rates", "Offered against delivered, run by run"
	var all []series
	var values []float64
	p := plot{Numbers: table{Caption: title, Head: []string{"run", "offered/s", "delivered/s", "loss"}}}
	for i, r := range runs {
		s := series{name: names[i], class: class(i), dots: true, x: []float64{r.OfferedRate}, y: []float64{r.DeliveredRate}}
		s.titles = []string{fmt.Sprintf("%s: %s offered, %s delivered, %s lost", names[i],
			UnitRate.Format(r.OfferedRate), UnitRate.Format(r.DeliveredRate), UnitShare.Format(r.LossRatio))}
		values = append(values, r.OfferedRate, r.DeliveredRate)
		all = append(all, s)
		p.Numbers.Rows = append(p.Numbers.Rows, []string{names[i], UnitNumber.Format(r.OfferedRate), UnitNumber.Format(r.DeliveredRate), UnitShare.Format(r.LossRatio)})
	}
	_, most, ok := extent(values, false)
	if !ok || most <= 0 {
		return empty(id, title, "Nothing was offered in any run.")
	}
	a := area{linearScale(0, most, rateLabel), linearScale(0, most, rateLabel), plotHeight}
	numbers := p.Numbers
	p = newPlot(id, title, "A dot per run: datagrams offered each second, and delivered. Dots below the diagonal lost some.", a)
	p.XLabel, p.YLabel, p.Numbers = "offered, datagrams/s", "delivered, datagrams/s", numbers
	p.draw(a, series{name: "nothing lost", class: "ideal", x: []float64{0, a.x.hi}, y: []float64{0, a.y.hi}, titles: []string{"", ""}})
	p.Lines[0].Dots = nil
	p.draw(a, all...)
	if k, ok := knee(runs); ok {
		x, _ := a.x.at(runs[k].OfferedRate)
		y, _ := a.y.at(runs[k].DeliveredRate)
		p.Labels = append(p.Labels, mark{X: formatCoordinate(a.px(x) - 10), Y: formatCoordinate(a.py(y) - 6), Text: "knee: " + UnitRate.Format(runs[k].OfferedRate)})
	}
	return p
}

// knee returns the run with the highest sustained rate, if the same relay did
// not sustain a higher one.
func knee(runs []bench.Result) (int, bool) {
	best, beyond := -1, false
	for i, r := range runs {
		carried := r.LossRatio <= kneeLoss && r.Offered > 0
		if carried && (best < 0 || r.OfferedRate > runs[best].OfferedRate) {
			best = i
		}
		if r.Dialect != runs[0].Dialect {
			return 0, false // Runs of several relays have no single knee.
		}
	}
	if best < 0 {
		return 0, false
	}
	beyond = slices.ContainsFunc(runs, func(r bench.Result) bool {
		return r.LossRatio > kneeLoss && r.OfferedRate > runs[best].OfferedRate
	})
	return best, beyond
}
