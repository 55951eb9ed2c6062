package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// errFormat is that of a file without results, or with results of another
// version.
var errFormat = errors.New("no result of ferry bench")

// Write writes one result as a JSON object, and several as an array.
func Write(w io.Writer, runs ...bench.Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	var err error
	if len(runs) == 1 {
		err = enc.Encode(runs[0])
	} else {
		err = enc.Encode(runs)
	}
	if err != nil {
		return fmt.Errorf("report: write JSON: %w", err)
	}
	return nil
}

// Read reads the results that [Write] wrote; there must be at least one. It ignores unknown
// members, so that newer files can be read.
func Read(r io.Reader) (runs []bench.Result, err error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		text = slices.Concat([]byte("["), text, []byte("]"))
	}
	if err := json.Unmarshal(text, &runs); err != nil {
		return nil, fmt.Errorf("%w: %w", errFormat, err)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("%w: it is empty", errFormat)
	}
	for _, one := range runs {
		if one.Version != bench.ResultVersion {
			return nil, fmt.Errorf("%w of version %d: it says version %d", errFormat, bench.ResultVersion, one.Version)
		}
	}
	return runs, nil
}

// ReadFile reads all results of the file name.
func ReadFile(name string) ([]bench.Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	runs, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return runs, nil
}

// Unsound returns why a run is no measurement of its server: it is invalid, or nothing
// was delivered. It returns "" for all others.
func Unsound(r bench.Result) string {
	switch {
	case !r.Valid:
		return cmp.Or(printable.Line(r.InvalidReason()), "The run is not marked as valid.")
	case r.Delivered == 0:
		return "Nothing was delivered."
	}
	return ""
}

// GoBench writes runs in the format of go test -bench, one line for each, which
// benchstat and other tools of that format read
// (golang.org/design/14313-benchmark-format). The name of a line is the work,
// with the run's own name as relay=NAME, so that
//
//	benchstat -col /relay FILE
//
// sets relays side by side. Its count of iterations is that of the datagrams
// that arrived. Values that were not measured are left out, as is damage that there
// was not, and a run without values.
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

func goBenchHead(r bench.Result) string {
	os, arch, _ := strings.Cut(r.Machine.OS, "/")
	var b strings.Builder
	for _, line := range [][2]string{
		{"goos", os}, {"goarch", arch}, {"cpu", r.Machine.CPU}, {"kernel", r.Machine.Kernel},
		{"machine", r.Machine.ID}, {"commit", r.Commit}, {"limits", r.Limits},
	} {
		if line[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", line[0], printable.Line(line[1]))
		}
	}
	return b.String()
}

// goBenchName returns the benchmark name: the requested work, without measured
// values, which would separate rounds of the same work.
func goBenchName(r bench.Result) string {
	shape := r.Load.Shape
	transport, family := transportOf(r.Load)
	name := "Benchmark" + strings.ToUpper(shape[:min(1, len(shape))]) + shape[min(1, len(shape)):] +
		"/relay=" + escapeWord(label(r)) + "/direction=" + escapeWord(r.Load.Direction) +
		fmt.Sprintf("/endpoints=%d/transport=%s/family=%s", r.Load.Endpoints, escapeWord(transport), escapeWord(family))
	switch {
	case r.Search != nil:
		return name + "/pace=highest"
	case r.Load.Window > 0:
		return name + fmt.Sprintf("/pace=closed%d", r.Load.Window)
	}
	return name + fmt.Sprintf("/pace=%.0f", r.Load.Rate)
}

func goBenchValues(r bench.Result) (list []string) {
	if r.Server.IsServer() && r.Server.Datagrams > 0 {
		list = append(list, fmt.Sprintf("%.1f cpu-ns", r.Server.PerDatagram))
	}
	for _, q := range []struct {
		name  string
		value time.Duration
	}{{"p50", r.Latency.P50}, {"p99", r.Latency.P99}} {
		if q.value > 0 && q.value < figures.Lost {
			list = append(list, fmt.Sprintf("%d %s-ns", q.value, q.name))
		}
	}
	if r.Latency.Samples > 0 {
		list = append(list, fmt.Sprintf("%.0f datagrams/s", r.DeliveredRate), fmt.Sprintf("%d lost", r.Latency.Lost))
	}
	for _, damage := range []struct {
		name string
		n    uint64
	}{{"misdelivered", r.Misdelivered}, {"corrupt", r.Corrupt}, {"duplicated", r.Duplicated}, {"reordered", r.Reordered}} {
		if damage.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", damage.n, damage.name))
		}
	}
	return list
}

func escapeWord(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' || r == '\t' {
			return '_'
		}
		return r
	}, printable.Line(s))
}
