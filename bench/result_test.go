package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFindCauses(t *testing.T) {
	open, closed := Config{Load: Load{Rate: 1000}}, Config{Load: Load{Window: 8}}
	late := Generator{Lag: Latency{P99: 5 * time.Millisecond}}
	busy := system{User: 20, Kernel: 30, SoftIRQ: 10, Idle: 40}

	for name, test := range map[string]struct {
		r    Result
		cfg  Config
		want string
	}{
		"all well":     {Result{}, open, ""},
		"lost":         {Result{Lost: 1}, open, "server"},
		"own drops":    {Result{Lost: 1, Generator: Generator{Drops: 1}}, open, "generator"},
		"both dropped": {Result{Lost: 3, Generator: Generator{Drops: 1}}, open, "generator server"},
		"refused":      {Result{SendFailed: 1}, open, "generator"},
		"not sent":     {Result{Unsent: 1}, open, "generator"},
		"behind":       {Result{Lost: 1, Generator: late}, open, "generator server"},
		"all that can be": {Result{
			Lost: 9, SendFailed: 1, Unsent: 1, Generator: Generator{Drops: 1, Lag: late.Lag},
		}, open, "generator generator generator generator server"},
		"steal": {Result{System: system{Steal: 2, Idle: 98}}, open, "machine"},
		"neighbours": {Result{Measured: time.Second, System: busy, Server: process{PID: 1, Run: 10},
			Generator: Generator{Process: process{Run: 20}}}, open, "machine"},
		"only these two": {Result{Measured: time.Second, System: busy, Server: process{PID: 1, Run: 25},
			Generator: Generator{Process: process{Run: 21}}}, open, ""},
		"another process":    {Result{Measured: time.Second, System: busy, Server: process{PID: 1, Run: 10, NoSocket: true}}, open, ""},
		"no server":          {Result{Measured: time.Second, System: busy, Generator: Generator{Process: process{Run: 20}}}, open, ""},
		"little steal":       {Result{System: system{Steal: 1, Idle: 999}}, open, ""},
		"a tick takes long":  {Result{Generator: late, Load: Load{Flows: 20}}, Config{Load: Load{Rate: 1000, Shape: shapeStar}}, ""},
		"a tick too long":    {Result{Generator: late, Load: Load{Flows: 4}}, Config{Load: Load{Rate: 1000, Shape: shapeStar}}, "generator"},
		"late BINDs":         {Result{Binds: &Calls{Lag: Latency{P99: 2 * time.Millisecond}}}, open, "generator"},
		"late sessions":      {Result{Churn: &Churn{Lag: late.Lag}}, open, ""},
		"later sessions":     {Result{Churn: &Churn{Lag: Latency{Max: time.Second}}}, Config{}, "generator"},
		"late calls":         {Result{Replaced: &replacement{Lag: Latency{P99: time.Second}}}, open, "generator"},
		"one processor":      {Result{System: system{Shared: new(uint64)}}, open, "machine"},
		"closed, time left":  {Result{Generator: Generator{Busy: 0.5}}, closed, "server"},
		"closed, none left":  {Result{Generator: Generator{Busy: 0.99}}, closed, "generator"},
		"closed, late start": {Result{Generator: late}, closed, "server"},
	} {
		r := test.r
		r.Load.Window = test.cfg.Window
		r.findCauses(&test.cfg)
		var got []string
		for _, c := range r.Causes {
			got = append(got, string(c.Limit))
			if c.Reason == "" {
				t.Errorf("%s: %s without a reason", name, c.Limit)
			}
		}
		if sides := strings.Join(got, " "); sides != test.want || r.Valid == (r.CausedBy(limitGenerator) || r.CausedBy(limitMachine)) {
			t.Errorf("%s: %v, valid %v, want %s", name, r.Causes, r.Valid, test.want)
		}
	}
}

// TestReasonsAreReadable verifies that times in reasons have three digits.
func TestReasonsAreReadable(t *testing.T) {
	r := Result{Generator: Generator{Lag: Latency{P99: 1_234_567}}}
	if r.findCauses(&Config{Load: Load{Rate: 1000}}); !strings.Contains(r.Reasons(limitGenerator), " 1.23 ms late") {
		t.Errorf("%v", r.Causes)
	}
}

func TestSummarise(t *testing.T) {
	h := newHistogram(3)
	if l := newLatency(h, 0, true); l.Samples != 0 || l.Max != 0 || l.Series != nil {
		t.Errorf("without samples: %+v", l)
	}
	for i := range int64(10_000) {
		record(h, (i+1)*1000)
	}
	l := newLatency(h, 0, true)
	near := func(got, want time.Duration) bool {
		return got > want-want/200 && got < want+want/200
	}
	for got, want := range map[time.Duration]time.Duration{
		l.P50: 5 * time.Millisecond, l.P99: 9900 * time.Microsecond, l.P999: 9990 * time.Microsecond,
		l.Max: 10 * time.Millisecond, l.Mean: 5 * time.Millisecond,
	} {
		if !near(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	rising := slices.IsSortedFunc(l.Series, func(a, b quantilePoint) int {
		return int(max(-1, min(1, (a.Percent-b.Percent)*1e9)))
	})
	if n := len(l.Series); n != 38 || !rising || l.Series[n-1].Percent != 100 || l.Series[n-1].Value != l.Max {
		t.Errorf("%d points, rising %v: %v", n, rising, l.Series)
	}
	record(h, -5)
	record(h, 1<<62)
	if h.TotalCount() != 10_002 {
		t.Error("a value outside of the range was not recorded")
	}
}
