package report

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

//go:embed report.html
var page string

// ErrNoRuns is returned if there are no runs to report.
var ErrNoRuns = errors.New("report: no runs")

// maxOverTime bounds the runs with plots over time: a search for the highest
// rate has dozens of runs.
const maxOverTime = 6

// maxCards bounds the runs with a large header.
const maxCards = 4

// pageData is the input of the page template.
type pageData struct {
	Title   string
	Common  []fact // facts that are equal for all runs, if there are several
	Runs    []runView
	Many    bool // show each run in a few lines
	Figures table
	Drops   table
	Steps   table   // the runs of a search in order
	Control []table // of runs with load on the control plane
	Plots   []plot
	Refused []string // why runs are not compared with the first
	Notes   []string
}

// runView is the header of one run.
type runView struct {
	Name    string
	Verdict string
	Side    string // class of the verdict
	Doubts  []string
	Facts   []fact
}

// HTML writes one self-contained page about one or several runs, without
// scripts and external references. All text from the runs is escaped.
func HTML(w io.Writer, runs []bench.Result) error {
	if len(runs) == 0 {
		return ErrNoRuns
	}
	t, err := template.New("report").Parse(page)
	if err != nil {
		return fmt.Errorf("report: template: %w", err)
	}
	return t.Execute(w, newPageData(runs))
}

func newPageData(runs []bench.Result) pageData {
	names := labels(runs)
	s := pageData{Title: "ferry bench: " + names[0]}
	if len(runs) > 1 {
		s.Title = fmt.Sprintf("ferry bench: %d runs", len(runs))
	}
	if len(runs) > 1 {
		s.Common = common(runs)
	}
	for i, r := range runs {
		if isStep(r) {
			continue
		}
		own := slices.DeleteFunc(facts(r), func(f fact) bool { return slices.Contains(s.Common, f) })
		s.Runs = append(s.Runs, runView{names[i], Verdict(r), side(r), cautions(r), own})
	}
	s.Many = len(s.Runs) > maxCards
	s.Figures = sideBySide("Figures", names, runs, Figures)
	s.Drops = sideBySide("What was lost, and where", names, runs, drops)
	s.Steps = stepsTable(runs)
	for i, r := range runs {
		for _, t := range controlTables(r) {
			if len(runs) > 1 {
				t.Caption = names[i] + ": " + t.Caption
			}
			s.Control = append(s.Control, t)
		}
	}
	s.Plots = append(s.Plots, percentilePlot(runs, names))
	if len(runs) > 1 {
		s.compare(runs, names)
		s.Plots = append(s.Plots, ratesOverRuns(runs, names))
	}
	s.Plots = append(s.Plots, cpuPlot(runs, names))
	for i, r := range runs[:min(len(runs), maxOverTime)] {
		s.Plots = append(s.Plots, latencyOverTime(i, r, names[i], runs), ratesOverTime(i, r, names[i]))
	}
	if len(runs) > maxOverTime {
		s.Notes = append(s.Notes, fmt.Sprintf("Plots over time are drawn for the first %d of %d runs.", maxOverTime, len(runs)))
	}
	return s
}

// isStep reports whether a run is a step of a search other than the result. The
// page shows only its numbers.
func isStep(r bench.Result) bool { return r.Search != nil && r.Search.Found == nil }

// common returns the facts that are the same for all runs.
func common(runs []bench.Result) []fact {
	list := facts(runs[0])
	for _, r := range runs[1:] {
		others := facts(r)
		list = slices.DeleteFunc(list, func(f fact) bool { return !slices.Contains(others, f) })
	}
	return list
}

// compare adds the plot that compares all comparable runs with the first.
func (s *pageData) compare(runs []bench.Result, names []string) {
	var comparisons []Comparison
	var order []int
	for i := 1; i < len(runs); i++ {
		if isStep(runs[i]) {
			continue // The rates of a search differ on purpose.
		}
		c, err := Compare(runs[0], runs[i])
		if err != nil {
			s.Refused = append(s.Refused, fmt.Sprintf("%s and %s: %v", names[0], names[i], err))
			continue
		}
		for _, n := range c.Notes {
			s.Notes = append(s.Notes, fmt.Sprintf("%s and %s differ in %s", names[0], names[i], n))
		}
		comparisons, order = append(comparisons, c), append(order, i)
	}
	if len(comparisons) == 0 {
		return
	}
	s.Plots = append(s.Plots, comparisonPlot(comparisons, order, names))
}

// sideBySide returns a table with a column per run and a row per figure name of
// any run.
func sideBySide(caption string, names []string, runs []bench.Result, get func(bench.Result) []Figure) table {
	t := table{Caption: caption, Head: append([]string{""}, names...)}
	row := map[string]int{}
	for column, r := range runs {
		for _, f := range get(r) {
			at, ok := row[f.Name]
			if !ok {
				at = len(t.Rows)
				row[f.Name] = at
				t.Rows = append(t.Rows, blankRow(printable(f.Name), len(runs)))
			}
			t.Rows[at][column+1] = f.Text()
		}
	}
	return t
}

// blankRow returns a row with a name and dashes.
func blankRow(name string, columns int) []string {
	row := []string{name}
	for range columns {
		row = append(row, dash)
	}
	return row
}

func formatSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }
