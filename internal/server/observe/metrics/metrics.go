package metrics

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
)

type Config struct {
	// Stats returns the counts of the relay. Nil: its metrics are not shown.
	Stats func() engine.Stats
	// Process is required.
	Process func() Process
	// DTLS and WebSocket return the counts of these transports. Nil: their metrics are
	// not shown.
	DTLS      func() dtls.Stats
	WebSocket func() websocket.Stats
	// Store returns the counts of the store of a fleet, Announcer and Cluster those
	// of a relay in it, Fleet and Dialer those of an API process. Nil as above.
	Store     func() redisstore.Stats
	Announcer func() placement.AnnouncerStats
	Cluster   func() rpc.ServerStats
	Fleet     func() placement.Stats
	Dialer    func() rpc.DialerStats
	// Players returns the counts of authentication, admission, webhooks and quotas. Nil:
	// none.
	Players func() Players
	// Usage returns what tenants have used in all runs. Nil: there is no relay.
	Usage func() []engine.Usage
	// Certificates returns the API's certificates, by the file or the name that the operator
	// gave. Nil: it has none.
	Certificates                 func() map[string]Certificate
	Version, Revision, GoVersion string
}

// Metrics collects the requests of the API and writes all metrics. Its methods
// may be called concurrently.
type Metrics struct {
	set *vm.Set
	api requests
}

// New returns metrics with a set of their own: one process may have several relays.
func New(cfg Config) *Metrics {
	m := &Metrics{set: vm.NewSet(), api: requests{vm.NewSet(), vm.NewSet()}}
	m.register(func(p *page) {
		p.family("ferry_build_info", gauge, "Version of the build; the value is always 1.")
		p.sample("ferry_build_info", 1, "version", cfg.Version, "revision", cfg.Revision, "goversion", cfg.GoVersion)
	})
	show(m, cfg.Stats, writeRelay)
	if cfg.Stats != nil {
		show(m, cfg.Process, writeCapacity)
	}
	show(m, cfg.DTLS, writeDTLS)
	show(m, cfg.WebSocket, writeWebSocket)
	show(m, cfg.Process, writeProcess)
	show(m, cfg.Players, writePlayers)
	show(m, cfg.Usage, writeUsage)
	show(m, cfg.Certificates, writeCertificates)
	show(m, cfg.Store, writeStore)
	show(m, cfg.Announcer, writeAnnouncer)
	show(m, cfg.Cluster, writeCluster)
	show(m, cfg.Fleet, writeFleet)
	show(m, cfg.Dialer, writeDialer)
	m.register(m.api.write)
	m.set.RegisterMetricsWriter(vm.WriteProcessMetrics)
	m.set.RegisterMetricsWriter(vm.WriteFDMetrics)
	return m
}

// show writes the counts of a part of the process on each page, if there is that part.
func show[T any](m *Metrics, counts func() T, write func(*page, T)) {
	if counts != nil {
		m.register(func(p *page) { write(p, counts()) })
	}
}

// register ignores errors of the page's writer: the client has disconnected.
func (m *Metrics) register(write func(*page)) {
	m.set.RegisterMetricsWriter(func(w io.Writer) {
		var p page
		write(&p)
		_, _ = w.Write(p.Bytes())
	})
}

// OnRequest counts a request of the API that has been answered.
func (m *Metrics) OnRequest(call string, status int, d time.Duration) {
	m.api.add(call, status, d)
}

// Write writes all metrics.
func (m *Metrics) Write(w io.Writer) { m.set.WritePrometheus(w) }

type page struct{ bytes.Buffer }

const (
	gauge     = "gauge"
	counter   = "counter"
	histogram = "histogram"
)

func (p *page) family(name, kind, help string) {
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one value with labels, given as names and values in turn.
func (p *page) sample(name string, value uint64, labels ...string) {
	p.WriteString(name)
	p.labels(labels)
	p.WriteByte(' ')
	p.WriteString(strconv.FormatUint(value, 10))
	p.WriteByte('\n')
}

func (p *page) seconds(name string, value float64, labels ...string) {
	p.WriteString(name)
	p.labels(labels)
	fmt.Fprintf(p, " %g\n", value)
}

func (p *page) single(name, kind, help string, value uint64) {
	p.family(name, kind, help)
	p.sample(name, value)
}

// escape escapes the values of labels for the text format.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (p *page) labels(pairs []string) {
	if len(pairs) == 0 {
		return
	}
	for i := 0; i < len(pairs); i += 2 {
		p.WriteByte("{,"[min(i, 1)])
		p.WriteString(pairs[i])
		p.WriteString(`="`)
		_, _ = escape.WriteString(p, pairs[i+1])
		p.WriteByte('"')
	}
	p.WriteByte('}')
}
