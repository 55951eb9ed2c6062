package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// label returns the name of a run, or a description if it has none.
func label(r bench.Result) string {
	if r.Name != "" {
		return printable.Line(r.Name)
	}
	return strings.TrimSpace(printable.Line(r.Dialect) + " " + r.Load.Shape)
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
	if r.CausedBy("server") {
		server = " " + printable.Line(r.Reasons("server"))
	}
	switch {
	case r.Interrupted:
		return "INTERRUPTED. " + printable.Line(r.Reasons("none")) + " Only what was seen until then is here." + server
	case r.Search != nil && r.Search.Found != nil:
		return foundText(r.Search)
	case !r.Valid:
		return "INVALID, it does not show what the server can do: " + printable.Line(r.InvalidReason()) + server
	case r.Load.Shape == "idle" && r.Gaps != nil:
		return fmt.Sprintf("%s of %s endpoints were still there after %s.%s", figures.Count.Format(float64(r.Gaps.Endpoints-r.Gaps.Absent)),
			figures.Count.Format(float64(r.Gaps.Endpoints)), r.Load.Duration, server)
	case server != "":
		return "The server was the limit." + server
	case r.Churn != nil && r.Sent == 0:
		return fmt.Sprintf("%s of %s sessions finished, %s each second.", figures.Count.Format(float64(r.Churn.Finished)),
			figures.Count.Format(float64(r.Churn.Started)), figures.Digits(r.Churn.Rate))
	case r.Sent == 0 && r.Offered == 0:
		return "Nothing was offered."
	}
	p99 := ""
	if r.Latency.P99 > 0 { // There are enough samples.
		p99 = ", p99 " + figures.Time.Format(float64(r.Latency.P99))
	}
	return fmt.Sprintf("Neither side was the limit: %s of %s datagrams delivered at %s%s.",
		figures.Count.Format(float64(r.Delivered)), figures.Count.Format(float64(r.Sent)), figures.Rate.Format(r.DeliveredRate), p99)
}

func side(r bench.Result) string {
	switch {
	case !r.Valid:
		return "invalid"
	case r.CausedBy("server"):
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
			figures.Count.Format(float64(r.Relay.Limited))))
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
		list = append(list, fmt.Sprintf("%s of %s endpoints got nothing for more than 1 s beyond their schedule, one of them for %s, and all at the same time for %s",
			figures.Count.Format(float64(v.Over)), figures.Count.Format(float64(v.Endpoints)), figures.Time.Format(float64(v.Endpoint)),
			figures.Time.Format(float64(v.Longest))))
	}
	if v := r.Recovery; v != nil {
		list = append(list, fmt.Sprintf("%s endpoints lost their binding or connection, as after a restart: %s were bound again, at most %s after their first ERROR 3 or the end of the connection, the last %s after the first of all",
			figures.Count.Format(float64(v.Endpoints)), figures.Count.Format(float64(v.Bound)), figures.Time.Format(float64(v.Latency.Max)),
			figures.Time.Format(float64(v.Duration))))
	}
	if v := r.Binds; v != nil && v.Sent < v.Offered {
		list = append(list, fmt.Sprintf("%s of %s BINDs could not be sent in time", figures.Count.Format(float64(v.Offered-v.Sent)),
			figures.Count.Format(float64(v.Offered))))
	}
	return list
}

func limitsOff(profile string) bool {
	word, _, _ := strings.Cut(strings.ToLower(profile), " ")
	return slices.Contains([]string{"off", "off,", "none", "dev"}, word)
}

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
		{"server", fmt.Sprintf("dialect %s, limits %s%s", cmp.Or(r.Dialect, figures.Dash), cmp.Or(r.Limits, figures.Dash), relayText(r.Relay))},
		{"machine", fmt.Sprintf("%s, %d cores, id %s", cmp.Or(r.Machine.CPU, figures.Dash), r.Machine.Cores, cmp.Or(r.Machine.ID, figures.Dash))},
		{"kernel", strings.TrimSpace(r.Machine.Kernel + " " + r.Machine.OS + " " + r.Machine.Go)},
		{"pinning", pinningText(r.Load)},
	}
	if r.Machine.Governor != "" {
		list = append(list, fact{"governor", r.Machine.Governor})
	}
	for i := range list {
		list[i].Value = printable.Line(cmp.Or(list[i].Value, figures.Dash))
	}
	return list
}

func relayText(r *bench.Relay) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(", version %s, revision %s, %d workers", cmp.Or(r.Version, figures.Dash), cmp.Or(r.Revision, figures.Dash), r.Workers)
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
func transportOf(l bench.Load) (string, string) {
	return cmp.Or(l.Transport, "udp"), cmp.Or(l.Family, "ipv4")
}

func paceText(l bench.Load) string {
	if l.Shape == "idle" {
		return "silent, and in the end at " + figures.Rate.Format(l.Rate)
	}
	if l.Rate == 0 && l.Window > 0 {
		return fmt.Sprintf("closed loop, window %d", l.Window)
	}
	return "open loop at " + figures.Rate.Format(l.Rate)
}

func loadText(r bench.Result) string {
	l := r.Load
	text := fmt.Sprintf("%s, %s, %s, %s matches of 1 + %s, %s flows %s, payload %d B (wire %d B), %s after %s",
		cmp.Or(l.Shape, figures.Dash), transportText(l), paceText(l),
		figures.Count.Format(float64(l.Matches)), figures.Count.Format(float64(l.Players)),
		figures.Count.Format(float64(l.Flows)), cmp.Or(l.Direction, figures.Dash), l.Payload, r.WireBytes, l.Duration, l.Warmup)
	if l.Traffic != "" {
		text += ", traffic " + printable.Line(l.Traffic)
	}
	if l.BindRate > 0 {
		text += ", with " + figures.Rate.Format(l.BindRate) + " BINDs"
	}
	if l.SessionRate > 0 {
		text += fmt.Sprintf(", with %s sessions that play %s", figures.Rate.Format(l.SessionRate), l.SessionLength)
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
