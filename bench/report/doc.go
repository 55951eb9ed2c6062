// Package report compares the results of package bench and writes them: as one screen of
// text, as a self-contained HTML page with a plot, as JSON, and in the format of go
// test -bench.
//
//	runs, err := report.ReadFile("before-and-after.json")
//	if err != nil {
//		return err
//	}
//	c, err := report.Compare(runs[0], runs[1])
//	if err != nil {
//		return err // errIncomparable names the reasons
//	}
//	return c.Text(os.Stdout)
//
// The package computes no measurements: every value is a field of a [bench.Result] or
// a quotient of two. Text, page and comparisons show the same figures.
//
// Absolute figures depend on the machine. Ratios between runs of one machine under one
// load are comparable, best as the median over interleaved rounds with its interval. [Compare] and
// [CompareRounds] return an error for all other runs, and warn if the generator and
// not the server was the limit.
//
// The page is one file that loads nothing: uPlot, which is in it, draws the plot. It follows the
// reader's choice of light or dark, and a table under each plot has its numbers, without JavaScript too.
package report
