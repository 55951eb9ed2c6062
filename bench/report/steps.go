package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// Steps writes a table of the runs of a search in the order in which they were
// made: rate, loss and verdict of each. It writes nothing if there are none.
func Steps(w io.Writer, runs []bench.Result) error {
	t := stepsTable(runs)
	if len(t.Rows) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintln(&b, t.Caption)
	rows(&b, append([][]string{t.Head}, t.Rows...))
	_, err := io.WriteString(w, b.String())
	return err
}

// Step writes one line about a run of a search.
func Step(r bench.Result) string {
	s := r.Search
	if s == nil {
		return ""
	}
	return fmt.Sprintf("step %d, try %d: %s offered, %s delivered, %s lost, p99 %s: %s", s.Step, s.Try,
		UnitRate.Format(r.Load.Rate), UnitRate.Format(r.DeliveredRate), UnitShare.Format(r.LossRatio),
		Figure{Unit: UnitTime, Value: float64(r.Latency.P99), Known: r.Latency.Samples > 0}.Text(), stepVerdict(r))
}

// stepsTable has a row per run of a search; other runs are left out.
func stepsTable(runs []bench.Result) table {
	t := table{Caption: "Steps of the search", Head: []string{"step", "try", "offered", "delivered", "loss", "p99", "verdict"}}
	all := slices.DeleteFunc(slices.Clone(runs), func(r bench.Result) bool { return r.Search == nil })
	slices.SortStableFunc(all, func(a, b bench.Result) int {
		return cmp.Or(cmp.Compare(a.Search.Step, b.Search.Step), cmp.Compare(a.Search.Try, b.Search.Try))
	})
	for _, r := range all {
		p99 := Figure{Unit: UnitTime, Value: float64(r.Latency.P99), Known: r.Latency.Samples > 0}
		t.Rows = append(t.Rows, []string{
			strconv.Itoa(r.Search.Step), strconv.Itoa(r.Search.Try), UnitRate.Format(r.Load.Rate),
			UnitRate.Format(r.DeliveredRate), UnitShare.Format(r.LossRatio), p99.Text(), stepVerdict(r),
		})
	}
	return t
}

// stepVerdict says what was missed, and if it was the generator's doing.
func stepVerdict(r bench.Result) string {
	text := string(r.Search.Verdict)
	if len(r.Search.Missed) > 0 {
		text += " (" + strings.Join(r.Search.Missed, ", ") + ")"
	}
	if r.Search.Verdict == bench.TryFailed && r.Limit == bench.LimitGenerator {
		text += ", the generator was the limit"
	}
	return printable(text)
}

// foundText is the outcome of a search.
func foundText(s *bench.Search) string {
	f := s.Found
	reason := printable(f.Reason)
	if f.AtLeast {
		return fmt.Sprintf("AT LEAST %s meets %s, in %d runs. %s", UnitRate.Format(f.Rate), printable(s.Criterion), f.Runs, reason)
	}
	return fmt.Sprintf("%s is the highest rate that meets %s, in %d runs. %s", UnitRate.Format(f.Rate), printable(s.Criterion), f.Runs, reason)
}
