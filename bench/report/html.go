package report

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// The files of the page. uPlot is that of the console, see make console.
var (
	//go:embed page/report.html
	pageHead string
	//go:embed page/report.js
	script string
	//go:embed page/uPlot.iife.min.js
	uPlot string
	//go:embed page/uPlot.min.css
	uPlotStyle string
	//go:embed page/uPlot.LICENSE
	uPlotLicense string
)

// maxCards bounds the runs with a large header.
const maxCards = 4

type pageData struct {
	Title   string
	Common  []fact // facts that are equal for all runs, if there are several
	Runs    []runView
	Many    bool  // show each run in a few lines, below the numbers
	Ratios  table // to the first run
	Figures table
	Drops   table
	Steps   table // the runs of a search in order
	Plot    plot
	Refused []string // why runs are not compared with the first
	Notes   []string
}

type runView struct {
	Name    string
	Verdict string
	Side    string // class of the verdict
	Doubts  []string
	Facts   []fact
}

// HTML writes one self-contained page about one or several runs, which loads nothing. All text
// from the runs is escaped.
func HTML(w io.Writer, runs []bench.Result) error {
	if len(runs) == 0 {
		return errors.New("report: no runs")
	}
	page := newPageData(runs)
	_, err := io.WriteString(w, page.markup())
	return err
}

func newPageData(runs []bench.Result) pageData {
	names := labels(runs)
	s := pageData{Title: "ferry bench: " + names[0]}
	if len(runs) > 1 {
		s.Title = fmt.Sprintf("ferry bench: %d runs", len(runs))
		s.Common = common(runs)
	}
	for i, r := range runs {
		if isStep(r) {
			continue
		}
		own := slices.DeleteFunc(facts(r), func(f fact) bool { return slices.Contains(s.Common, f) })
		s.Runs = append(s.Runs, runView{names[i], verdict(r), side(r), cautions(r), own})
	}
	s.Many = len(s.Runs) > maxCards
	s.Figures = sideBySide("Figures", names, runs, figuresOf)
	s.Drops = sideBySide("What was lost, and where", names, runs, drops)
	s.Steps = stepsTable(runs)
	s.Plot = newPlot(runs, names)
	s.compare(runs, names)
	return s
}

// isStep reports whether a run is a step of a search other than the result. The
// page shows only its numbers.
func isStep(r bench.Result) bool { return r.Search != nil && r.Search.Found == nil }

func common(runs []bench.Result) []fact {
	list := facts(runs[0])
	for _, r := range runs[1:] {
		others := facts(r)
		list = slices.DeleteFunc(list, func(f fact) bool { return !slices.Contains(others, f) })
	}
	return list
}

func (s *pageData) compare(runs []bench.Result, names []string) {
	s.Ratios = table{Caption: "In proportion to " + names[0], Head: []string{""}}
	for i := 1; i < len(runs); i++ {
		if isStep(runs[i]) {
			continue // The rates of a search differ on purpose.
		}
		c, err := compare(runs[0], runs[i])
		if err != nil {
			s.Refused = append(s.Refused, fmt.Sprintf("%s and %s: %v", names[0], names[i], err))
			continue
		}
		for _, n := range c.Notes {
			s.Notes = append(s.Notes, fmt.Sprintf("%s and %s differ in %s", names[0], names[i], n))
		}
		var cells [][2]string
		for _, f := range c.Figures {
			cells = append(cells, [2]string{f.Name + ", " + f.better() + " is better", ratio(f.Ratio.Median)})
		}
		s.Ratios.addColumn(names[i], cells)
	}
}

func (t *table) addColumn(head string, cells [][2]string) {
	t.Head = append(t.Head, head)
	for _, c := range cells {
		at := slices.IndexFunc(t.Rows, func(row []string) bool { return row[0] == c[0] })
		if at < 0 {
			at = len(t.Rows)
			t.Rows = append(t.Rows, append([]string{c[0]}, slices.Repeat([]string{figures.Dash}, len(t.Head)-2)...))
		}
		t.Rows[at] = append(t.Rows[at], c[1])
	}
	for i, row := range t.Rows {
		if len(row) < len(t.Head) {
			t.Rows[i] = append(row, figures.Dash)
		}
	}
}

// sideBySide returns a table with a column per run and a row per figure name of
// any run.
func sideBySide(caption string, names []string, runs []bench.Result, get func(bench.Result) []figure) table {
	t := table{Caption: caption, Head: []string{""}}
	for i, r := range runs {
		var cells [][2]string
		for _, f := range get(r) {
			cells = append(cells, [2]string{printable.Line(f.Name), f.Text()})
		}
		t.addColumn(names[i], cells)
	}
	return t
}
