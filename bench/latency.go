package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Times are recorded in nanoseconds between these bounds; what lies outside is
// moved to the nearer one.
const (
	minLatency = 100
	maxLatency = 60_000_000_000
)

// newHistogram keeps three digits (values below 131 µs to 64 ns), or two for
// those of a second, of which there are many.
func newHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(minLatency, maxLatency, digits)
}

// record never fails: the value is moved into the range first. It does not allocate.
func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(max(minLatency, min(ns, maxLatency)))
}

// recordMany records n samples of one value.
func recordMany(h *hdrhistogram.Histogram, ns, n int64) {
	_ = h.RecordValues(max(minLatency, min(ns, maxLatency)), n)
}

// quantile returns the value that percent of the samples do not exceed, and
// never more than the largest sample.
func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	if h.TotalCount() == 0 {
		return 0
	}
	return time.Duration(min(h.ValueAtQuantile(percent), h.Max()))
}

// times are how long datagrams took to arrive, and how late they left: the lag
// is that of a batch's oldest datagram, once per datagram.
type times struct{ latency, lag *hdrhistogram.Histogram }

func newTimes() times { return times{newHistogram(3), newHistogram(3)} }

// merge adds what others have recorded.
func (t times) merge(others ...times) times {
	for _, o := range others {
		t.latency.Merge(o.latency)
		t.lag.Merge(o.lag)
	}
	return t
}

// summarise returns the figures of a histogram, with the series if asked for.
func summarise(h *hdrhistogram.Histogram, series bool) Latency {
	if h.TotalCount() == 0 {
		return Latency{}
	}
	l := Latency{
		Samples: uint64(h.TotalCount()),
		Mean:    time.Duration(h.Mean()), Min: time.Duration(h.Min()), Max: time.Duration(h.Max()),
		P50: quantile(h, 50), P90: quantile(h, 90), P99: quantile(h, 99), P999: quantile(h, 99.9),
	}
	if series {
		l.Series = nines(h)
	}
	return l
}

// nines are the points of a distribution over a scale of nines: nine for each
// tenfold decrease of the rest, as far as there are samples behind them.
func nines(h *hdrhistogram.Histogram) []Quantile {
	points := []Quantile{{0, time.Duration(h.Min())}}
	for rest := 100.0; rest*float64(h.TotalCount()) >= 100; rest /= 10 {
		for step := range 9 {
			percent := 100 - rest*(1-float64(step+1)/10)
			points = append(points, Quantile{percent, quantile(h, percent)})
		}
	}
	return append(points, Quantile{100, time.Duration(h.Max())})
}
