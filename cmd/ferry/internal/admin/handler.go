package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/ferryrelay/ferry/engine"
)

// Config says whom the pages ask. All functions are required, and are called
// from several goroutines.
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
	// that, or returns ErrFinal. Draining tells about it.
	Drain    func(context.Context, engine.DrainConfig) error
	Undrain  func(context.Context) error
	Draining func() DrainState
	// DrainDefaults hold where a request to drain does not say.
	DrainDefaults engine.DrainConfig
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
	drainPages(mux, cfg)
	return guard(mux, cfg.AnyHost)
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
