package bench

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// Latency summarises times. What was lost counts in the quantiles as infinitely late, with math.MaxInt64.
// Mean, Min and Max are of the samples. 0 is not measured: a quantile needs a sample above it.
type Latency struct {
	Samples uint64        `json:"samples"`
	Lost    uint64        `json:"lost,omitempty"` // offered, and not among the samples
	Mean    time.Duration `json:"meanNs"`
	Min     time.Duration `json:"minNs"`
	P50     time.Duration `json:"p50Ns"`
	P90     time.Duration `json:"p90Ns"`
	P99     time.Duration `json:"p99Ns"`
	P999    time.Duration `json:"p999Ns"`
	Max     time.Duration `json:"maxNs"`
	// Series is the distribution over a scale of nines, until the lost ones: Percent of the samples, 0 to
	// 100, are at most Value.
	Series []quantilePoint `json:"series,omitempty"`
}

// most returns what 1 % of the samples exceed, or the longest of them if they are too few.
func (l *Latency) most() time.Duration {
	if l.P99 > 0 {
		return l.P99
	}
	return l.Max
}

func (l *Latency) withLost(d time.Duration) time.Duration {
	if l.Lost > 0 {
		return figures.Lost
	}
	return d
}

// quantilePoint is a point of a distribution: Percent of the samples are at most Value.
type quantilePoint struct {
	Percent float64       `json:"percent"` // 0 to 100
	Value   time.Duration `json:"valueNs"`
}

// Histograms record nanoseconds between these bounds, or the nearer one.
const (
	minLatency = 100
	maxLatency = 60_000_000_000
)

// newHistogram keeps three digits, or two for those of a second.
func newHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(minLatency, maxLatency, digits)
}

// record adds a sample, which it moves into the range. It does not allocate.
func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(max(minLatency, min(ns, maxLatency)))
}

// quantile is figures.Lost for one of the lost, and 0 if there are too few to say.
func quantile(h *hdrhistogram.Histogram, lost uint64, percent float64) time.Duration {
	arrived := float64(h.TotalCount())
	all := arrived + float64(lost)
	rank := max(math.Round(all*percent/100), 1)
	switch {
	case all == 0 || all*(100-percent) < 100-1e-6 && percent < 100:
		return 0
	case rank > arrived:
		return figures.Lost
	}
	return time.Duration(min(h.ValueAtQuantile(100*rank/arrived), h.Max()))
}

func newLatency(h *hdrhistogram.Histogram, lost uint64, series bool) Latency {
	l := Latency{
		Samples: uint64(h.TotalCount()), Lost: lost,
		P50: quantile(h, lost, 50), P90: quantile(h, lost, 90), P99: quantile(h, lost, 99), P999: quantile(h, lost, 99.9),
	}
	if l.Samples == 0 {
		return l
	}
	l.Mean, l.Min, l.Max = time.Duration(h.Mean()), time.Duration(h.Min()), time.Duration(h.Max())
	if series {
		l.Series = quantileSeries(h, lost)
	}
	return l
}

// quantileSeries has nine points for each tenfold decrease of the rest.
func quantileSeries(h *hdrhistogram.Histogram, lost uint64) []quantilePoint {
	arrived, all := float64(h.TotalCount()), float64(h.TotalCount())+float64(lost)
	points := []quantilePoint{{0, time.Duration(h.Min())}}
	for rest := 100.0; rest*all >= 100; rest /= 10 {
		for step := range 9 {
			percent := 100 - rest*(1-float64(step+1)/10)
			if d := quantile(h, lost, percent); d > 0 && d < figures.Lost {
				points = append(points, quantilePoint{percent, d})
			}
		}
	}
	return append(points, quantilePoint{100 * arrived / all, time.Duration(h.Max())})
}
