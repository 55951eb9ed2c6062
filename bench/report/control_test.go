package report

import (
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

// controlled is a sample whose second half had BINDs and allocations.
func controlled(name string) bench.Result {
	r := sample(name, 1)
	r.Load.BindRate, r.Load.AllocateWorkers, r.Load.Baseline = 100_000, 4, 5*time.Second
	without, with := r.Latency, sample("", 3).Latency
	r.Control = &bench.Control{
		Without: &bench.Part{Duration: 5 * time.Second, Sent: 100_000, Delivered: 100_000, DeliveredRate: 20_000, Latency: without,
			Server: bench.Process{Run: time.Second, Wall: 5 * time.Second}},
		With: bench.Part{Duration: 5 * time.Second, Sent: 100_000, Delivered: 99_950, Lost: 50, LossRatio: 0.0005, DeliveredRate: 19_990, Latency: with,
			Server: bench.Process{Run: 4 * time.Second, Wall: 5 * time.Second}},
		P99Moved:    with.P99 - without.P99,
		Binds:       &bench.Calls{Offered: 500_000, Sent: 500_000, Answered: 499_000, AnsweredRate: 99_800, Latency: bench.Latency{Samples: 499_000, P50: 61_000, P99: 733_000}},
		Allocations: &bench.Calls{Offered: 5_000, Sent: 5_000, Answered: 4_997, Refused: 3, AnsweredRate: 999.4, Latency: bench.Latency{Samples: 4_997, P50: 1_210_000, P99: 3_450_000}},
	}
	return r
}

// said are the figures of controlled that every report has.
var said = []string{
	"143 µs", "429 µs", "+286 µs", "100,000/s", "500,000", "499,000", "99,800/s", "61.0 µs", "733 µs",
	"all it can, 4 at a time", "5,000", "4,997", "999/s", "1.21 ms", "3.45 ms", "20.0 %", "80.0 %", "+60.0 %",
}

func TestTextOfControl(t *testing.T) {
	got := text(t, controlled("half load"))
	for _, want := range append(said, "moved by", "with 100,000/s BINDs", "after 5s without") {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if lines := strings.Count(got, "\n"); lines > 50 {
		t.Errorf("%d lines:\n%s", lines, got)
	}
	r := controlled("no baseline")
	r.Control.Without, r.Control.Binds = nil, nil
	got = text(t, r)
	if strings.Contains(got, "moved by") || strings.Contains(got, "BINDs  ") || !strings.Contains(got, "4,997") {
		t.Errorf("without a baseline:\n%s", got)
	}
}

func TestHTMLOfControl(t *testing.T) {
	r := controlled("half load")
	page := render(t, r)
	elements, text := parse(t, page)
	for _, want := range append(said, "half load, without", "half load, with", "BINDs and allocations begin") {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	checkDrawing(t, page)
	// Figures, drops, two of the control plane, and those under the plots.
	if tables, plots := count(elements, "table"), count(elements, "details"); tables != 4+plots {
		t.Errorf("%d tables with %d plots", tables, plots)
	}
	if _, text := parse(t, render(t, r, sample("other", 1))); !strings.Contains(text, "half load: Forwarding without and with") {
		t.Error("the table does not say which run it is of")
	}
}

// TestControlFigures: they can be compared, and what was not measured is a dash.
func TestControlFigures(t *testing.T) {
	a, b := controlled("a"), controlled("b")
	b.Control.P99Moved *= 2
	b.Control.Allocations = nil
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if f := figure(t, c, "p99 moved by"); f.Ratio != 2 {
		t.Errorf("ratio %v", f.Ratio)
	}
	for _, f := range c.Figures {
		if strings.HasPrefix(f.Name, "allocations") {
			t.Errorf("%s is compared with nothing", f.Name)
		}
	}
	a.Control.With.Latency = bench.Latency{}
	for _, f := range controlFigures(a.Control) {
		if known := f.Name != "p99 moved by" && f.Name != "p99 with control plane"; f.Known != known {
			t.Errorf("%s: known %v", f.Name, f.Known)
		}
	}
}

func TestControlDoubts(t *testing.T) {
	r := controlled("x")
	if list := controlDoubts(r.Control); len(list) != 0 {
		t.Errorf("doubts %q", list)
	}
	r.Control.With.Lag.P99 = 200 * time.Microsecond
	r.Control.Binds.Sent -= 1234
	got := strings.Join(doubts(r), "\n")
	for _, want := range []string{"lag moved by 200 µs", "forwarding moved by 286 µs", "1,234 of 500,000 BINDs could not be sent"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

func TestLimitsDoubts(t *testing.T) {
	for limits, want := range map[string]string{
		"": "those of the server were: not told", "on (ferry serve)": "were: on", "off (ferry dev)": "", "off, by hand": "", "dev": "", "none": "",
	} {
		r := sample("x", 1)
		if r.Limits = limits; len(doubts(r)) != 0 {
			t.Errorf("%q: doubts %q of a run that is no saturation", limits, doubts(r))
		}
		r.Load.Rate, r.Load.Window = 0, 4
		got := strings.Join(doubts(r), "\n")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: doubts %q", limits, got)
		}
		if r.Dialect = "swap"; len(doubts(r)) != 0 {
			t.Errorf("a relay without limits: %q", doubts(r))
		}
	}
}
