package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// Text writes one screen about one run: the verdict first, then what was run,
// its figures, and what was dropped where.
func Text(w io.Writer, r bench.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", label(r), Verdict(r))
	for _, d := range doubts(r) {
		fmt.Fprintf(&b, "CAREFUL: %s\n", d)
	}
	fmt.Fprintln(&b)
	rows(&b, factRows(facts(r)))
	fmt.Fprintln(&b)
	rows(&b, pairedUp(figureCells(loadFigures(r))))
	for _, t := range controlTables(r) {
		fmt.Fprintln(&b)
		rows(&b, append([][]string{t.Head}, t.Rows...))
	}
	fmt.Fprintln(&b)
	fmt.Fprintln(&b, usageLine(r))
	fmt.Fprintln(&b, dropLine(r))
	_, err := io.WriteString(w, b.String())
	return err
}

// factRows leaves out what fills lines and can be read on the page.
func factRows(list []fact) (out [][]string) {
	for _, f := range list {
		if f.Name == mitigations {
			continue
		}
		out = append(out, []string{f.Name, f.Value})
	}
	return out
}

// figureCells leaves out what was not measured: the page shows it with a dash.
func figureCells(list []Figure) (out [][]string) {
	for _, f := range list {
		if f.Known {
			out = append(out, []string{printable(f.Name), f.Text()})
		}
	}
	return out
}

// pairedUp sets a long list of rows in two columns, to keep it on one screen.
func pairedUp(list [][]string) (out [][]string) {
	half := (len(list) + 1) / 2
	for i := range half {
		row := list[i]
		if i+half < len(list) {
			row = append(append([]string{}, row...), list[i+half]...)
		}
		out = append(out, row)
	}
	return out
}

// rows writes a table without rules, its columns aligned to the left.
func rows(w io.Writer, table [][]string) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range table {
		fmt.Fprintln(tw, "  "+strings.Join(row, "\t"))
	}
	_ = tw.Flush() // A strings.Builder takes everything.
}

// usageLine says where the processors' time went.
func usageLine(r bench.Result) string {
	s := r.System
	total := s.User + s.Kernel + s.SoftIRQ + s.Steal + s.Idle
	share := func(d time.Duration) string { return percent(quotient(float64(d), float64(total))) }
	line := "machine  not measured"
	if total > 0 {
		line = fmt.Sprintf("machine  user %s, kernel %s, softirq %s, steal %s, idle %s",
			share(s.User), share(s.Kernel), share(s.SoftIRQ), share(s.Steal), share(s.Idle))
	}
	if r.Server.PID == 0 {
		return line + "\nserver   not measured"
	}
	p := r.Server
	return line + fmt.Sprintf("\nserver   user %s + system %s, %d threads, waited %s for a processor",
		UnitTime.Format(float64(p.User)), UnitTime.Format(float64(p.System)), p.Threads, UnitTime.Format(float64(p.Wait)))
}

// dropLine names every kind of loss that happened.
func dropLine(r bench.Result) string {
	var parts []string
	for _, f := range drops(r) {
		if f.Value > 0 {
			parts = append(parts, printable(f.Name)+" "+f.Text())
		}
	}
	if len(parts) == 0 {
		return "drops    none of any kind"
	}
	return "drops    " + strings.Join(parts, ", ")
}
