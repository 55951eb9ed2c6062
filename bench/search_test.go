package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// runSearch searches where each rate passes that passes says, and returns the rates
// in order. Nothing may be tried below what has passed.
func runSearch(t *testing.T, s *search, passes func(rate float64, run int) bool) (tried []float64) {
	t.Helper()
	for !s.done() {
		if s.next <= s.pass || len(tried) == findRuns {
			t.Fatalf("run %d at %v, though %v has passed", len(tried), s.next, s.pass)
		}
		tried = append(tried, s.next)
		s.recordOutcome(passes(s.next, len(tried)), cause{server: true})
	}
	return tried
}

// TestSearch finds the highest rate of servers of known capacity.
func TestSearch(t *testing.T) {
	for _, capacity := range []float64{1.5, 37, 9_999, 10_000, 123_456, 3e6} {
		s := newSearch(findStart)
		tried := runSearch(t, &s, func(rate float64, _ int) bool { return rate <= capacity })
		fail := s.fail().rate
		if s.pass > capacity || s.pass < capacity*(1-2*findWithin) && fail > 1.6 {
			t.Errorf("capacity %v: found %v after %d runs, %v failed", capacity, s.pass, len(tried), fail)
		}
		if f := s.found(""); f.AtLeast || f.Limit != limitServer || f.Failed != fail || f.Runs != len(tried) {
			t.Errorf("capacity %v: %+v after %d runs", capacity, f, len(tried))
		}
	}
}

// TestSearchSurvivesBadTimes: runs that fail at any rate, wherever they lie,
// do not hide what the server can do.
func TestSearchSurvivesBadTimes(t *testing.T) {
	const capacity = 123_456
	for _, length := range []int{1, 2, 4, 8} {
		for from := 1; from < 20; from++ {
			s := newSearch(findStart)
			tried := runSearch(t, &s, func(rate float64, run int) bool {
				return rate <= capacity && (run < from || run >= from+length)
			})
			if s.pass > capacity || s.pass < 0.9*capacity {
				t.Errorf("runs %d to %d are bad: found %v in %.0f", from, from+length-1, s.pass, tried)
			}
		}
	}
}

func TestSearchNothingPasses(t *testing.T) {
	s := newSearch(findStart)
	tried := runSearch(t, &s, func(float64, int) bool { return false })
	if s.pass != 0 || s.next > 1 || len(tried)%findTries != 0 {
		t.Errorf("found %v after %d runs at %v", s.pass, len(tried), tried)
	}
}

func TestSearchEverythingPasses(t *testing.T) {
	s := newSearch(findStart)
	tried := runSearch(t, &s, func(float64, int) bool { return true })
	if f := s.found(""); f.Rate != findCeiling || !f.AtLeast || f.Limit != limitNone {
		t.Errorf("%+v after %d runs", f, len(tried))
	}
}

// TestSearchBlames: one failure of the server among the tries of the lowest rate
// that failed is proof; those of the generator alone are none.
func TestSearchBlames(t *testing.T) {
	slow := []Cause{{limitGenerator, "It was slow."}}
	late := Result{Sent: 1000, Causes: slow}
	lateAndLost := Result{Sent: 1000, Lost: 326, Causes: slow}
	ownDrops := Result{Sent: 1000, Lost: 326, Generator: Generator{Drops: 326}, Causes: slow}
	for name, c := range map[string]struct {
		runs []Result // in turn
		want string
	}{
		"server":             {[]Result{{Sent: 1000, Lost: 20}}, limitServer},
		"generator":          {[]Result{late}, limitGenerator},
		"a criterion missed": {[]Result{{Sent: 1000}}, limitServer},
		"in turn":            {[]Result{late, late, {Sent: 1000, Lost: 20}}, limitServer},
		"at the same time":   {[]Result{lateAndLost}, limitServer},
		"its own drops":      {[]Result{ownDrops}, limitGenerator},
	} {
		s := newSearch(1000)
		for n := 0; !s.done(); n++ {
			s.recordOutcome(s.next <= 1500, c.runs[n%len(c.runs)].blame())
		}
		f := s.found("")
		if f.Limit != c.want || f.AtLeast != (c.want == limitGenerator) || f.AtLeast && !strings.Contains(f.Reason, "It was slow.") {
			t.Errorf("%s: %+v", name, f)
		}
	}
	s := newSearch(1000)
	s.recordOutcome(true, cause{})
	if f := s.found("The search was interrupted."); f.Rate != 1000 || !f.AtLeast || f.Reason != "The search was interrupted." {
		t.Errorf("interrupted: %+v", f)
	}
}

func TestFindMaxRefused(t *testing.T) {
	criterion, err := ParseThresholds("loss<1%")
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{"closed loop": {Load: Load{Window: 1}}, "churn": {Load: Load{Shape: shapeChurn}}} {
		if _, _, err := FindMax(context.Background(), cfg, Dialect{benchrig.Direct{}}, criterion); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := FindMax(context.Background(), Config{}, Dialect{benchrig.Direct{}}, nil); !errors.Is(err, ErrConfig) {
		t.Errorf("no criterion: %v", err)
	}
}

// TestFindMax searches until ctx ends. On a busy machine any run may fail.
func TestFindMax(t *testing.T) {
	criterion, err := ParseThresholds("p50<1m,dup<1%")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := smallConfig(shapePairs)
	cfg.Rate, cfg.Warmup, cfg.Duration, cfg.Drain = 100, -1, 50*time.Millisecond, 100*time.Millisecond
	var reported []Result
	passed := 0.0
	cfg.OnRun = func(r Result) {
		reported = append(reported, r)
		if r.Search.Verdict == tryPassed {
			passed = max(passed, r.Load.Rate)
			cancel()
		}
	}
	best, all, err := FindMax(ctx, cfg, Dialect{benchrig.Direct{}}, criterion)
	measured := func(r Result) bool { return r.Valid && r.Latency.P50 > 0 }
	if (errors.Is(err, ErrNoRate) || errors.Is(err, ErrNoValidRun)) && !slices.ContainsFunc(all, measured) {
		t.Log("the machine was too busy for any run to be valid")
		return
	}
	if !errors.Is(err, context.Canceled) || len(all) < len(reported) || len(all) > len(reported)+1 {
		t.Fatalf("%v after %d runs, reported %d", err, len(all), len(reported))
	}
	for i, r := range reported {
		s := r.Search
		if s.Criterion != "p50<1m,dup<1%" || s.Step != 1+i/findTries || s.Try != 1+i%findTries || s.Found != nil ||
			(s.Verdict == tryPassed) != (len(s.Missed) == 0) {
			t.Errorf("run %d: %+v", i, s)
		}
	}
	f := best.Search.Found
	if f == nil || f.Rate != passed || best.Load.Rate != passed || !f.AtLeast || f.Runs != len(reported) ||
		f.Reason != "The search was interrupted." {
		t.Errorf("best %+v of %v", f, best.Load.Rate)
	}
	if last := all[len(all)-1]; len(all) > len(reported) && last.Search.Verdict != tryStopped {
		t.Errorf("last %+v", last.Search)
	}
}

// TestFindMaxNoValidRun: a search whose generator cannot send what is offered ends after three runs, and says so.
func TestFindMaxNoValidRun(t *testing.T) {
	cfg := smallConfig(shapePairs)
	cfg.Rate, cfg.Warmup, cfg.Duration, cfg.Drain = findCeiling, -1, 20*time.Millisecond, 20*time.Millisecond
	best, all, err := FindMax(t.Context(), cfg, Dialect{benchrig.Direct{}}, parsed(t, "loss<1%"))
	if !errors.Is(err, ErrNoValidRun) || errors.Is(err, ErrNoRate) || best.Version != 0 || len(all) != 3 ||
		!strings.Contains(err.Error(), "no valid run in 3: The generator ") {
		t.Errorf("%v, best %+v, %d runs", err, best, len(all))
	}
}

// TestFindMaxNothing: a condition that cannot hold ends the search, and every
// run says which it was.
func TestFindMaxNothing(t *testing.T) {
	criterion, err := ParseThresholds("delivered>1M,loss<1%")
	if err != nil {
		t.Fatal(err)
	}
	cfg := smallConfig(shapePairs)
	cfg.Rate, cfg.Warmup, cfg.Duration, cfg.Drain = 40, -1, 20*time.Millisecond, 20*time.Millisecond
	var best Result
	var all []Result
	testkit.Poll(testkit.WaitLimit, func() bool {
		best, all, err = FindMax(t.Context(), cfg, Dialect{benchrig.Direct{}}, criterion)
		return !errors.Is(err, ErrNoValidRun) // The generator had no processor.
	})
	if !errors.Is(err, ErrNoRate) || best.Version != 0 || len(all) == 0 {
		t.Fatalf("%v, best %+v, %d runs", err, best, len(all))
	}
	for _, r := range all {
		if r.Search.Verdict != tryFailed || !slices.Contains(r.Search.Missed, "delivered>1M") {
			t.Errorf("%+v", r.Search)
		}
	}
}

func sampleResult() *Result {
	return &Result{
		Offered: 10_000, Sent: 10_000, Delivered: 9_990, Lost: 10, LossRatio: 0.001, Duplicated: 1, Reordered: 100, DeliveredRate: 99_900,
		Latency: Latency{
			Samples: 9990, Mean: 50 * time.Microsecond, P50: 40 * time.Microsecond, P90: 80 * time.Microsecond,
			P99: 5 * time.Millisecond, P999: 9 * time.Millisecond, Max: 12 * time.Millisecond,
		},
		Server: process{PID: 1, Run: 1, Datagrams: 9990, PerDatagram: 3400},
		Binds:  &Calls{AnsweredRate: 99_000},
	}
}

func TestThresholds(t *testing.T) {
	for s, want := range map[string]bool{
		"p99<5ms": false, "p99<=5ms": true, "p99>4ms": true, "p99>=5.1ms": false,
		"mean<51us": true, "p50<41µs": true, "p90<80us": false, "p999<10ms": true, "max<12ms": false,
		"loss<0.1%": false, "loss<=0.1%": true, "loss<0.0011": true, "dup<0.1%": true, "reorder<1%": false,
		"misdelivered<=0": true, "misdelivered>0": false, "corrupt<0.1%": true, "cpu<3.5us": true, "cpu<3400ns": false,
		"delivered>99k": true, "delivered>=0.1M": false, "delivered>99000/s": true,
		"binds>=99k": true, "binds>99k": false,
		" p50 < 41us , loss<1% ": true, "p50<41us,loss<0.01%": false, "": true,
	} {
		all, err := ParseThresholds(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		if got := len(Missed(all, sampleResult())) == 0; got != want {
			t.Errorf("%q: met %v, want %v", s, got, want)
		}
	}
	for condition, want := range map[string]string{
		"p99<5ms": "5.00 ms", "gap<1s": "not measured", "cpu<1us": "3.40 µs", "loss<0.1%": "0.10 %",
		"binds>=99k": "99,000/s", "valid": "valid false",
	} {
		if got, _ := parsed(t, condition)[0].Check(sampleResult()); got != want {
			t.Errorf("%s: %q, want %q", condition, got, want)
		}
	}
}

func TestThresholdsRefused(t *testing.T) {
	for _, s := range []string{
		"p99", "p99=5ms", "p98<5ms", "p99<5", "p99<-5ms", "<5ms", "loss<NaN", "loss<", "p99<5ms,", ",",
		"loss<1%%", "delivered>1G", "delivered>Inf", "p99<<5ms", "cpu<5%",
	} {
		if all, err := ParseThresholds(s); err == nil {
			t.Errorf("%q: %v, %v", s, all, err)
		}
	}
}

// TestThresholdsUnmeasured: an unmeasured value meets no condition.
func TestThresholdsUnmeasured(t *testing.T) {
	for _, s := range []string{"p99<5ms", "loss<1%", "cpu<1s", "delivered>=0", "dup<=0", "binds>=0"} {
		all, err := ParseThresholds(s)
		if err != nil {
			t.Fatal(err)
		}
		if len(Missed(all, &Result{})) != 1 {
			t.Errorf("an empty result meets %s", s)
		}
	}
}

func FuzzThresholds(f *testing.F) {
	f.Add("p99<5ms,loss<0.1%")
	f.Add("delivered>=100k/s, cpu <= 3.5us")
	f.Add("<>,=")
	f.Fuzz(func(t *testing.T, s string) {
		all, err := ParseThresholds(s)
		if err != nil {
			return
		}
		for _, th := range all {
			again, err := ParseThresholds(th.text)
			if err != nil || len(again) != 1 || again[0] != th {
				t.Errorf("%q in %q: %+v became %+v, %v", th.text, s, th, again, err)
			}
			if !strings.Contains(s, th.text) {
				t.Errorf("%q is not in %q", th.text, s)
			}
		}
	})
}
