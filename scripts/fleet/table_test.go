//go:build lab && linux

package fleet

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
)

// row is one thing that players saw.
type row struct {
	scenario, what, saw, goal string
	ok                        bool
}

// table is what players saw, in the order of the scenarios. The goroutine of
// the test owns it.
type table struct{ rows []row }

// check adds a row, and fails the test where the goal was missed.
func (t *table) check(tb testing.TB, what, saw, goal string, ok bool) {
	tb.Helper()
	t.rows = append(t.rows, row{scenario(tb), what, saw, goal, ok})
	if !ok {
		tb.Errorf("%s: %s; goal %s", what, saw, goal)
	}
}

// measure adds a row of which the goal is one of time: it decides in the long
// form only.
func (t *table) measure(tb testing.TB, what, saw, goal string, ok bool) {
	tb.Helper()
	if *long {
		t.check(tb, what, saw, goal, ok)
		return
	}
	t.rows = append(t.rows, row{scenario(tb), what, saw, goal, ok})
}

// add adds a row without a goal.
func (t *table) add(tb testing.TB, what, saw string) {
	t.rows = append(t.rows, row{scenario(tb), what, saw, "", true})
}

func scenario(tb testing.TB) string {
	name := tb.Name()
	return name[strings.LastIndexByte(name, '/')+1:]
}

// String is the table for people.
func (t *table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\twhat players saw\t\tgoal\t")
	last := ""
	for _, r := range t.rows {
		shown := r.scenario
		if shown == last {
			shown = ""
		}
		last = r.scenario
		verdict := ""
		if !r.ok {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", shown, r.what, r.saw, r.goal, verdict)
	}
	_ = w.Flush() // A strings.Builder takes everything.
	return b.String()
}
