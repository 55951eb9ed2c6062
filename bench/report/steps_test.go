package report

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/bench"
)

// searched are the runs of a search, best first.
func searched(limit bench.Limit) []bench.Result {
	run := func(step, try int, rate float64, verdict bench.TryVerdict, missed ...string) bench.Result {
		r := sample("ferry", 1)
		r.Load.Rate, r.OfferedRate, r.DeliveredRate = rate, rate, rate*0.99975
		r.Limit, r.LimitReason = bench.LimitNone, ""
		if verdict == bench.TryFailed {
			r.Limit = limit
		}
		r.Search = &bench.Search{Criterion: "loss<0.1%", Step: step, Try: try, Verdict: verdict, Missed: missed}
		return r
	}
	best := run(3, 1, 15_000, bench.TryPassed)
	best.Search.Found = &bench.Found{Rate: 15_000, Failed: 20_000, Runs: 5, Limit: limit, Reason: "20000/s failed whenever it was tried."}
	return []bench.Result{
		best, run(1, 1, 10_000, bench.TryPassed), run(2, 1, 20_000, bench.TryFailed, "loss<0.1%"),
		run(2, 2, 20_000, bench.TryFailed, "loss<0.1%", "all sent in time"), run(4, 1, 17_500, bench.TryStopped),
	}
}

func TestSteps(t *testing.T) {
	runs := searched(bench.LimitServer)
	var b strings.Builder
	if err := Steps(&b, runs); err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, want := range []string{
		"step  try  offered", "1     1    10,000/s", "2     1    20,000/s", "0.025 %  143 µs  failed (loss<0.1%)\n",
		"2     2    20,000/s", "failed (loss<0.1%, all sent in time)\n", "3     1    15,000/s", "passed\n", "4     1    17,500/s", "interrupted\n",
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
	if err := Steps(&b, []bench.Result{sample("x", 1)}); err != nil || b.Len() > 0 || Step(sample("x", 1)) != "" {
		t.Errorf("%v, steps of no search: %q", err, b.String())
	}
}

func TestVerdictOfSearch(t *testing.T) {
	runs := searched(bench.LimitServer)
	if got, want := Verdict(runs[0]), "15,000/s is the highest rate that meets loss<0.1%, in 5 runs. 20000/s failed whenever it was tried."; got != want {
		t.Errorf("got %s", got)
	}
	runs = searched(bench.LimitGenerator)
	runs[0].Search.Found.AtLeast, runs[0].Search.Found.Reason = true, "At 20000/s the generator was the limit."
	if got, want := Verdict(runs[0]), "AT LEAST 15,000/s meets loss<0.1%, in 5 runs. At 20000/s the generator was the limit."; got != want {
		t.Errorf("got %s", got)
	}
	if got := stepVerdict(runs[2]); !strings.HasSuffix(got, ", the generator was the limit") {
		t.Errorf("got %s", got)
	}
}

func TestHTMLOfSearch(t *testing.T) {
	runs := searched(bench.LimitServer)
	elements, text := parse(t, render(t, runs...))
	// Percentiles, rates by run, CPU, and two for each run.
	if n := count(elements, "figure"); n != 3+2*len(runs) || count(elements, "section") != 2 || strings.Contains(text, "differ in") {
		t.Errorf("%d plots and %d cards, with remarks on steps", n, count(elements, "section"))
	}
	for _, want := range []string{"Steps of the search", "failed (loss<0.1%, all sent in time)", "interrupted", Verdict(runs[0])} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
}
