package report

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/bench"
)

func goBench(t *testing.T, runs ...bench.Result) []string {
	t.Helper()
	var b strings.Builder
	if err := GoBench(&b, runs...); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// TestGoBench: one line for each run, and what they share once.
func TestGoBench(t *testing.T) {
	swap := sample("a b/c", 2)
	swap.Load.Window, swap.Load.Rate = 8, 0
	highest := sample("ferry", 1)
	highest.Search = new(bench.Search)
	got := goBench(t, sample("ferry", 1), swap, highest)
	want := []string{
		"goos: linux", "goarch: amd64", "cpu: Some CPU", "kernel: 6.1.0", "machine: c0ffee", "commit: 0123abc", "limits: off",
		"BenchmarkPairs/relay=ferry/direction=both/endpoints=400/transport=udp/family=ipv4/pace=20000\t199950\t3600.9 cpu-ns\t47000 p50-ns\t143000 p99-ns\t19995 datagrams/s\t50 lost\t7 reordered",
		"BenchmarkPairs/relay=a_b_c/direction=both/endpoints=400/transport=udp/family=ipv4/pace=closed8\t199950\t7201.8 cpu-ns\t94000 p50-ns\t286000 p99-ns\t9998 datagrams/s\t50 lost\t7 reordered",
		"BenchmarkPairs/relay=ferry/direction=both/endpoints=400/transport=udp/family=ipv4/pace=highest\t199950\t3600.9 cpu-ns\t47000 p50-ns\t143000 p99-ns\t19995 datagrams/s\t50 lost\t7 reordered",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnsound: only a valid run that delivered something is one of the server.
func TestUnsound(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench.Result)
		want   string
	}{
		"good":    {func(*bench.Result) {}, ""},
		"invalid": {disturb, "it was busy"},
		"interrupted": {func(r *bench.Result) {
			r.Valid, r.Interrupted, r.Causes = false, true, []bench.Cause{{Limit: "none", Reason: "It was stopped."}}
		}, "It was stopped."},
		"empty":      {func(r *bench.Result) { r.Delivered = 0 }, "Nothing was delivered."},
		"no verdict": {func(r *bench.Result) { *r = bench.Result{}; r.Delivered = 1 }, "The run is not marked as valid."},
	} {
		r := sample("x", 1)
		c.change(&r)
		if got := Unsound(r); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestGoBenchHead: another commit is told before the runs that it holds for.
func TestGoBenchHead(t *testing.T) {
	other := sample("ferry", 1)
	other.Commit = "fedcba9"
	got := goBench(t, sample("ferry", 1), other, other)
	var commits, lines int
	for _, line := range got {
		commits += strings.Count(line, "commit: ")
		lines += strings.Count(line, "Benchmark")
	}
	if commits != 2 || lines != 3 {
		t.Errorf("%d commits and %d runs, want 2 and 3, in\n%s", commits, lines, strings.Join(got, "\n"))
	}
}

// TestGoBenchBroken: whatever a run has, each line is a name, a count and pairs
// of a value and a unit.
func TestGoBenchBroken(t *testing.T) {
	for name, r := range brokenRuns() {
		r.Load.Shape = ""
		for _, line := range goBench(t, r) {
			fields := strings.Split(line, "\t")
			if strings.HasPrefix(line, "Benchmark") && (len(fields) < 3 || strings.Contains(fields[0], " ")) {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
}
