package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// maxSteal is the share of time taken by the hypervisor above which a run is
// worth little (reference/performance.md, section 7).
const maxSteal = 0.01

func sorted(m map[string]uint64) []string { return slices.Sorted(maps.Keys(m)) }

// label names a run: its own name, or else what it was.
func label(r bench.Result) string {
	if r.Name != "" {
		return printable(r.Name)
	}
	return strings.TrimSpace(printable(r.Dialect) + " " + string(r.Load.Shape))
}

// labels names runs so that no two are alike.
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

// Verdict is one sentence: how the run went, and who was the limit.
func Verdict(r bench.Result) string {
	reason := ""
	if r.LimitReason != "" {
		reason = " " + strings.TrimSuffix(printable(r.LimitReason), ".") + "."
	}
	switch {
	case r.Interrupted:
		return "INTERRUPTED." + reason + " Only what was seen until then is here."
	case r.Search != nil && r.Search.Found != nil:
		return foundText(r.Search)
	case r.Limit == bench.LimitGenerator:
		return "THE GENERATOR WAS THE LIMIT." + reason + " It does not show what the server can do."
	case r.Limit == bench.LimitServer:
		return "The server was the limit." + reason
	case r.Churn != nil && r.Sent == 0:
		return fmt.Sprintf("%s of %s sessions finished, %s each second.", UnitCount.Format(float64(r.Churn.Finished)),
			UnitCount.Format(float64(r.Churn.Started)), digits(r.Churn.Rate))
	case r.Sent == 0 && r.Offered == 0:
		return fmt.Sprintf("Nothing was offered; %s keep-alives were sent.%s", UnitCount.Format(float64(r.Keepalives)), reason)
	case r.Delivered == 0:
		return "Nothing was delivered." + reason
	}
	return fmt.Sprintf("Nobody was the limit: %s of %s datagrams delivered at %s, p99 %s.",
		UnitCount.Format(float64(r.Delivered)), UnitCount.Format(float64(r.Sent)),
		UnitRate.Format(r.DeliveredRate), UnitTime.Format(float64(r.Latency.P99)))
}

// doubts are reasons to take a run with care.
func doubts(r bench.Result) (list []string) {
	if s := steal(r.System); s > maxSteal {
		list = append(list, fmt.Sprintf("the hypervisor took %s of the processors' time: repeat the run", percent(s)))
	}
	if r.Load.Shape == "" {
		list = append(list, "the run does not say what its load was")
	}
	if limits := strings.TrimSpace(r.Limits); saturates(r) && r.Dialect == "ferry" && !limitsOff(limits) {
		list = append(list, "saturation is measured with rate limits off, and those of the server were: "+printable(orNot(limits)))
	}
	return append(list, controlDoubts(r.Control)...)
}

// saturates reports whether a run asks for as much as the server can do.
func saturates(r bench.Result) bool { return r.Load.Window > 0 || r.Search != nil }

// limitsOff reports whether a profile of limits says that there are none.
func limitsOff(profile string) bool {
	word, _, _ := strings.Cut(strings.ToLower(profile), " ")
	return slices.Contains([]string{"off", "off,", "none", "dev"}, word)
}

func orNot(limits string) string {
	if limits == "" {
		return "not told"
	}
	return limits
}

func steal(s bench.System) float64 {
	total := s.User + s.Kernel + s.SoftIRQ + s.Steal + s.Idle
	return quotient(float64(s.Steal), float64(total))
}

// mitigations is the name of the longest fact.
const mitigations = "mitigations"

// fact is one line of a header.
type fact struct{ Name, Value string }

// facts say what was run, where and how.
func facts(r bench.Result) []fact {
	list := []fact{
		{"command", shellLine(r.Command)},
		{"commit", r.Commit},
		{"started", started(r)},
		{"load", loadText(r)},
		{"server", fmt.Sprintf("dialect %s, limits %s", orNone(r.Dialect), orNone(r.Limits))},
		{"machine", fmt.Sprintf("%s, %d cores, id %s", orNone(r.Machine.CPU), r.Machine.Cores, orNone(r.Machine.ID))},
		{"kernel", strings.TrimSpace(r.Machine.Kernel + " " + r.Machine.OS + " " + r.Machine.Go)},
		{"pinning", pinning(r.Load)},
	}
	if r.Machine.Governor != "" {
		list = append(list, fact{"governor", r.Machine.Governor})
	}
	if len(r.Machine.Mitigations) > 0 {
		list = append(list, fact{mitigations, strings.Join(r.Machine.Mitigations, "; ")})
	}
	for i := range list {
		list[i].Value = printable(orNone(list[i].Value))
	}
	return list
}

func started(r bench.Result) string {
	if r.Started.IsZero() {
		return ""
	}
	return r.Started.UTC().Format(time.RFC3339)
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func pinning(l bench.Load) string {
	if l.Pinned {
		return fmt.Sprintf("generator's thread on processor %d", l.CPU)
	}
	return "generator's thread not pinned"
}

// pace says how the generator was driven.
func pace(l bench.Load) string {
	if l.Rate == 0 && l.Window > 0 {
		return fmt.Sprintf("closed loop, window %d", l.Window)
	}
	return "open loop at " + UnitRate.Format(l.Rate)
}

func loadText(r bench.Result) string {
	l := r.Load
	text := fmt.Sprintf("%s, %s, %s matches of 1 + %s, %s flows %s, payload %d B (wire %d B), %s after %s",
		orNone(string(l.Shape)), pace(l), UnitCount.Format(float64(l.Matches)), UnitCount.Format(float64(l.Players)),
		UnitCount.Format(float64(l.Flows)), orNone(string(l.Direction)), l.Payload, r.WireBytes, l.Duration, l.Warmup)
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
	if l.ChurnRate > 0 {
		text += fmt.Sprintf(", with %s sessions that play %s", UnitRate.Format(l.ChurnRate), l.ChurnPlay)
	}
	return text
}

// shellLine writes a command so that it can be pasted into a shell.
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
