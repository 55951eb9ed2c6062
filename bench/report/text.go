package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// Text writes one screen about a run: the verdict, the load, the figures, and
// the losses.
func Text(w io.Writer, r bench.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", label(r), verdict(r))
	for _, d := range cautions(r) {
		fmt.Fprintf(&b, "CAREFUL: %s\n", d)
	}
	fmt.Fprintln(&b)
	var rows [][]string
	for _, f := range facts(r) {
		rows = append(rows, []string{f.Name, f.Value})
	}
	writeRows(&b, rows)
	fmt.Fprintln(&b)
	rows = nil
	for _, f := range figuresOf(r) {
		if f.Known { // The page shows the others with a figures.Dash.
			rows = append(rows, []string{printable.Line(f.Name), f.Text()})
		}
	}
	writeRows(&b, inTwoColumns(rows))
	fmt.Fprintln(&b)
	fmt.Fprintln(&b, usageLine(r))
	fmt.Fprintln(&b, dropLine(r))
	_, err := io.WriteString(w, b.String())
	return err
}

func inTwoColumns(list [][]string) (out [][]string) {
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

func writeRows(w io.Writer, table [][]string) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range table {
		fmt.Fprintln(tw, "  "+strings.Join(row, "\t"))
	}
	_ = tw.Flush() // Writing to a strings.Builder does not fail.
}

func usageLine(r bench.Result) string {
	s := r.System
	total := s.User + s.Kernel + s.SoftIRQ + s.Steal + s.Idle
	share := func(d time.Duration) string { return figures.Share.Format(quotient(float64(d), float64(total))) }
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
		figures.Time.Format(float64(p.User)), figures.Time.Format(float64(p.System)), p.Threads, figures.Time.Format(float64(p.Wait)))
}

func dropLine(r bench.Result) string {
	var parts []string
	for _, f := range drops(r) {
		if f.Value > 0 {
			parts = append(parts, printable.Line(f.Name)+" "+f.Text())
		}
	}
	if len(parts) == 0 {
		return "drops    none of any kind"
	}
	return "drops    " + strings.Join(parts, ", ")
}

type figure struct {
	Name  string // unique within a run
	Unit  figures.Unit
	Value float64
	Known bool // false: not measured
	More  bool // a higher value is better
}

// figuresOf returns the values of a run that tables and comparisons show, in
// order. Runs of the same shape have the same names in the same order.
func figuresOf(r bench.Result) []figure {
	got, server := r.Latency.Samples > 0, r.Server.IsServer()
	arrived := float64(r.Server.Datagrams)
	gaps := cmp.Or(r.Gaps, &bench.Gaps{})
	list := []figure{
		newFigure("offered", figures.Rate, r.OfferedRate, true),
		newFigure("delivered", figures.Rate, r.DeliveredRate, true),
		{"loss", figures.Share, r.LossRatio, r.Offered > 0, false},
		damageFigure("misdelivered", r.Misdelivered, r.Sent),
		damageFigure("corrupt", r.Corrupt, r.Sent),
		damageFigure("duplicated", r.Duplicated, r.Sent),
		damageFigure("reordered", r.Reordered, r.Sent),
		newTimeFigure("latency mean of the delivered", r.Latency.Mean, got),
		newTimeFigure("latency p50", r.Latency.P50, true),
		newTimeFigure("latency p90", r.Latency.P90, true),
		newTimeFigure("latency p99", r.Latency.P99, true),
		newTimeFigure("latency p99.9", r.Latency.P999, true),
		newTimeFigure("latency max of the delivered", r.Latency.Max, got),
		{"longest gap without delivery", figures.Time, float64(gaps.Longest), r.Gaps != nil, false},
		{"longest gap of an endpoint", figures.Time, float64(gaps.Endpoint), r.Gaps != nil, false},
		{"endpoints with a gap over 1 s", figures.Count, float64(gaps.Over), r.Gaps != nil, false},
		{"endpoints that got nothing", figures.Count, float64(gaps.Absent), gaps.Absent > 0, false},
		{"server CPU per datagram", figures.Time, r.Server.PerDatagram, server && arrived > 0, false},
		{"server CPU", figures.Share, quotient(float64(r.Server.Run), float64(r.Server.Wall)), server && r.Server.Wall > 0, false},
		{"server memory (RSS)", figures.Bytes, float64(r.Server.RSS), server, false},
		{"server memory growth per endpoint", figures.Bytes, perEndpoint(r), server && r.Setup.RSSBefore > 0 &&
			r.Setup.RSSAfter > r.Setup.RSSBefore+minGrowth && r.Load.Endpoints > 0, false},
		newTimeFigure("setup", r.Setup.Duration, r.Setup.Duration > 0),
		newTimeFigure("generator lag p99", r.Generator.Lag.P99, r.Generator.Lag.Samples > 0),
		{"generator busy", figures.Share, r.Generator.Busy, r.Generator.Busy > 0, false},
	}
	if k := r.Keepalives; k.Sent > 0 {
		list = append(append(list, newFigure("keep-alives sent", figures.Count, float64(k.Sent), false),
			newFigure("keep-alives answered", figures.Count, float64(k.Answered), true)), latencyFigures("keep-alives", k.Latency)...)
	}
	if b := r.Binds; b != nil {
		list = append(append(list, newFigure("BINDs answered", figures.Rate, b.AnsweredRate, true)), latencyFigures("BINDs", b.Latency)...)
	}
	return append(append(list, churnFigures(r.Churn)...), replacementFigures(r)...)
}

func churnFigures(c *bench.Churn) (list []figure) {
	if c == nil {
		return nil
	}
	list = append(list, newFigure("sessions finished", figures.Rate, c.Rate, true),
		newFigure("sessions failed", figures.Count, float64(c.Failed), false),
		newFigure("sessions skipped", figures.Count, float64(c.Skipped), false))
	for _, s := range c.Steps {
		list = append(list, latencyFigures(s.Name, s.Latency)...)
	}
	return list
}

func replacementFigures(r bench.Result) []figure {
	p := r.Replaced
	if p == nil {
		return nil
	}
	list := []figure{
		newFigure("matches replaced", figures.Count, float64(p.Arrived), true),
		newFigure("new matches that failed", figures.Count, float64(p.Refused+p.NoEndpoint+p.Failed), false),
		newFigure("silent endpoints ended", figures.Count, float64(p.Ended), true),
		newFigure("silent endpoints not ended", figures.Count, float64(p.NotEnded), false),
		newFigure("live endpoints ended", figures.Count, float64(p.EndedEarly), false),
	}
	for _, l := range []struct {
		name string
		of   bench.Latency
	}{{"reservation", p.Reserve}, {"BIND", p.Bind}, {"arrival", p.Ready}, {"silence until the end", p.End}} {
		list = append(append(list, latencyFigures(l.name, l.of)...), newTimeFigure(l.name+" p99.9", l.of.P999, l.of.Samples > 0))
	}
	return list
}

// damageFigure is the share of what was sent. It is left out where there was none.
func damageFigure(name string, n, sent uint64) figure {
	return figure{name, figures.Share, quotient(float64(n), float64(max(sent, 1))), n > 0, false}
}

func newFigure(name string, unit figures.Unit, v float64, more bool) figure {
	return figure{name, unit, v, true, more}
}

func newTimeFigure(name string, d time.Duration, ok bool) figure {
	return figure{name, figures.Time, float64(d), ok && d != 0, false}
}

func latencyFigures(name string, l bench.Latency) []figure {
	got := l.Samples > 0
	return []figure{newTimeFigure(name+" p50", l.P50, got), newTimeFigure(name+" p99", l.P99, got)}
}

// Text returns the formatted value, or a dash if it was not measured.
func (f figure) Text() string {
	if !f.Known {
		return figures.Dash
	}
	return f.Unit.Format(f.Value)
}

func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// minGrowth is the least growth of memory that is not chance, such as that of a runtime.
const minGrowth = 1 << 20

// perEndpoint returns the growth of the server's process memory per endpoint
// during set-up, without kernel memory and without what it had from before.
func perEndpoint(r bench.Result) float64 {
	return quotient(float64(r.Setup.RSSAfter)-float64(r.Setup.RSSBefore), float64(r.Load.Endpoints))
}

func drops(r bench.Result) []figure {
	type count struct {
		name string
		n    uint64
	}
	counts := []count{
		{"lost on the way", r.Lost},
		{"duplicated", r.Duplicated},
		{"reordered", r.Reordered},
		{"too late to tell", r.Late},
		{"corrupt", r.Corrupt},
		{"delivered to another endpoint", r.Misdelivered},
		{"refused by the generator's kernel", r.SendFailed},
		{"not sent, connection ended or blocked", r.Blocked},
		{"due but never sent", r.Unsent},
		{"dropped on the generator's sockets", r.Generator.Drops},
		{"machine: receive buffer full", r.System.RcvbufErrors},
		{"machine: receive buffer full, not the generator's", r.System.OtherRcvbufErrors},
		{"machine: send buffer full", r.System.SndbufErrors},
		{"machine: in errors", r.System.InErrors},
		{"machine: no such port", r.System.NoPorts},
	}
	if c := r.Connections; c != nil {
		counts = append(counts,
			count{"connections ended by the relay", c.Ended},
			count{"waited for room in the kernel's buffer", c.Waited},
			count{"TCP segments sent again", c.Retransmitted},
			count{"receive buffer of a connection nearly full", c.Backlogged})
	}
	var list []figure
	for _, c := range counts {
		list = append(list, newFigure(c.name, figures.Count, float64(c.n), false))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Errors)) {
		list = append(list, newFigure("error: "+name, figures.Count, float64(r.Errors[name]), false))
	}
	return list
}

func ratio(v float64) string {
	if v <= 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return figures.Dash
	}
	if v >= 100 {
		return figures.Count.Format(v)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// Steps writes a row for each run of a search in order, if there are any.
func Steps(w io.Writer, runs []bench.Result) error {
	var b strings.Builder
	if t := stepsTable(runs); len(t.Rows) > 0 {
		fmt.Fprintln(&b, t.Caption)
		writeRows(&b, append([][]string{t.Head}, t.Rows...))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Step returns one line about a run of a search.
func Step(r bench.Result) string {
	return fmt.Sprintf("step %d, try %d: %s offered, %s delivered, %s lost, p99 %s: %s", r.Search.Step, r.Search.Try,
		figures.Rate.Format(r.Load.Rate), figures.Rate.Format(r.DeliveredRate), figures.Share.Format(r.LossRatio),
		newTimeFigure("", r.Latency.P99, true).Text(), stepVerdict(r))
}

// stepsTable returns a row per run of a search, without other runs.
func stepsTable(runs []bench.Result) table {
	t := table{Caption: "Steps of the search", Head: []string{"step", "try", "offered", "delivered", "loss", "p99", "verdict"}}
	all := slices.DeleteFunc(slices.Clone(runs), func(r bench.Result) bool { return r.Search == nil })
	slices.SortStableFunc(all, func(a, b bench.Result) int {
		return cmp.Or(cmp.Compare(a.Search.Step, b.Search.Step), cmp.Compare(a.Search.Try, b.Search.Try))
	})
	for _, r := range all {
		t.Rows = append(t.Rows, []string{
			strconv.Itoa(r.Search.Step), strconv.Itoa(r.Search.Try), figures.Rate.Format(r.Load.Rate),
			figures.Rate.Format(r.DeliveredRate), figures.Share.Format(r.LossRatio), newTimeFigure("", r.Latency.P99, true).Text(), stepVerdict(r),
		})
	}
	return t
}

// stepVerdict returns the missed condition, and what made the run invalid.
func stepVerdict(r bench.Result) string {
	text := r.Search.Verdict
	if len(r.Search.Missed) > 0 {
		text += " (" + strings.Join(r.Search.Missed, ", ") + ")"
	}
	if reasons := r.InvalidReason(); r.Search.Verdict == "failed" && reasons != "" {
		text += ", invalid: " + strings.TrimSuffix(reasons, ".")
	}
	return printable.Line(text)
}

func foundText(s *bench.Search) string {
	f := s.Found
	reason := printable.Line(f.Reason)
	if f.AtLeast {
		return fmt.Sprintf("AT LEAST %s meets %s, in %d runs. %s", figures.Rate.Format(f.Rate), printable.Line(s.Criterion), f.Runs, reason)
	}
	return fmt.Sprintf("%s is the highest rate that meets %s, in %d runs. %s",
		figures.Rate.Format(f.Rate), printable.Line(s.Criterion), f.Runs, reason)
}
