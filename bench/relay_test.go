package bench

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

const metricsBefore = `# HELP ferry_build_info Version of the build.
ferry_build_info{version="1.2.3",revision="0123abc",goversion="go1.26.8"} 1
ferry_kernel_drops_total 5
ferry_drops_total{reason="rate"} 100
ferry_drops_total{reason="load"} 7
ferry_drops_total{reason="short"} 3
ferry_worker_received_total{worker="0"} 3
ferry_worker_received_total{worker="1"} 3
`

const metricsAfter = `ferry_build_info{version="1.2.3",revision="0123abc",goversion="go1.26.8"} 1
ferry_kernel_drops_total 24
ferry_drops_total{reason="rate"} 1.1e+03
ferry_drops_total{reason="load"} 7
ferry_drops_total{reason="short"} 2
ferry_worker_received_total{worker="0"} 4
ferry_worker_received_total{worker="1"} 5
`

// TestRelayMetrics: the relay's own counts are those of the run, also after a restart.
func TestRelayMetrics(t *testing.T) {
	r := newRelay(metricsBefore, metricsAfter)
	if r.Version != "1.2.3" || r.Revision != "0123abc" || r.Workers != 2 || r.Limited != 1000 ||
		!maps.Equal(r.Drops, map[string]uint64{"kernel": 19, "rate": 1000, "short": 2}) {
		t.Errorf("%+v", r)
	}
	if got, want := r.dropText(), "; the relay says that it dropped: kernel 19, rate 1000, short 2"; got != want {
		t.Errorf("got %q", got)
	}
	if r := newRelay(metricsBefore, metricsBefore); len(r.Drops) != 0 || r.dropText() != "" {
		t.Errorf("nothing happened: %+v", r)
	}
}

// TestRunWithMetrics: a relay whose pages are gone after the run does not take its result along.
func TestRunWithMetrics(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		pages   []string
		limited uint64
		fails   bool
	}{
		"both":   {[]string{metricsBefore, metricsAfter}, 1000, false},
		"before": {[]string{metricsBefore}, 0, false},
		"none":   {nil, 0, true},
	} {
		cfg := smallConfig(shapePairs)
		cfg.Duration = 10 * time.Millisecond
		pages := c.pages
		cfg.Metrics = func(context.Context) (page string, err error) {
			if len(pages) == 0 {
				return "", gone
			}
			page, pages = pages[0], pages[1:]
			return page, nil
		}
		r, err := Run(t.Context(), cfg, Dialect{benchrig.Direct{}})
		if errors.Is(err, gone) != c.fails || !c.fails && (r.Relay == nil || r.Relay.Workers != 2 || r.Relay.Limited != c.limited) {
			t.Errorf("%s: %v, %+v", name, err, r.Relay)
		}
	}
}
