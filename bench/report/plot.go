package report

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// plot is the latency by percentile, with a line for each run that has one.
type plot struct {
	At    []float64 `json:"at"` // nines, see countNines, of the points of all lines, rising
	Lines []line    `json:"lines"`
}

// line has a value in ns for each of plot.At, nil for none.
type line struct {
	Name   string     `json:"name"`
	Values []*float64 `json:"values"`
}

// table is a table of text cells. Each row has the length of Head.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

func newPlot(runs []bench.Result, names []string) (p plot) {
	all, points := map[float64]bool{}, make([]map[float64]*float64, len(runs))
	for i, r := range runs {
		points[i] = map[float64]*float64{}
		for _, q := range r.Latency.Series {
			x, y := countNines(q.Percent, r.Latency.Samples+r.Latency.Lost), float64(q.Value)
			if !math.IsNaN(x) && y > 0 && !figures.Time.IsLost(y) { // The axis is logarithmic.
				points[i][x], all[x] = &y, true
			}
		}
	}
	p.At = slices.Sorted(maps.Keys(all))
	for i, of := range points {
		if len(of) == 0 {
			continue
		}
		l := line{Name: names[i]}
		for _, x := range p.At {
			l.Values = append(l.Values, of[x])
		}
		p.Lines = append(p.Lines, l)
	}
	return p
}

func (p plot) numbers() table {
	t := table{Caption: "Latency from the due time", Head: []string{"share that was at least as fast"}}
	for _, l := range p.Lines {
		t.Head = append(t.Head, l.Name)
	}
	for i, x := range p.At {
		row := []string{strconv.FormatFloat(100-100/math.Pow(10, x), 'g', 7, 64) + " %"}
		for _, l := range p.Lines {
			cell := figures.Dash
			if y := l.Values[i]; y != nil {
				cell = figures.Time.Format(*y)
			}
			row = append(row, cell)
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
