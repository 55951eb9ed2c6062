package report

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/bench"
)

func text(t *testing.T, r bench.Result) string {
	t.Helper()
	var b strings.Builder
	if err := Text(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTextIsOneScreen(t *testing.T) {
	r := sample("base", 1)
	r.Churn = &bench.Churn{Rate: 12, Steps: []bench.Step{{Name: "allocate"}, {Name: "join"}}}
	got := text(t, r)
	if lines := strings.Count(got, "\n"); lines > 40 {
		t.Errorf("%d lines:\n%s", lines, got)
	}
	first, _, _ := strings.Cut(got, "\n")
	if want := "base: The server was the limit. 50 datagrams were lost."; first != want {
		t.Errorf("first line %q, want %q", first, want)
	}
	for _, f := range Figures(r) {
		if f.Known && !strings.Contains(got, f.Text()) {
			t.Errorf("no %s %s in:\n%s", f.Name, f.Text(), got)
		}
	}
	for _, want := range []string{"lost on the way 50", "error: foreign 3", "softirq 5.00 %", "limits off", "'p99<5ms,loss<0.1%'", "machine: receive buffer full 43"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	good := sample("x", 1)
	good.Limit, good.LimitReason = bench.LimitNone, ""
	behind := good
	behind.Limit, behind.LimitReason = bench.LimitGenerator, "5,000 were never sent."
	nothing := bench.Result{Limit: bench.LimitNone, Offered: 1, Sent: 1}
	idle := bench.Result{Limit: bench.LimitNone, Keepalives: 1234}
	stopped := good
	stopped.Interrupted = true
	churn := bench.Result{Limit: bench.LimitNone, Churn: &bench.Churn{Started: 5, Finished: 4, Rate: 2}}
	for want, r := range map[string]bench.Result{
		"Nobody was the limit: 199,950 of 200,000 datagrams delivered at 19,995/s, p99 143 µs.":        good,
		"THE GENERATOR WAS THE LIMIT. 5,000 were never sent. It does not show what the server can do.": behind,
		"INTERRUPTED. Only what was seen until then is here.":                                          stopped,
		"Nothing was delivered.":                            nothing,
		"Nothing was offered; 1,234 keep-alives were sent.": idle,
		"4 of 5 sessions finished, 2.00 each second.":       churn,
	} {
		if got := Verdict(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTextOfBrokenRuns(t *testing.T) {
	for name, r := range broken() {
		if got := text(t, r); strings.Contains(got, "NaN") || strings.Contains(got, "Inf") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	r := sample("\x1b[2Jname\x00", 1)
	r.Dialect, r.LimitReason, r.Errors = "\x1b", "\x1b", map[string]uint64{"\x1b": 1}
	if got := text(t, r); strings.ContainsAny(got, "\x1b\x00") {
		t.Errorf("control characters reach the terminal: %q", got)
	}
}

func TestUnits(t *testing.T) {
	for _, tc := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{UnitTime, 0, "0 ns"}, {UnitTime, 412, "412 ns"}, {UnitTime, 3412.6, "3.41 µs"}, {UnitTime, 999_999, "1.00 ms"},
		{UnitTime, 35_240, "35.2 µs"}, {UnitTime, 143_000, "143 µs"}, {UnitTime, 2.5e9, "2.50 s"}, {UnitTime, 7.2e12, "7,200 s"},
		{UnitCount, 1234567, "1,234,567"}, {UnitCount, -1234, "-1,234"}, {UnitCount, 999, "999"},
		{UnitRate, 20000, "20,000/s"}, {UnitRate, 0.5, "0.50/s"}, {UnitRate, 19995.5, "19,996/s"},
		{UnitShare, 0, "0 %"}, {UnitShare, 0.00025, "0.025 %"}, {UnitShare, 0.5, "50.0 %"}, {UnitShare, 1, "100 %"}, {UnitShare, 1e-7, "1e-05 %"},
		{UnitBytes, 512, "512 B"}, {UnitBytes, 23 << 20, "23.0 MiB"}, {UnitBytes, 5242.88, "5.12 KiB"},
		{UnitNumber, math.NaN(), "–"}, {UnitTime, math.Inf(1), "–"}, {UnitNumber, 0.001, "0.001"},
	} {
		if got := tc.unit.Format(tc.v); got != tc.want {
			t.Errorf("%v of unit %d: got %q, want %q", tc.v, tc.unit, got, tc.want)
		}
	}
}

func TestShellLine(t *testing.T) {
	got := shellLine([]string{"ferry", "bench", "--fail", "p99<5ms", "it's", ""})
	if want := `ferry bench --fail 'p99<5ms' 'it'\''s' ''`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestScales(t *testing.T) {
	plain := func(v float64) string { return digitsShort(v) }
	for _, tc := range []struct{ lo, hi float64 }{{0, 0}, {0, 20000}, {-2, 10}, {5, 5}, {1e17, 1e17}, {0, 1e-9}, {0, math.MaxUint64}} {
		s := linearScale(tc.lo, tc.hi, plain)
		if n := len(s.ticks); n < 2 || n > 8 || s.lo > tc.lo || s.hi < tc.hi || s.hi <= s.lo {
			t.Errorf("linear %v: %+v", tc, s)
		}
	}
	for _, values := range [][]float64{nil, {math.NaN(), 0, -3}, {1}, {7}, {1000, 999}, {20, 3e9}, {1, math.MaxInt64}} {
		s := logScale(values, plain)
		lo, hi, ok := extent(values, true)
		if n := len(s.ticks); n < 2 || n > 25 || s.lo <= 0 || s.hi <= s.lo || ok && (s.lo > lo || s.hi < hi) {
			t.Errorf("log %v: %+v", values, s)
		}
		if _, placed := s.at(0); placed {
			t.Errorf("log %v: 0 has a place", values)
		}
	}
	for _, tc := range []struct {
		percent float64
		samples uint64
		want    float64
	}{{0, 100, 0}, {90, 100, 1}, {99, 1000, 2}, {99.9, 10000, 3}, {100, 1000, 3}, {100, 1, 0}, {100, 0, 0}, {99.9999, 100, 2}} {
		if got := nines(tc.percent, tc.samples); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("nines(%v, %d) = %v, want %v", tc.percent, tc.samples, got, tc.want)
		}
	}
}

func TestKnee(t *testing.T) {
	step := func(dialect string, rate, loss float64) bench.Result {
		return bench.Result{Dialect: dialect, OfferedRate: rate, LossRatio: loss, Sent: 1}
	}
	for name, tc := range map[string]struct {
		runs []bench.Result
		want int
		ok   bool
	}{
		"found":       {[]bench.Result{step("f", 10, 0), step("f", 30, 0.2), step("f", 20, 0.0005)}, 2, true},
		"not reached": {[]bench.Result{step("f", 10, 0), step("f", 20, 0)}, 1, false},
		"all lost":    {[]bench.Result{step("f", 10, 0.5)}, 0, false},
		"two relays":  {[]bench.Result{step("f", 10, 0), step("g", 20, 0.5)}, 0, false},
	} {
		if at, ok := knee(tc.runs); ok != tc.ok || ok && at != tc.want {
			t.Errorf("%s: run %d, %v", name, at, ok)
		}
	}
}

func TestJSON(t *testing.T) {
	a, b := sample("a", 1), sample("b", 2)
	var buf bytes.Buffer
	if err := Write(&buf, a, b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&buf)
	if err != nil || !reflect.DeepEqual(got, []bench.Result{a, b}) {
		t.Errorf("%v, read back %d runs, changed", err, len(got))
	}
	if err := Write(&buf, broken()["nan"]); err == nil {
		t.Error("NaN became JSON")
	}
	for _, bad := range []string{"", "[]", "{}", `{"version":99}`, `{"version":1}x`, `{"version":"1"}`} {
		if _, err := Read(strings.NewReader(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "run.json")
	if err := WriteFile(name, sample("a", 1)); err != nil {
		t.Fatal(err)
	}
	if runs, err := ReadFile(name); err != nil || len(runs) != 1 || runs[0].Name != "a" {
		t.Errorf("%v, %d runs", err, len(runs))
	}
	if err := WriteHTMLFile(filepath.Join(dir, "none", "report.html"), nil); err == nil {
		t.Error("wrote into a directory that is not there")
	}
	page := filepath.Join(dir, "report.html")
	if err := WriteHTMLFile(page, []bench.Result{sample("a", 1)}); err != nil {
		t.Error(err)
	}
	if _, err := ReadFile(page); !errors.Is(err, ErrFormat) {
		t.Errorf("the page as JSON: %v", err)
	}
}
