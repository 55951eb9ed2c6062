package metrics

import (
	"bytes"
	"io"
	"time"

	vm "github.com/VictoriaMetrics/metrics"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/fleet"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
)

// Config says what is shown.
type Config struct {
	// Stats returns the counts of the relay. Nil: there is none, and its metrics
	// are not shown.
	Stats func() engine.Stats
	// Process returns what the process knows besides. Required.
	Process func() Process
	// DTLS and WebSocket return the counts of the further ways in. Nil: there is
	// no such way, and its metrics are not shown.
	DTLS      func() dtls.Stats
	WebSocket func() websocket.Stats
	// Store returns the counts of the store of a fleet, Announcer and Cluster those
	// of a relay in it, Fleet and Dialer those of an API process. Nil as above.
	Store     func() redisstore.Stats
	Announcer func() fleet.AnnouncerStats
	Cluster   func() cluster.ServerStats
	Fleet     func() fleet.Stats
	Dialer    func() cluster.DialerStats
	// Players returns the counts of who may play. Nil: nobody is asked.
	Players func() Players
	// Version, Revision and GoVersion are shown as labels of ferry_build_info.
	Version, Revision, GoVersion string
}

// Metrics collects the requests of the API and writes all metrics. Its methods
// may be called from several goroutines.
type Metrics struct {
	cfg Config
	set *vm.Set
	api requests
}

// New returns the metrics of one relay. They are in a set of their own, so that
// several relays of one process do not meet.
func New(cfg Config) *Metrics {
	m := &Metrics{cfg: cfg, set: vm.NewSet(), api: newRequests()}
	m.set.RegisterMetricsWriter(m.writeBuild)
	if cfg.Stats != nil {
		m.set.RegisterMetricsWriter(m.writeRelay)
		m.set.RegisterMetricsWriter(m.writeHeld)
	}
	if cfg.DTLS != nil {
		m.set.RegisterMetricsWriter(m.writeDTLS)
	}
	if cfg.WebSocket != nil {
		m.set.RegisterMetricsWriter(m.writeWebSocket)
	}
	m.set.RegisterMetricsWriter(m.writeProcess)
	if cfg.Players != nil {
		m.set.RegisterMetricsWriter(m.writePlayers)
	}
	m.set.RegisterMetricsWriter(m.writeFleet)
	m.set.RegisterMetricsWriter(m.api.write)
	m.set.RegisterMetricsWriter(vm.WriteProcessMetrics)
	m.set.RegisterMetricsWriter(vm.WriteFDMetrics)
	return m
}

// OnRequest counts a request of the API that has been answered; it has the form
// of httpapi.Config.OnRequest.
func (m *Metrics) OnRequest(call string, status int, d time.Duration) {
	m.api.add(call, status, d)
}

// Write writes all metrics.
func (m *Metrics) Write(w io.Writer) { m.set.WritePrometheus(w) }

func (m *Metrics) writeBuild(w io.Writer) {
	var p page
	p.family("ferry_build_info", gauge, "What was built; the value is always 1.")
	p.sample("ferry_build_info", 1,
		"version", m.cfg.Version, "revision", m.cfg.Revision, "goversion", m.cfg.GoVersion)
	p.flush(w)
}

// page is a piece of the text format that is being written.
type page struct{ bytes.Buffer }

// flush writes the page. The error is the reader's own, who has gone away.
func (p *page) flush(w io.Writer) { _, _ = w.Write(p.Bytes()) }
