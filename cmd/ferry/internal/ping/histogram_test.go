package ping

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metrics"
)

// TestHistogram: buckets are cumulative, as Prometheus requires.
func TestHistogram(t *testing.T) {
	set := metrics.NewSet()
	h := newHistogram(set, "trip_seconds", func(metric, more string) string { return fmt.Sprintf(`%s{transport="udp"%s}`, metric, more) })
	for _, seconds := range []float64{0.0001, 0.0005, 0.004, 10} {
		h.update(seconds)
	}
	var page bytes.Buffer
	set.WritePrometheus(&page)
	for _, want := range []string{
		`trip_seconds_bucket{transport="udp",le="0.0005"} 2`, `trip_seconds_bucket{transport="udp",le="0.002"} 2`,
		`trip_seconds_bucket{transport="udp",le="0.005"} 3`, `trip_seconds_bucket{transport="udp",le="5"} 3`,
		`trip_seconds_bucket{transport="udp",le="+Inf"} 4`, `trip_seconds_count{transport="udp"} 4`, `trip_seconds_sum{transport="udp"} 10.0046`,
	} {
		if !strings.Contains(page.String(), want+"\n") {
			t.Errorf("%s is missing in\n%s", want, &page)
		}
	}
}
