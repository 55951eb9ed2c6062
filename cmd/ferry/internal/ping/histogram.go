package ping

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"
)

// bounds are the upper ends of the buckets in seconds. The last bucket has none.
var bounds = []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

// histogram has cumulative le buckets. A Histogram of VictoriaMetrics/metrics has vmrange
// buckets, of which Prometheus cannot compute quantiles.
type histogram struct {
	buckets []*metrics.Counter // one more than bounds
	count   *metrics.Counter
	sum     *metrics.FloatCounter
}

// newHistogram registers the series of a histogram; label adds labels to the name of one.
func newHistogram(set *metrics.Set, name string, label func(metric, more string) string) *histogram {
	h := &histogram{count: set.NewCounter(label(name+"_count", "")), sum: set.NewFloatCounter(label(name+"_sum", ""))}
	for _, bound := range bounds {
		h.buckets = append(h.buckets, set.NewCounter(label(name+"_bucket", fmt.Sprintf(`,le="%v"`, bound))))
	}
	h.buckets = append(h.buckets, set.NewCounter(label(name+"_bucket", `,le="+Inf"`)))
	return h
}

func (h *histogram) update(seconds float64) {
	for i, bucket := range h.buckets {
		if i == len(bounds) || seconds <= bounds[i] {
			bucket.Inc()
		}
	}
	h.count.Inc()
	h.sum.Add(seconds)
}
