package report

import (
	"math"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// sample is a run as the generator would report it. Its figures follow from
// slower, so that two samples differ everywhere by a known factor.
func sample(name string, slower float64) bench.Result {
	us := func(v float64) time.Duration { return time.Duration(v * slower * 1000) }
	r := bench.Result{
		Version: bench.ResultVersion, Dialect: "ferry",
		Label:   bench.Label{Name: name, Limits: "off", Commit: "0123abc", Command: []string{"ferry", "bench", "--fail", "p99<5ms,loss<0.1%"}},
		Started: time.Date(2026, 11, 21, 2, 3, 4, 0, time.UTC),
		Machine: bench.Machine{ID: "c0ffee", CPU: "Some CPU", Cores: 2, Kernel: "6.1.0", OS: "linux/amd64", Go: "go1.26"},
		Load: bench.Load{Shape: "pairs", Direction: "both", Matches: 200, Players: 1,
			Endpoints: 400, Flows: 400, Rate: 20000, Payload: 112, Duration: 10 * time.Second, Warmup: 2 * time.Second, Pinned: true},
		Offered: 200000, Sent: 200000, Delivered: 199950, Lost: 50, Reordered: 7,
		OfferedRate: 20000, DeliveredRate: 19995 / slower, LossRatio: 0.00025, WireBytes: 150,
		Valid: true, Causes: []bench.Cause{{Limit: "server", Reason: "50 datagrams were lost."}},
		Errors: map[string]uint64{"foreign": 3},
	}
	m := &r.System
	m.User, m.Kernel, m.SoftIRQ, m.Idle, m.RcvbufErrors = 5*time.Second, 7*time.Second, time.Second, 7*time.Second, 43
	r.Setup.Duration, r.Setup.RSSBefore, r.Setup.RSSAfter = us(250000), 20<<20, 22<<20
	p := &r.Server
	p.PID, p.Run, p.User, p.System, p.Wall = 4242, us(720000), us(200000), us(520000), 10*time.Second
	p.Datagrams, p.PerDatagram, p.RSS, p.Threads = 199950, 3600.9*slower, 23<<20, 6
	r.Gaps = &bench.Gaps{Longest: us(1700), Endpoint: us(21000), Endpoints: 400}
	r.Generator.Lag = bench.Latency{Samples: 200000, P99: us(11)}
	r.Generator.Busy = 0.4
	r.Latency = bench.Latency{Samples: 199950, Lost: 50, Mean: us(51), Min: us(20), P50: us(47), P90: us(81), P99: us(143),
		P999: us(911), Max: us(3777)}
	for _, p := range []float64{0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999, 100} {
		n := countNines(p, 199950)
		addPoint(&r.Latency, p, us(20+20*math.Pow(n, 3.3)))
	}
	r.Seconds = []bench.Second{{At: -1, Offered: 20000, Sent: 20000, Delivered: 19900, P50: us(47), P99: us(143), Max: us(1200)}}
	return r
}

// addPoint adds a point, whose type has no name here, to the series of a latency.
func addPoint(l *bench.Latency, percent float64, value time.Duration) {
	l.Series = grow(l.Series)
	p := &l.Series[len(l.Series)-1]
	p.Percent, p.Value = percent, value
}

// newLike is for types whose names are not public.
func newLike[T any](*T) *T { return new(T) }

// grow adds an empty element to a list.
func grow[T any](list []T) []T { return append(list, *new(T)) }

// brokenRuns are runs that have nothing, one of everything, or nonsense.
func brokenRuns() map[string]bench.Result {
	nan := sample("nan", 1)
	nan.OfferedRate, nan.DeliveredRate, nan.LossRatio = math.NaN(), math.Inf(1), math.NaN()
	nan.Server.PerDatagram = math.NaN()
	nan.Latency.Series = nil
	addPoint(&nan.Latency, math.NaN(), 5)
	addPoint(&nan.Latency, 50, 0)
	addPoint(&nan.Latency, 200, -1)
	nan.Generator.Busy = math.Inf(-1)
	one := sample("one", 1)
	one.Latency = bench.Latency{Samples: 1, Mean: 1, Min: 1, P50: 1, P90: 1, P99: 1, P999: 1, Max: 1}
	addPoint(&one.Latency, 100, 1)
	silent := sample("silent", 1)
	silent.Latency, silent.Delivered, silent.DeliveredRate = bench.Latency{Lost: 200000, P50: figures.Lost, P90: figures.Lost,
		P99: figures.Lost}, 0, 0
	huge := sample("huge", 1)
	huge.OfferedRate, huge.Server.PerDatagram = math.MaxFloat64, math.MaxFloat64
	return map[string]bench.Result{"zero": {}, "nan": nan, "one": one, "silent": silent, "huge": huge}
}
