package metrics

import (
	"bytes"
	"fmt"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
)

// bounds are the upper ends of the buckets of request times in seconds: an
// allocation takes well under a millisecond, and after 10 s clients give up.
var bounds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// requests counts the requests of the API. The calls are those of httpapi, so
// that there are few.
type requests struct{ answers, times *vm.Set }

func (r requests) add(call string, status int, d time.Duration) {
	r.answers.GetOrCreateCounter(fmt.Sprintf("ferry_http_requests_total{call=%q,status=\"%d\"}", call, status)).Inc()
	r.times.GetOrCreatePrometheusHistogramExt(fmt.Sprintf("ferry_http_request_duration_seconds{call=%q}", call), bounds).Update(d.Seconds())
}

// write writes counts and times, in the same order each time.
func (r requests) write(p *page) {
	p.family("ferry_http_requests_total", counter, "Requests of the API that were answered, by call and status.")
	p.set(r.answers)
	p.family("ferry_http_request_duration_seconds", histogram, "Time that requests of the API took, by call.")
	p.set(r.times)
}

// set writes the samples of a set, whose family has its help already.
func (p *page) set(s *vm.Set) {
	var b bytes.Buffer
	s.WritePrometheus(&b)
	for line := range bytes.Lines(b.Bytes()) {
		if line[0] != '#' {
			p.Write(line)
		}
	}
}
