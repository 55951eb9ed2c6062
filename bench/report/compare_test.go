package report

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

func ratioOf(t *testing.T, c comparison, name string) figureRatio {
	t.Helper()
	for _, f := range c.Figures {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no figure %q", name)
	return figureRatio{}
}

func TestCompare(t *testing.T) {
	c, err := compare(sample("base", 1), sample("other", 2))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"offered": 1, "delivered": 0.5, "loss": 1, "latency p50": 2, "latency p99.9": 2, "latency max of the delivered": 2,
		"server CPU per datagram": 2, "server CPU": 2, "server memory (RSS)": 1, "setup": 2, "generator lag p99": 2,
	} {
		if got := ratioOf(t, c, name).Ratio.Median; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: ratio %v, want %v", name, got, want)
		}
	}
	if len(c.Figures) != len(figuresOf(sample("x", 1))) {
		t.Error("not every figure is compared")
	}
	if len(c.Notes)+len(c.Warnings) != 0 {
		t.Errorf("equal runs have remarks: %v %v", c.Notes, c.Warnings)
	}
}

func TestCompareRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*bench.Result)
		want   string
	}{
		"machine":   {func(r *bench.Result) { r.Machine.ID = "other" }, "different machines: c0ffee"},
		"nameless":  {func(r *bench.Result) { r.Machine.ID = "" }, "does not say which machine"},
		"shape":     {func(r *bench.Result) { r.Load.Shape = "star" }, "different shape: pairs and star"},
		"payload":   {func(r *bench.Result) { r.Load.Payload = 1000 }, "different payload: 112 and 1000"},
		"direction": {func(r *bench.Result) { r.Load.Direction = "up" }, "different direction: both and up"},
		"players":   {func(r *bench.Result) { r.Load.Players = 9 }, "different players per match: 1 and 9"},
		"loop":      {func(r *bench.Result) { r.Load.Window, r.Load.Rate = 4, 0 }, "different loop: open and closed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := sample("b", 1)
			tc.change(&b)
			_, err := compare(sample("a", 1), b)
			if !errors.Is(err, errIncomparable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, err := compareRounds([]bench.Result{sample("a", 1), b}); !errors.Is(err, errIncomparable) {
				t.Errorf("rounds: %v", err)
			}
			if page := render(t, sample("a", 1), b); !strings.Contains(page, tc.want) || strings.Contains(page, `id="comparison"`) {
				t.Error("the page does not say why it compares nothing")
			}
		})
	}
}

func TestCompareRemarks(t *testing.T) {
	a, b := sample("a", 1), sample("b", 1)
	b.Valid, b.Causes = false, []bench.Cause{{Limit: "generator", Reason: "it fell behind"}}
	b.Dialect, b.Load.Matches, b.Limits = "swap", 1000000, "dev"
	disturb(&a)
	c, err := compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := c.Text(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"CAREFUL: b: INVALID, it does not show what the server can do: it fell behind",
		"CAREFUL: a: INVALID, it does not show what the server can do: it was busy",
		"different dialect: ferry and swap", "different matches: 200 and 1000000", "different limits: off and dev",
		"latency p99", "143 µs", "1.000", "B/A",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func disturb(r *bench.Result) {
	r.Valid, r.Causes = false, []bench.Cause{{Limit: "machine", Reason: "it was busy"}}
}

func TestCompareOfBrokenRuns(t *testing.T) {
	for name, r := range brokenRuns() {
		r.Machine, r.Load = sample("", 1).Machine, sample("", 1).Load
		c, err := compare(sample("good", 1), r)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, f := range c.Figures {
			if math.IsNaN(f.Ratio.Median) || f.Ratio.Median < 0 {
				t.Errorf("%s: %s has ratio %v", name, f.Name, f.Ratio)
			}
		}
	}
}

// TestRoundVerdict: a side is better only if the interval of the ratio does not hold 1, and no figure is compared that is
// among the lost in some rounds.
func TestRoundVerdict(t *testing.T) {
	rounds := func(n int, factor func(round int) float64) map[string]figureRatio {
		var runs []bench.Result
		for i := range n {
			a, b := sample("base", 1+float64(i%3)), sample("other", (1+float64(i%3))*factor(i))
			if i == 0 {
				b.Latency.P999 = figures.Lost
			}
			runs = append(runs, a, b)
		}
		r, err := compareRounds(runs)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		byName := map[string]figureRatio{}
		for _, f := range r.Figures {
			byName[f.Name] = f
		}
		if err := r.Text(&text); err != nil || !strings.Contains(text.String(), byName["latency p99"].Verdict()) {
			t.Errorf("%v:\n%s", err, text.String())
		}
		return byName
	}
	faster := rounds(8, func(i int) float64 { return 0.9 + 0.01*float64(i%3) })
	mixed := rounds(8, func(i int) float64 { return 0.8 + 0.4*float64(i%2) })
	for _, c := range []struct {
		in         map[string]figureRatio
		name, want string
	}{
		{faster, "latency p99", "B is better"}, {faster, "delivered", "B is better"}, {faster, "loss", "no difference shown"},
		{faster, "latency p99.9", "lost in 1 rounds"}, {mixed, "latency p99", "no difference shown"},
		{rounds(5, func(int) float64 { return 0.5 }), "latency p99", "too few rounds"},
		{rounds(6, func(int) float64 { return 1.5 }), "latency p99", "B is worse"},
	} {
		if got := c.in[c.name].Verdict(); got != c.want {
			t.Errorf("%s: %s, want %s: %+v", c.name, got, c.want, c.in[c.name])
		}
	}
}

// The machine drifts by more than the sides differ; pairs do not see it.
func TestCompareRounds(t *testing.T) {
	var runs []bench.Result
	for _, drift := range []float64{1, 3, 2, 1.5} {
		runs = append(runs, sample("base", drift), sample("other", drift*0.9))
	}
	r, err := compareRounds(runs)
	if err != nil {
		t.Fatal(err)
	}
	if r.A != "base" || r.B != "other" || r.Pairs != 4 {
		t.Errorf("%s, %s, %d pairs", r.A, r.B, r.Pairs)
	}
	for _, f := range r.Figures {
		if f.Name != "latency p50" {
			continue
		}
		if math.Abs(f.Ratio.Median-0.9) > 1e-3 || math.Abs(f.Ratio.Max-0.9) > 1e-3 || f.Ratio.N != 4 || f.A.Min != 47000 || f.A.Max != 141000 {
			t.Errorf("p50: %+v", f)
		}
		return
	}
	t.Error("no p50")
}

func TestCompareRoundsLeavesOutDisturbed(t *testing.T) {
	runs := []bench.Result{sample("a", 1), sample("b", 1), sample("a", 1), sample("b", 5)}
	disturb(&runs[3])
	r, err := compareRounds(runs)
	if err != nil {
		t.Fatal(err)
	}
	if r.Pairs != 1 || !strings.Contains(strings.Join(r.Warnings, "\n"), "1 of 2 rounds left out") {
		t.Errorf("%d pairs, warnings %q", r.Pairs, r.Warnings)
	}
	var out strings.Builder
	if err := r.Text(&out); err != nil || !strings.Contains(out.String(), "1 interleaved rounds") {
		t.Errorf("%v\n%s", err, out.String())
	}
	disturb(&runs[1])
	if r, err = compareRounds(runs); err != nil || r.Pairs != 2 {
		t.Errorf("all disturbed: %d pairs, %v", r.Pairs, err)
	}
}

func TestCompareRoundsWantsPairs(t *testing.T) {
	a, b := sample("a", 1), sample("b", 1)
	for name, runs := range map[string][]bench.Result{
		"none": nil, "one": {a}, "odd": {a, b, a}, "blocks": {a, a, b, b},
	} {
		if _, err := compareRounds(runs); !errors.Is(err, errRounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCompareWrites: each further run has a table, and what cannot be compared does not hide the others.
func TestCompareWrites(t *testing.T) {
	other := sample("other", 1)
	other.Machine.ID = "another"
	var b strings.Builder
	err := Compare(&b, []bench.Result{sample("a", 1), sample("b", 2), other, sample("c", 3)})
	if !errors.Is(err, errIncomparable) || strings.Count(b.String(), "against A = a") != 2 {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	err = CompareRounds(&b, []bench.Result{sample("a", 1), sample("b", 2)})
	if err != nil || !strings.Contains(b.String(), "1 interleaved rounds") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if err := CompareRounds(&b, []bench.Result{sample("a", 1)}); !errors.Is(err, errRounds) {
		t.Error(err)
	}
}
