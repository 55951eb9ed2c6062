package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	open, closed := Config{Rate: 1000, Align: AlignEven}, Config{Window: 8, Align: AlignEven}
	late := Generator{Lag: Latency{P99: 5 * time.Millisecond}}
	for name, test := range map[string]struct {
		r    Result
		cfg  Config
		want Limit
	}{
		"all well":           {Result{}, open, LimitNone},
		"lost":               {Result{Lost: 1}, open, LimitServer},
		"own drops":          {Result{Lost: 1, Generator: Generator{Drops: 1}}, open, LimitGenerator},
		"refused":            {Result{SendFailed: 1}, open, LimitGenerator},
		"not sent":           {Result{Unsent: 1}, open, LimitGenerator},
		"behind":             {Result{Lost: 1, Generator: late}, open, LimitGenerator},
		"a tick takes long":  {Result{Generator: late, Load: Load{Flows: 20}}, Config{Rate: 1000, Align: AlignTick}, LimitNone},
		"a tick too long":    {Result{Generator: late, Load: Load{Flows: 4}}, Config{Rate: 1000, Align: AlignTick}, LimitGenerator},
		"closed, time left":  {Result{Generator: Generator{Busy: 0.5}}, closed, LimitServer},
		"closed, none left":  {Result{Generator: Generator{Busy: 0.99}}, closed, LimitGenerator},
		"closed, late start": {Result{Generator: late}, closed, LimitServer},
	} {
		r := test.r
		if r.setLimit(&test.cfg); r.Limit != test.want || (r.Limit == LimitNone) != (r.LimitReason == "") {
			t.Errorf("%s: %s (%s), want %s", name, r.Limit, r.LimitReason, test.want)
		}
	}
}

// TestJudgeReadable verifies that times in reasons have three digits.
func TestJudgeReadable(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1_234_567: "1.23ms", 999: "999ns", 98_765: "98.8µs", 2_500_000_000: "2.5s", 0: "0s", 999_999: "1ms",
	} {
		if got := roundDigits(d).String(); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
	r := Result{Control: &Control{With: Part{Lag: Latency{P99: 1_234_567}}}}
	if r.setLimit(&Config{Rate: 1000, Align: AlignEven}); r.Limit != LimitGenerator || !strings.Contains(r.LimitReason, " 1.23ms late") {
		t.Errorf("%s: %s", r.Limit, r.LimitReason)
	}
}

// TestKeptPace verifies that datagrams sent too late count against the
// generator's rate.
func TestKeptPace(t *testing.T) {
	for name, c := range map[string]struct {
		r    Result
		want bool
	}{
		"all in time":  {Result{Offered: 5, Sent: 5, Measured: time.Second}, true},
		"not all":      {Result{Offered: 5, Sent: 4, Measured: time.Second}, false},
		"a bit behind": {Result{Measured: time.Second, Generator: Generator{Lag: Latency{P99: 20 * time.Millisecond}}}, true},
		"far behind":   {Result{Measured: time.Second, Generator: Generator{Lag: Latency{P99: 21 * time.Millisecond}}}, false},
		"a short run":  {Result{Measured: time.Millisecond, Generator: Generator{Lag: Latency{P99: 10 * time.Millisecond}}}, true},
	} {
		if got := c.r.isOnSchedule(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSummarise(t *testing.T) {
	h := newHistogram(3)
	if l := newLatency(h, true); l.Samples != 0 || l.Max != 0 || l.Series != nil {
		t.Errorf("without samples: %+v", l)
	}
	for i := range int64(10_000) {
		record(h, (i+1)*1000)
	}
	l := newLatency(h, true)
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
	rising := slices.IsSortedFunc(l.Series, func(a, b Quantile) int {
		return int(max(-1, min(1, (a.Percent-b.Percent)*1e9)))
	})
	if n := len(l.Series); n != 47 || !rising || l.Series[n-1].Percent != 100 || l.Series[n-1].Value != l.Max {
		t.Errorf("%d points, rising %v: %v", n, rising, l.Series)
	}
	record(h, -5)
	record(h, 1<<62)
	if h.TotalCount() != 10_002 {
		t.Error("a value outside of the range was not recorded")
	}
}
