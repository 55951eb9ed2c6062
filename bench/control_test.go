package bench_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/enginetest"
)

// TestControl: one run has forwarding without and with BINDs and allocations.
func TestControl(t *testing.T) {
	base, calls := serveAPI(t, startDefault(t, enginetest.Start))
	d, err := bench.NewFerry(bench.FerryConfig{BaseURL: base})
	if err != nil {
		t.Fatal(err)
	}
	cfg := ferryConfig(bench.ShapePairs)
	// An API is not called for what was due while the machine stood still until
	// the end, and an endpoint has one BIND under way: there are as many of both.
	cfg.Duration, cfg.Rate, cfg.ServerPID = 2*time.Second, 200, os.Getpid()
	cfg.BindRate, cfg.AllocateRate = 16, 20
	r, err := bench.Run(t.Context(), cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Control
	if c == nil || c.Without == nil {
		t.Fatalf("control %+v", c)
	}
	if r.Load.Baseline != time.Second || r.Load.BindRate != 16 || r.Load.AllocateRate != 20 || r.Load.AllocateWorkers != bench.DefaultAllocateWorkers {
		t.Errorf("load %+v", r.Load)
	}
	for name, p := range map[string]*bench.Part{"without": c.Without, "with": &c.With} {
		if p.Duration != time.Second || p.Offered != 200 || p.Sent != 200 || p.Delivered != 200 ||
			p.Latency.Samples != 200 || p.Lag.Samples != 200 || p.DeliveredRate != 200 || p.Server.Wall == 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if c.P99Moved != c.With.Latency.P99-c.Without.Latency.P99 || r.Latency.Samples != 400 {
		t.Errorf("p99 moved by %v, %d samples", c.P99Moved, r.Latency.Samples)
	}
	if b := c.Binds; b.Offered != 16 || b.Sent != 16 || b.Answered != b.Sent || b.Latency.Samples != b.Answered || b.Latency.P50 <= 0 || r.BindsSent != b.Sent {
		t.Errorf("binds %+v", b)
	}
	a := c.Allocations
	if a.Offered != 20 || a.Sent == 0 || a.Answered != a.Sent || a.Refused != 0 || a.Latency.Samples != a.Answered || a.Duration != time.Second {
		t.Errorf("allocations %+v", a)
	}
	if want := uint64(calls.Load()); r.Setup.Requests+a.Sent != want {
		t.Errorf("%d calls for the set-up and %d for the load, the server saw %d", r.Setup.Requests, a.Sent, want)
	}
}

// TestControlAsFastAsAnswered: without a rate the workers never rest, and
// without a baseline they work all the time.
func TestControlAsFastAsAnswered(t *testing.T) {
	base, calls := serveAPI(t, startDefault(t, enginetest.Start))
	d, err := bench.NewFerry(bench.FerryConfig{BaseURL: base})
	if err != nil {
		t.Fatal(err)
	}
	cfg := ferryConfig(bench.ShapePairs)
	cfg.AllocateWorkers, cfg.Baseline, cfg.Duration = 2, -1, time.Second
	r, err := bench.Run(t.Context(), cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Control
	if c.Without != nil || c.Binds != nil || c.P99Moved != 0 || c.With.Delivered != r.Delivered {
		t.Errorf("control %+v", c)
	}
	if a := c.Allocations; a.Sent < 2 || a.Offered != a.Sent || a.Answered != a.Sent || a.AnsweredRate <= 0 || r.Setup.Requests+a.Sent != uint64(calls.Load()) {
		t.Errorf("%+v of %d calls", a, calls.Load())
	}
}

// TestControlRefused: what cannot be asked for is told before anything starts.
func TestControlRefused(t *testing.T) {
	for want, change := range map[string]func(*bench.Config){
		"has no API":   func(cfg *bench.Config) { cfg.AllocateRate = 5 },
		"no handshake": func(cfg *bench.Config) { cfg.BindRate = 5 },
		"Baseline":     func(cfg *bench.Config) { cfg.Baseline = time.Millisecond },
		"no API to":    func(cfg *bench.Config) { cfg.AllocateWorkers = 9999 },
	} {
		cfg := ferryConfig(bench.ShapePairs)
		change(&cfg)
		if _, err := bench.Run(t.Context(), cfg, benchrig.Direct{}); !errors.Is(err, bench.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
