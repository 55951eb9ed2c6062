package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Sizes of a plot in units of its view box. The page scales it.
const (
	plotWidth   = 720.0
	plotHeight  = 320.0
	marginLeft  = 84.0
	marginRight = 32.0
	marginTop   = 12.0
	marginFoot  = 50.0
	// maxDots is the number of points above which a line has no dots: they
	// would hide it.
	maxDots = 130
	// colours is the number of line colours in the style sheet; after them they
	// repeat with other dashes.
	colours = 6
)

// plot is a drawing with everything that its reader needs. The template draws
// it; all positions are in the view box already.
type plot struct {
	ID      string
	Title   string
	Desc    string // what it shows, in a sentence, for those who do not see it
	Empty   string // why there is nothing to draw
	XLabel  string
	YLabel  string
	Height  string
	Frame   rect
	XTicks  []mark
	YTicks  []mark
	Bands   []rect
	Lines   []line
	Bars    []bar
	Labels  []mark // words within the frame
	Numbers table
}

type rect struct{ X, Y, W, H, Title string }

// mark is a word at a place.
type mark struct{ X, Y, Text, Title string }

// line is a series: dots, joined if Path is not empty.
type line struct {
	Class string
	Name  string
	Path  string
	Dots  []mark
	Bold  bool // dots stand for themselves
}

type bar struct {
	rect
	Class string
	Label mark
}

// table is a table of numbers. Each row is as long as Head.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// series is a line before it has a place.
type series struct {
	name   string
	class  string
	x, y   []float64
	titles []string // per point
	dots   bool     // dots without a line
}

// class is that of the i-th series in the style sheet.
func class(i int) string {
	return fmt.Sprintf("s%d d%d", i%colours, (i/colours+i)%4)
}

// px writes a coordinate. What is not finite never gets here, but if it did it
// would not break the drawing.
func px(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// area is the inside of the frame.
type area struct {
	x, y scale
	h    float64 // height of the whole drawing
}

func (a area) px(p float64) float64 { return marginLeft + p*(plotWidth-marginLeft-marginRight) }
func (a area) py(p float64) float64 { return a.h - marginFoot - p*(a.h-marginFoot-marginTop) }

// newPlot draws a frame with its ticks.
func newPlot(id, title, desc string, a area) plot {
	p := plot{ID: id, Title: title, Desc: desc, Height: px(a.h)}
	p.Frame = rect{X: px(a.px(0)), Y: px(a.py(1)), W: px(a.px(1) - a.px(0)), H: px(a.py(0) - a.py(1))}
	for _, t := range a.x.ticks {
		if at, ok := a.x.at(t.At); ok {
			p.XTicks = append(p.XTicks, mark{X: px(a.px(at)), Y: px(a.py(0)), Text: t.Label})
		}
	}
	for _, t := range a.y.ticks {
		if at, ok := a.y.at(t.At); ok {
			p.YTicks = append(p.YTicks, mark{X: px(a.px(0)), Y: px(a.py(at)), Text: t.Label})
		}
	}
	return p
}

// draw adds a line for each series. A point without a place interrupts it.
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
			l.Dots = append(l.Dots, mark{X: px(a.px(x)), Y: px(a.py(y)), Title: s.titles[i]})
			verb := "L"
			if move {
				verb = "M"
			}
			move = false
			path.WriteString(verb + px(a.px(x)) + " " + px(a.py(y)))
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

// band shades the values from lo to hi of the x axis.
func (p *plot) band(a area, lo, hi float64, title string) {
	x0, ok0 := a.x.at(lo)
	x1, ok1 := a.x.at(hi)
	if ok0 && ok1 && x1 > x0 {
		p.Bands = append(p.Bands, rect{X: px(a.px(x0)), Y: p.Frame.Y, W: px(a.px(x1) - a.px(x0)), H: p.Frame.H, Title: title})
	}
}

// empty is a plot that says why there is nothing to draw.
func empty(id, title, why string) plot {
	return plot{ID: id, Title: title, Empty: why}
}

// micros writes nanoseconds for a column of microseconds.
func micros(ns float64) string {
	if math.IsNaN(ns) || math.IsInf(ns, 0) {
		return none
	}
	return grouped1(ns / 1000)
}

// grouped1 has one digit after the point.
func grouped1(v float64) string {
	whole, rest, _ := strings.Cut(strconv.FormatFloat(v, 'f', 1, 64), ".")
	return grouped(whole) + "." + rest
}

// short cuts a name to what fits beside a bar.
func short(s string, limit int) string {
	r := []rune(s)
	if len(r) <= limit {
		return s
	}
	return string(r[:limit-1]) + "…"
}
