package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

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
	r.Churn = &bench.Churn{Rate: 12}
	r.Churn.Steps = grow(grow(r.Churn.Steps))
	r.Churn.Steps[0].Name, r.Churn.Steps[1].Name = "allocate", "join"
	got := text(t, r)
	if lines := strings.Count(got, "\n"); lines > 40 {
		t.Errorf("%d lines:\n%s", lines, got)
	}
	first, _, _ := strings.Cut(got, "\n")
	if want := "base: The server was the limit. 50 datagrams were lost."; first != want {
		t.Errorf("first line %q, want %q", first, want)
	}
	for _, f := range figuresOf(r) {
		if f.Known && !strings.Contains(got, f.Text()) {
			t.Errorf("no %s %s in:\n%s", f.Name, f.Text(), got)
		}
	}
	for _, want := range []string{"lost on the way 50", "error: foreign 3", "softirq 5.00 %", "limits off", "'p99<5ms,loss<0.1%'",
		"machine: receive buffer full 43"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	good := sample("x", 1)
	good.Causes = nil
	behind := good
	behind.Valid, behind.Causes = false, []bench.Cause{
		{Limit: "generator", Reason: "5,000 were never sent."}, {Limit: "machine", Reason: "It was busy."},
		{Limit: "server", Reason: "700 were lost."},
	}
	idle := good
	idle.Load.Shape, idle.Load.Duration = "idle", time.Minute
	idle.Gaps = &bench.Gaps{Endpoints: 1000, Absent: 4}
	idle.Causes = []bench.Cause{{Limit: "server", Reason: "16 were lost."}}
	stopped := good
	stopped.Valid, stopped.Interrupted, stopped.Causes = false, true, []bench.Cause{{Limit: "none", Reason: "It was stopped."}}
	churn := bench.Result{Valid: true, Churn: &bench.Churn{Started: 5, Finished: 4, Rate: 2}}
	for want, r := range map[string]bench.Result{
		"Neither side was the limit: 199,950 of 200,000 datagrams delivered at 19,995/s, p99 143 µs.":          good,
		"INVALID, it does not show what the server can do: 5,000 were never sent. It was busy. 700 were lost.": behind,
		"INTERRUPTED. It was stopped. Only what was seen until then is here.":                                  stopped,
		"996 of 1,000 endpoints were still there after 1m0s. 16 were lost.":                                    idle,
		"Nothing was offered.":                        {Valid: true},
		"4 of 5 sessions finished, 2.00 each second.": churn,
	} {
		if got := verdict(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTextOfBrokenRuns(t *testing.T) {
	for name, r := range brokenRuns() {
		if got := text(t, r); strings.Contains(got, "NaN") || strings.Contains(got, "Inf") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	r := sample("\x1b[2Jname\x00", 1)
	r.Causes[0].Reason = "\x1b"
	r.Dialect, r.Errors = "\x1b", map[string]uint64{"\x1b": 1}
	if got := text(t, r); strings.ContainsAny(got, "\x1b\x00") {
		t.Errorf("control characters reach the terminal: %q", got)
	}
}

func TestShellLine(t *testing.T) {
	got := shellLine([]string{"ferry", "bench", "--fail", "p99<5ms", "it's", ""})
	if want := `ferry bench --fail 'p99<5ms' 'it'\''s' ''`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCountNines(t *testing.T) {
	for _, tc := range []struct {
		percent float64
		samples uint64
		want    float64
	}{{0, 100, 0}, {90, 100, 1}, {99, 1000, 2}, {99.9, 10000, 3}, {100, 1000, 3}, {100, 1, 0}, {100, 0, 0}, {99.9999, 100, 2}} {
		if got := countNines(tc.percent, tc.samples); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("nines(%v, %d) = %v, want %v", tc.percent, tc.samples, got, tc.want)
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
	if err := Write(&buf, a, b); err != nil || !json.Valid(buf.Bytes()) {
		t.Errorf("several runs are no JSON: %v", err)
	}
	buf.Reset()
	if err := Write(&buf, a); err != nil || buf.Bytes()[0] != '{' {
		t.Errorf("one run is no object: %v", err)
	}
	if got, err := Read(&buf); err != nil || !reflect.DeepEqual(got, []bench.Result{a}) {
		t.Errorf("%v, read back %d runs, changed", err, len(got))
	}
	if err := Write(&buf, brokenRuns()["nan"]); err == nil {
		t.Error("NaN became JSON")
	}
	for _, bad := range []string{"", "[]", "{}", `{"version":99}`, `{"version":2}x`, `{"version":"1"}`} {
		if _, err := Read(strings.NewReader(bad)); !errors.Is(err, errFormat) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestReadFile(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(page, []byte(render(t, sample("a", 1))), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(page); !errors.Is(err, errFormat) || !strings.Contains(err.Error(), page) {
		t.Errorf("the page as JSON: %v", err)
	}
}

// TestTextOfBinds: BINDs beside the datagrams have their figures, in comparisons too, and those that were not sent are named.
func TestTextOfBinds(t *testing.T) {
	r := sample("base", 1)
	r.Load.BindRate = 100_000
	r.Binds = &bench.Calls{Offered: 500_000, Sent: 498_766, Answered: 499_000, AnsweredRate: 99_800,
		Latency: bench.Latency{Samples: 499_000, P50: 61_000, P99: 733_000}}
	got := text(t, r)
	for _, want := range []string{"with 100,000/s BINDs", "99,800/s", "61.0 µs", "733 µs", "1,234 of 500,000 BINDs could not be sent"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	b := sample("b", 1)
	b.Binds = &bench.Calls{AnsweredRate: 49_900}
	if c, err := compare(r, b); err != nil || ratioOf(t, c, "BINDs answered").Ratio.Median != 0.5 {
		t.Errorf("%v, %+v", err, c.Figures)
	}
}

// TestGapDoubts: a restart of the relay is not the few milliseconds in which endpoints were bound again.
func TestGapDoubts(t *testing.T) {
	r := sample("x", 1)
	r.Recovery = newLike(r.Recovery)
	r.Recovery.Endpoints, r.Recovery.Bound, r.Recovery.Latency = 400, 400, bench.Latency{Samples: 400, Max: 2 * time.Millisecond}
	r.Gaps = &bench.Gaps{Longest: 4100 * time.Millisecond, Endpoint: 4200 * time.Millisecond, Endpoints: 400, Over: 399}
	list := cautions(r)
	if want := "399 of 400 endpoints got nothing for more than 1 s beyond their schedule, one of them for 4.20 s, and all at the same time for 4.10 s"; len(list) != 2 ||
		list[0] != want || !strings.Contains(list[1], "400 were bound again, at most 2.00 ms after") {
		t.Errorf("got %q", list)
	}
}

func TestLimitsDoubts(t *testing.T) {
	for limits, want := range map[string]string{
		"": "those of the server were: not reported", "on (ferry serve)": "were: on", "off (ferry dev)": "",
		"off, by hand": "nothing shows it", "dev": "nothing shows it", "none": "nothing shows it",
	} {
		r := sample("x", 1)
		if r.Limits = limits; len(cautions(r)) != 0 {
			t.Errorf("%q: doubts %q of a run that is no saturation", limits, cautions(r))
		}
		r.Load.Rate, r.Load.Window = 0, 4
		got := limitsCautions(r)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: doubts %q", limits, got)
		}
		r.Relay = &bench.Relay{Version: "1.2.3", Workers: 2, Limited: 1234}
		if got := limitsCautions(r); !strings.Contains(got, "rate limits dropped 1,234 datagrams") {
			t.Errorf("%q against a limited relay: %q", limits, got)
		}
		if got := text(t, r); !strings.Contains(got, "version 1.2.3") || !strings.Contains(got, "2 workers") {
			t.Errorf("the relay is not in:\n%s", got)
		}
		if r.Relay.Limited = 0; limitsOff(limits) && limitsCautions(r) != "" {
			t.Errorf("%q of a relay that dropped nothing: %q", limits, limitsCautions(r))
		}
		r.Relay = nil
		if r.Dialect = "swap"; limitsCautions(r) != "" {
			t.Errorf("a relay without limits: %q", cautions(r))
		}
		if !strings.Contains(strings.Join(cautions(r), "\n"), "the loop is closed") {
			t.Errorf("a closed loop: %q", cautions(r))
		}
	}
}

func limitsCautions(r bench.Result) string {
	return strings.Join(slices.DeleteFunc(cautions(r), func(s string) bool { return !strings.Contains(s, "limits") }), "\n")
}

// made returns a value for a pointer to a type that has no name here.
func made[T any](*T) *T { return new(T) }

func searchRuns(limit string) []bench.Result {
	run := func(step, try int, rate float64, verdict string, missed ...string) bench.Result {
		r := sample("ferry", 1)
		r.Load.Rate, r.OfferedRate, r.DeliveredRate = rate, rate, rate*0.99975
		r.Causes = nil
		if verdict == "failed" {
			r.Causes, r.Valid = []bench.Cause{{Limit: limit, Reason: "It was slow."}}, limit == "server"
		}
		r.Search = &bench.Search{Criterion: "loss<0.1%", Step: step, Try: try, Verdict: verdict, Missed: missed}
		return r
	}
	best := run(3, 1, 15_000, "passed")
	best.Search.Found = made(best.Search.Found)
	f := best.Search.Found
	f.Rate, f.Failed, f.Runs, f.Limit, f.Reason = 15_000, 20_000, 5, limit, "20000/s failed whenever it was tried."
	return []bench.Result{
		best, run(1, 1, 10_000, "passed"), run(2, 1, 20_000, "failed", "loss<0.1%"),
		run(2, 2, 20_000, "failed", "loss<0.1%", "all sent in time"), run(4, 1, 17_500, "interrupted"),
	}
}

func TestSteps(t *testing.T) {
	runs := searchRuns("server")
	var b strings.Builder
	if err := Steps(&b, runs); err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, want := range []string{
		"step  try  offered", "1     1    10,000/s", "2     1    20,000/s", "0.025 %  143 µs  failed (loss<0.1%)\n",
		"2     2    20,000/s", "failed (loss<0.1%, all sent in time)\n", "3     1    15,000/s", "passed\n",
		"4     1    17,500/s", "interrupted\n",
	} {
		at := strings.Index(b.String()[last:], want)
		if at < 0 {
			t.Fatalf("no %q in its place in:\n%s", want, b.String())
		}
		last += at
	}
	if got, want := Step(runs[2]), "step 2, try 1: 20,000/s offered, 19,995/s delivered, 0.025 % lost, p99 143 µs: failed (loss<0.1%)"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	b.Reset()
	if err := Steps(&b, []bench.Result{sample("x", 1)}); err != nil || b.Len() > 0 {
		t.Errorf("%v, steps of no search: %q", err, b.String())
	}
}

func TestVerdictOfSearch(t *testing.T) {
	runs := searchRuns("server")
	if got, want := verdict(runs[0]), "15,000/s is the highest rate that meets loss<0.1%, in 5 runs. 20000/s failed whenever it was tried."; got != want {
		t.Errorf("got %s", got)
	}
	runs = searchRuns("generator")
	runs[0].Search.Found.AtLeast, runs[0].Search.Found.Reason = true, "At 20000/s the generator was the limit."
	if got, want := verdict(runs[0]), "AT LEAST 15,000/s meets loss<0.1%, in 5 runs. At 20000/s the generator was the limit."; got != want {
		t.Errorf("got %s", got)
	}
	if got := stepVerdict(runs[2]); !strings.HasSuffix(got, ", invalid: It was slow") {
		t.Errorf("got %s", got)
	}
}

func TestHTMLOfSearch(t *testing.T) {
	runs := searchRuns("server")
	elements, text := parse(t, render(t, runs...))
	// The facts that all share, and the result.
	if n := count(elements, "figure"); n != 1 || count(elements, "section") != 2 || strings.Contains(text, "differ in") {
		t.Errorf("%d plots and %d cards, with remarks on steps", n, count(elements, "section"))
	}
	for _, want := range []string{"Steps of the search", "failed (loss<0.1%, all sent in time)", "interrupted", verdict(runs[0])} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
}
