package ping

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// CanaryConfig configures a Canary. All fields are required unless stated otherwise.
type CanaryConfig struct {
	Config
	// Every is the time between the beginnings of two rounds of matches.
	Every time.Duration
	// Name is that of the canary in reports, and Report sends one, after each round. Nil: there are none.
	Name   string
	Report func(context.Context, operator.CanaryReport) error
	// Logger gets a line when a transport begins to work, fails, or works again, and likewise of reports.
	Logger *slog.Logger
}

// Canary plays matches until it is stopped, and counts them. Run may be called once.
type Canary struct {
	cfg        CanaryConfig
	matches    *matches
	set        *metrics.Set
	transports []*transport // of Run's goroutine
	began      time.Time
	unreported bool // the last report failed
}

// bounds are the upper ends of the buckets in seconds. The last bucket has none.
var bounds = []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

// transport has the metrics of one transport, and whether its last match succeeded.
type transport struct {
	name                 string
	ok                   *metrics.Counter
	failed               map[string]*metrics.Counter
	sent, lost           *metrics.Counter
	roundTrip, preparing *metrics.PrometheusHistogram
	lastOK               *metrics.Gauge
	hour                 hour

	played, works bool
}

// NewCanary checks the configuration and connects nowhere.
func NewCanary(cfg CanaryConfig) (*Canary, error) {
	if cfg.Every < time.Second || cfg.Every > time.Hour {
		return nil, fmt.Errorf("ping: an interval of %v is not within 1s and 1h", cfg.Every)
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	c := &Canary{cfg: cfg, matches: newMatches(cfg.Config), set: metrics.NewSet()}
	for _, name := range c.matches.transports {
		c.transport(name)
	}
	return c, nil
}

// transport returns the metrics of a transport, which it registers at first.
func (c *Canary) transport(name string) *transport {
	if i := slices.IndexFunc(c.transports, func(t *transport) bool { return t.name == name }); i >= 0 {
		return c.transports[i]
	}
	label := func(metric, more string) string {
		return fmt.Sprintf("ferry_canary_%s{transport=%q%s}", metric, name, more)
	}
	t := &transport{
		name: name, ok: c.set.NewCounter(label("matches_total", `,result="ok"`)), failed: map[string]*metrics.Counter{},
		sent: c.set.NewCounter(label("datagrams_total", "")), lost: c.set.NewCounter(label("lost_total", "")),
		roundTrip: c.set.NewPrometheusHistogramExt(label("round_trip_seconds", ""), bounds),
		preparing: c.set.NewPrometheusHistogramExt(label("preparation_seconds", ""), bounds),
		lastOK:    c.set.NewGauge(label("last_success_seconds", ""), nil),
	}
	for _, step := range steps {
		t.failed[step] = c.set.NewCounter(label("matches_total", fmt.Sprintf(",result=%q", step)))
	}
	c.transports = append(c.transports, t)
	return t
}

// ServeHTTP serves the metrics.
func (c *Canary) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	c.set.WritePrometheus(w)
}

// Run plays until ctx ends.
func (c *Canary) Run(ctx context.Context) {
	ticker := time.NewTicker(c.cfg.Every)
	defer ticker.Stop()
	c.began = time.Now()
	for {
		c.matches.round(ctx, c.count)
		c.report(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// count counts a match, and logs it if the one before on its transport came out otherwise.
func (c *Canary) count(m match) {
	t := c.transport(m.transport)
	if m.Region != "" {
		t.hour.region = m.Region
	}
	t.sent.Add(m.Sent)
	t.lost.Add(m.Sent - m.Received)
	for _, trip := range m.trips {
		t.roundTrip.Update(trip.Seconds())
	}
	if m.linked > 0 {
		t.preparing.Update(m.linked.Seconds())
	}
	log, was, first := c.cfg.Logger.With("transport", t.name), t.works, !t.played
	t.played, t.works = true, m.Err == nil
	if m.Err != nil {
		t.hour.add(played{at: m.began}, m.step+": "+m.Err.Error())
		t.failed[m.step].Inc()
		if was || first {
			log.Error("a match failed", "step", m.step, "error", m.Err)
		}
		return
	}
	t.hour.add(played{m.began, m.linked}, "")
	t.ok.Inc()
	t.lastOK.Set(float64(time.Now().Unix()))
	if first {
		log.Info("a match was played")
	} else if !was {
		log.Info("matches are played again")
	}
}

// report sends a report. It logs the first failure of several.
func (c *Canary) report(ctx context.Context) {
	if c.cfg.Report == nil || ctx.Err() != nil {
		return
	}
	r := operator.CanaryReport{Name: c.cfg.Name, Interval: c.cfg.Every.Seconds(), Since: c.began}
	if hourAgo := time.Now().Add(-reportOver); hourAgo.After(r.Since) {
		r.Since = hourAgo
	}
	for _, t := range c.transports {
		r.Transports = append(r.Transports, t.hour.report(t.name))
	}
	err := c.cfg.Report(ctx, r)
	switch {
	case ctx.Err() != nil:
	case err != nil && !c.unreported:
		c.cfg.Logger.Error("the report was not taken", "error", err)
	case err == nil && c.unreported:
		c.cfg.Logger.Info("reports are taken again")
	}
	c.unreported = err != nil
}
