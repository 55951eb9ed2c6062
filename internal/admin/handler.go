package admin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
)

// Config says whom the pages ask. All functions are required unless it says
// otherwise, and are called from several goroutines.
type Config struct {
	// Title heads the index page, such as "ferry v1.2.3".
	Title string
	// Metrics writes the metrics in the text format of Prometheus.
	Metrics func(io.Writer)
	// Probe sends a datagram through the relay and waits for its return.
	Probe func(context.Context) error
	// Workers returns the progress of every worker.
	Workers func() []engine.WorkerStats
	// Ready returns nil while the process wants to be sent requests, otherwise
	// why it does not.
	Ready func() error
	// AnyHost lets requests in whatever name they were sent to, for a listener
	// that others are meant to reach by names that are not known here.
	AnyHost bool

	// Drain lets the relay run dry, or changes how a drain ends, and Undrain ends
	// that, or returns ErrFinal. Draining tells about it. If that is nil there are
	// no pages: it is a relay that drains.
	Drain    func(context.Context, engine.DrainConfig) error
	Undrain  func(context.Context) error
	Draining func() DrainState
	// DrainDefaults hold where a request to drain does not say.
	DrainDefaults engine.DrainConfig

	// Relay is the relay of this process. Nil: there is none, and no pages about
	// allocations and usage.
	Relay Relay
	// Fleet reaches the relays of a fleet, from a process that has none itself. Nil:
	// what is asked is asked of this process. DrainDefaults are then what Fleet
	// takes for those of the relay.
	Fleet Fleet
	// Nodes returns the processes of the fleet, alone this one. Nil: no page.
	Nodes func(context.Context) ([]Node, error)
	// Settings returns what is in force, with secrets hidden. Nil: no page.
	Settings func() []config.SettingValue
	// Reload reads the settings again, and takes all of them or none. It returns
	// ErrRefused. Required with Settings, as Level is, which is that of the log.
	Reload func(context.Context) (Reloaded, error)
	Level  *slog.LevelVar
	// Token is what every request but those of probes must carry. Empty: none.
	Token string
	// Since is the start of the process.
	Since time.Time
	// Logger hears what an operator changed. Nil: nobody does.
	Logger *slog.Logger
}

func (c *Config) log() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// New returns the handler of the admin pages.
func New(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { writeIndex(w, cfg.Title) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		cfg.Metrics(w)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		verdict(w, live(r.Context(), cfg.Probe, cfg.Workers))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		verdict(w, cfg.Ready())
	})
	if cfg.Draining != nil {
		drainPages(mux, &cfg)
	}
	if cfg.Relay != nil {
		allocationPages(mux, &cfg)
		changePages(mux, &cfg, cfg.Relay)
		usagePages(mux, &cfg)
	}
	if cfg.Fleet != nil {
		noRelayPages(mux)
		changePages(mux, &cfg, cfg.Fleet)
	}
	if cfg.Nodes != nil {
		nodePages(mux, &cfg)
		shownPages(mux, &cfg)
	}
	if cfg.Nodes != nil && (cfg.Draining != nil || cfg.Fleet != nil) {
		nodeDrainPages(mux, &cfg)
	}
	if cfg.Settings != nil {
		settingPages(mux, &cfg)
	}
	return guard(newAccess(&cfg).limit(mux), cfg.AnyHost)
}

// verdict answers 200 "ok", or 503 and the reason.
func verdict(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}
