package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// GoBench writes runs in the format of go test -bench, one line for each, which
// benchstat and other tools of that format read
// (golang.org/design/14313-benchmark-format). The name of a line is the work,
// with the run's own name as relay=NAME, so that
//
//	benchstat -col /relay FILE
//
// sets relays side by side. Its count of iterations is that of the datagrams
// that arrived. Values that were not measured are left out, and so is a run
// with none.
func GoBench(w io.Writer, runs ...bench.Result) error {
	var b strings.Builder
	var before string
	for _, r := range runs {
		values := goBenchValues(r)
		if len(values) == 0 {
			continue
		}
		if head := goBenchHead(r); head != before {
			b.WriteString(head)
			before = head
		}
		fmt.Fprintf(&b, "%s\t%d", goBenchName(r), r.Delivered)
		for _, v := range values {
			fmt.Fprintf(&b, "\t%s", v)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// goBenchHead are the lines that hold for all that follow.
func goBenchHead(r bench.Result) string {
	os, arch, _ := strings.Cut(r.Machine.OS, "/")
	var b strings.Builder
	for _, line := range [][2]string{
		{"goos", os}, {"goarch", arch}, {"cpu", r.Machine.CPU}, {"kernel", r.Machine.Kernel},
		{"machine", r.Machine.ID}, {"commit", r.Commit}, {"limits", r.Limits},
	} {
		if line[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", line[0], printable(line[1]))
		}
	}
	return b.String()
}

// goBenchName says what the run did. What was reached rather than asked for is
// no part of it: it would keep rounds of one work apart.
func goBenchName(r bench.Result) string {
	shape := string(r.Load.Shape)
	name := "Benchmark" + strings.ToUpper(shape[:min(1, len(shape))]) + shape[min(1, len(shape)):] +
		"/relay=" + word(label(r)) + "/direction=" + word(string(r.Load.Direction)) +
		fmt.Sprintf("/endpoints=%d", r.Load.Endpoints)
	switch {
	case r.Search != nil:
		return name + "/pace=highest"
	case r.Load.Window > 0:
		return name + fmt.Sprintf("/pace=closed%d", r.Load.Window)
	}
	return name + fmt.Sprintf("/pace=%.0f", r.Load.Rate)
}

// goBenchValues are what the run measured, with their units.
func goBenchValues(r bench.Result) (list []string) {
	if r.Server.PID != 0 && r.Server.Datagrams > 0 {
		list = append(list, fmt.Sprintf("%.1f cpu-ns", r.Server.PerDatagram))
	}
	if r.Latency.Samples > 0 {
		list = append(list, fmt.Sprintf("%d p50-ns", r.Latency.P50), fmt.Sprintf("%d p99-ns", r.Latency.P99),
			fmt.Sprintf("%.0f datagrams/s", r.DeliveredRate), fmt.Sprintf("%d lost", r.Lost))
	}
	return list
}

// word makes one word of s, which tools can take apart at slashes.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' || r == '\t' {
			return '_'
		}
		return r
	}, printable(s))
}
