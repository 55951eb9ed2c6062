package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/base/printable"
)

// label returns the name of a run, or a description if it has none.
func label(r bench.Result) string {
	if r.Name != "" {
		return printable.Line(r.Name)
	}
	return strings.TrimSpace(printable.Line(r.Dialect) + " " + string(r.Load.Shape))
}

func labels(runs []bench.Result) []string {
	count, seen := map[string]int{}, map[string]int{}
	for _, r := range runs {
		count[label(r)]++
	}
	var out []string
	for _, r := range runs {
		name := label(r)
		if count[name] > 1 {
			seen[name]++
			name = fmt.Sprintf("%s #%d", name, seen[name])
		}
		out = append(out, name)
	}
	return out
}

func verdict(r bench.Result) string {
	server := ""
	if r.CausedBy(bench.LimitServer) {
		server = " " + printable.Line(r.Reasons(bench.LimitServer))
	}
	switch {
	case r.Interrupted:
		return "INTERRUPTED. " + printable.Line(r.Reasons(bench.LimitNone)) + " Only what was seen until then is here." + server
	case r.Search != nil && r.Search.Found != nil:
		return foundText(r.Search)
	case !r.Valid:
		return "INVALID, it does not show what the server can do: " + printable.Line(r.InvalidReason()) + server
	case server != "":
		return "The server was the limit." + server
	case r.Churn != nil && r.Sent == 0:
		return fmt.Sprintf("%s of %s sessions finished, %s each second.", UnitCount.Format(float64(r.Churn.Finished)),
			UnitCount.Format(float64(r.Churn.Started)), digits(r.Churn.Rate))
	case r.Sent == 0 && r.Offered == 0:
		return fmt.Sprintf("Nothing was offered; %s keep-alives were sent.", UnitCount.Format(float64(r.Keepalives)))
	}
	p99 := ""
	if r.Latency.P99 > 0 { // There are enough samples.
		p99 = ", p99 " + UnitTime.Format(float64(r.Latency.P99))
	}
	return fmt.Sprintf("Neither side was the limit: %s of %s datagrams delivered at %s%s.",
		UnitCount.Format(float64(r.Delivered)), UnitCount.Format(float64(r.Sent)), UnitRate.Format(r.DeliveredRate), p99)
}

func side(r bench.Result) string {
	switch {
	case !r.Valid:
		return "invalid"
	case r.CausedBy(bench.LimitServer):
		return "server"
	}
	return ""
}

func cautions(r bench.Result) (list []string) {
	if r.Load.Shape == "" {
		list = append(list, "the load of the run is not recorded")
	}
	if r.Load.Window > 0 {
		list = append(list, "the loop is closed: a slow server is offered less, and latency is that of full queues")
	}
	switch limits := strings.TrimSpace(r.Limits); {
	case r.Relay != nil && r.Relay.Limited > 0:
		list = append(list, fmt.Sprintf("the relay's rate limits dropped %s datagrams: it was not measured without limits",
			UnitCount.Format(float64(r.Relay.Limited))))
	case r.Load.Window == 0 && r.Search == nil || r.Dialect != "ferry": // It sends less than the server can forward.
	case !limitsOff(limits):
		list = append(list,
			"saturation is measured with rate limits off, and those of the server were: "+printable.Line(cmp.Or(limits, "not reported")))
	case r.Relay == nil && !strings.Contains(limits, "("): // as of the process itself
		list = append(list, "the rate limits of the server are said to be off, and nothing shows it: --admin asks the relay")
	}
	switch p := r.Server; {
	case p.NoSocket:
		list = append(list, fmt.Sprintf("process %d has no socket with the relay's port: its figures are not the relay's and left out", p.PID))
	case p.PID != 0 && p.Run == 0:
		list = append(list, fmt.Sprintf("process %d used no processor time: it is not the relay, and its figures are left out", p.PID))
	}
	if v := r.Gaps; v != nil && v.Over > 0 {
		list = append(list, fmt.Sprintf("%s of %s endpoints got nothing for more than %v beyond their schedule, one of them for %s, and all at the same time for %s",
			UnitCount.Format(float64(v.Over)), UnitCount.Format(float64(v.Endpoints)), bench.GapOver, UnitTime.Format(float64(v.Endpoint)),
			UnitTime.Format(float64(v.Longest))))
	}
	if v := r.Recovery; v != nil {
		list = append(list, fmt.Sprintf("%s endpoints lost their binding or connection, as after a restart: %s were bound again, p99 %s after their first ERROR 3 or the end of the connection, the last %s after the first of all",
			UnitCount.Format(float64(v.Endpoints)), UnitCount.Format(float64(v.Bound)), UnitTime.Format(float64(v.Latency.P99)),
			UnitTime.Format(float64(v.Duration))))
	}
	return append(list, controlCautions(r.Control)...)
}

func limitsOff(profile string) bool {
	word, _, _ := strings.Cut(strings.ToLower(profile), " ")
	return slices.Contains([]string{"off", "off,", "none", "dev"}, word)
}

// mitigations is the name of the longest fact.
const mitigations = "mitigations"

type fact struct{ Name, Value string }

func facts(r bench.Result) []fact {
	started := ""
	if !r.Started.IsZero() {
		started = r.Started.UTC().Format(time.RFC3339)
	}
	list := []fact{
		{"command", shellLine(r.Command)},
		{"commit", r.Commit},
		{"started", started},
		{"load", loadText(r)},
		{"server", fmt.Sprintf("dialect %s, limits %s%s", cmp.Or(r.Dialect, dash), cmp.Or(r.Limits, dash), relayText(r.Relay))},
		{"machine", fmt.Sprintf("%s, %d cores, id %s", cmp.Or(r.Machine.CPU, dash), r.Machine.Cores, cmp.Or(r.Machine.ID, dash))},
		{"kernel", strings.TrimSpace(r.Machine.Kernel + " " + r.Machine.OS + " " + r.Machine.Go)},
		{"pinning", pinningText(r.Load)},
	}
	if r.Machine.Governor != "" {
		list = append(list, fact{"governor", r.Machine.Governor})
	}
	if len(r.Machine.Mitigations) > 0 {
		list = append(list, fact{mitigations, strings.Join(r.Machine.Mitigations, "; ")})
	}
	for i := range list {
		list[i].Value = printable.Line(cmp.Or(list[i].Value, dash))
	}
	return list
}

func relayText(r *bench.Relay) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(", version %s, revision %s, %d workers", cmp.Or(r.Version, dash), cmp.Or(r.Revision, dash), r.Workers)
}

func pinningText(l bench.Load) string {
	if l.Pinned {
		return fmt.Sprintf("generator's thread on processor %d", l.CPU)
	}
	return "generator's thread not pinned"
}

func transportText(l bench.Load) string {
	transport, family := transportOf(l)
	return fmt.Sprintf("%s over %s", transport, family)
}

// transportOf returns the transport and the family of a run, those of older results as well.
func transportOf(l bench.Load) (bench.Transport, bench.Family) {
	return cmp.Or(l.Transport, bench.TransportUDP), cmp.Or(l.Family, bench.FamilyIPv4)
}

func paceText(l bench.Load) string {
	if l.Rate == 0 && l.Window > 0 {
		return fmt.Sprintf("closed loop, window %d", l.Window)
	}
	return "open loop at " + UnitRate.Format(l.Rate)
}

func loadText(r bench.Result) string {
	l := r.Load
	text := fmt.Sprintf("%s, %s, %s, %s matches of 1 + %s, %s flows %s, payload %d B (wire %d B), %s after %s",
		cmp.Or(string(l.Shape), dash), transportText(l), paceText(l), UnitCount.Format(float64(l.Matches)), UnitCount.Format(float64(l.Players)),
		UnitCount.Format(float64(l.Flows)), cmp.Or(string(l.Direction), dash), l.Payload, r.WireBytes, l.Duration, l.Warmup)
	if l.Traffic != "" {
		text += fmt.Sprintf(", traffic %s (payload %s B in the mean)", printable.Line(l.Traffic), digits(l.MeanPayload))
	}
	if n := r.Netcode; n != nil {
		text += fmt.Sprintf(", commands of %d B and snapshots of %d B at %s ticks/s", n.Commands.Bytes, n.Snapshots.Bytes, digits(n.TickRate))
	}
	if l.Align != "" {
		text += ", align " + string(l.Align)
	}
	if l.BindRate > 0 {
		text += ", with " + UnitRate.Format(l.BindRate) + " BINDs"
	}
	if l.AllocateWorkers > 0 {
		text += ", with allocations: " + allocateText(l)
	}
	if l.Baseline > 0 {
		text += ", after " + l.Baseline.String() + " without"
	}
	if l.SessionRate > 0 {
		text += fmt.Sprintf(", with %s sessions that play %s", UnitRate.Format(l.SessionRate), l.SessionLength)
	}
	return text
}

func shellLine(args []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%"
	var out []string
	for _, a := range args {
		if a == "" || strings.Trim(a, plain) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out = append(out, a)
	}
	return strings.Join(out, " ")
}

// controlFigures returns the figures of the control plane and of forwarding at
// the same time. controlTables has all details.
func controlFigures(c *bench.Control) (list []figure) {
	if c == nil {
		return nil
	}
	if b := c.Without; b != nil {
		list = append(list,
			newTimeFigure("p99 without control plane", b.Latency.P99, b.Latency.Samples > 0),
			newTimeFigure("p99 with control plane", c.With.Latency.P99, c.With.Latency.Samples > 0),
			newTimeFigure("p99 moved by", c.P99Moved, c.Compares()))
	}
	for _, k := range callKinds(c) {
		list = append(list, newFigure(k.name+" answered", UnitRate, k.calls.AnsweredRate, true))
		list = append(list, latencyFigures(k.name, k.calls.Latency)...)
	}
	return list
}

type callKind struct {
	name  string
	calls *bench.Calls
}

func callKinds(c *bench.Control) (list []callKind) {
	for _, k := range []callKind{{"BINDs", c.Binds}, {"allocations", c.Allocations}} {
		if k.calls != nil {
			list = append(list, k)
		}
	}
	return list
}

// controlTables returns forwarding without and with load on the control plane,
// and that load. There are none for runs without it.
func controlTables(r bench.Result) (list []table) {
	c := r.Control
	if c == nil {
		return nil
	}
	if c.Without != nil {
		list = append(list, partsTable(c))
	}
	return append(list, callsTable(r.Load, c))
}

func partsTable(c *bench.Control) table {
	t := table{Caption: "Forwarding without and with work for the control plane", Head: []string{"forwarding", "without", "with", "moved by"}}
	t.Rows = append(t.Rows, []string{
		"measured", UnitTime.Format(float64(c.Without.Duration)), UnitTime.Format(float64(c.With.Duration)), "",
	})
	with := partFigures(&c.With)
	for i, a := range partFigures(c.Without) {
		b, moved := with[i], dash
		if a.Known && b.Known {
			if moved = a.Unit.Format(b.Value - a.Value); b.Value > a.Value {
				moved = "+" + moved
			}
		}
		t.Rows = append(t.Rows, []string{a.Name, a.Text(), b.Text(), moved})
	}
	return t
}

func partFigures(p *bench.Part) []figure {
	return []figure{
		{"delivered", UnitRate, p.DeliveredRate, p.Duration > 0, true},
		{"loss", UnitShare, p.LossRatio, p.Offered > 0, false},
		newTimeFigure("latency p50", p.Latency.P50, true),
		newTimeFigure("latency p99", p.Latency.P99, true),
		newTimeFigure("latency p99.9", p.Latency.P999, true),
		newTimeFigure("generator lag p99", p.Lag.P99, true),
		{"server CPU", UnitShare, quotient(float64(p.Server.Run), float64(p.Server.Wall)), p.Server.Wall > 0, false},
	}
}

func callsTable(l bench.Load, c *bench.Control) table {
	t := table{
		Caption: "Work of the control plane meanwhile",
		Head:    []string{"control plane", "asked for", "offered", "sent", "answered", "refused", "answered/s", "p50", "p99"},
	}
	count := func(n uint64) string { return UnitCount.Format(float64(n)) }
	for _, k := range callKinds(c) {
		asked := UnitRate.Format(l.BindRate)
		if k.calls == c.Allocations {
			asked = allocateText(l)
		}
		latency := latencyFigures("", k.calls.Latency)
		t.Rows = append(t.Rows, []string{
			k.name, asked, count(k.calls.Offered), count(k.calls.Sent), count(k.calls.Answered),
			count(k.calls.Refused), UnitRate.Format(k.calls.AnsweredRate), latency[0].Text(), latency[1].Text(),
		})
	}
	return t
}

func allocateText(l bench.Load) string {
	if l.AllocateRate > 0 {
		return fmt.Sprintf("%s, %d at a time", UnitRate.Format(l.AllocateRate), l.AllocateWorkers)
	}
	return fmt.Sprintf("all it can, %d at a time", l.AllocateWorkers)
}

// controlCautions returns signs that the generator caused part of the
// difference.
func controlCautions(c *bench.Control) (list []string) {
	if !c.Compares() {
		return nil
	}
	lag := c.With.Lag.P99 - c.Without.Lag.P99
	if c.P99Moved > 0 && lag > c.P99Moved/2 {
		list = append(list, fmt.Sprintf("the generator's own lag moved by %s at p99 while forwarding moved by %s: that is not all the server's",
			UnitTime.Format(float64(lag)), UnitTime.Format(float64(c.P99Moved))))
	}
	for _, k := range callKinds(c) {
		if k.calls.Sent < k.calls.Offered {
			list = append(list, fmt.Sprintf("%s of %s %s could not be sent in time",
				UnitCount.Format(float64(k.calls.Offered-k.calls.Sent)), UnitCount.Format(float64(k.calls.Offered)), k.name))
		}
	}
	return list
}
