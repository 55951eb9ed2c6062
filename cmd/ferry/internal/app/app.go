package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/alloc/store"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/admin"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/metrics"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/state"
	"github.com/ferryrelay/ferry/engine"
)

// Mode says for whom the process is there.
type Mode uint8

const (
	// Serve is for the public: callers need tokens, and all limits hold.
	Serve Mode = iota
	// Dev is for a developer's machine: anybody may call, and the limits of the
	// API and the budgets of ERROR replies are off.
	Dev
)

// Options say what an App is made of. It is not modified after New.
type Options struct {
	Config config.Config
	Mode   Mode
	// Identity is who the relay is. Required.
	Identity state.Identity
	// Logger is required. It hears of nothing per datagram.
	Logger *slog.Logger
	// Version, Revision and GoVersion are shown to the operator.
	Version, Revision, GoVersion string
	// OnReady is called once, when the process is ready. Nil is allowed.
	OnReady func()
}

// App is a relay with all that belongs to it. Its fields are fixed by New, but
// for those that say otherwise.
type App struct {
	opts    Options
	relay   *engine.Server
	service *alloc.Service
	metrics *metrics.Metrics
	tls     *tls.Config // nil: plain HTTP
	api     *web
	admin   *web

	ready   atomic.Bool
	ran     atomic.Bool
	closing sync.Once
	quit    chan struct{} // closed by Close
	done    chan struct{} // closed when Run has returned
}

// New checks the options and opens all listeners. Nothing runs before Run; an
// App that is never run has to be closed.
func New(o Options) (*App, error) {
	if err := Check(o.Config, o.Mode); err != nil {
		return nil, err
	}
	a := &App{opts: o, quit: make(chan struct{}), done: make(chan struct{})}
	if err := a.build(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *App) build() error {
	collectEarly()
	if err := a.buildRelay(); err != nil {
		return err
	}
	c := &a.opts.Config
	relay, err := a.advertised()
	if err != nil {
		return err
	}
	a.service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: store.NewMemory(), MaxConnections: c.MaxConnections,
		Regions: []alloc.Region{{ID: c.Region, Description: c.Region}},
	})
	if err != nil {
		return err
	}
	a.metrics = metrics.New(metrics.Config{
		Stats: a.relay.Stats, Version: a.opts.Version, Revision: a.opts.Revision, GoVersion: a.opts.GoVersion,
	})
	handler, err := newAPI(c, a.opts.Mode, httpapi.Config{
		Service: a.service, Logger: a.opts.Logger, OnRequest: a.metrics.OnRequest,
	})
	if err != nil {
		return err
	}
	if a.tls, err = loadTLS(c); err != nil {
		return err
	}
	if a.api, err = newWeb(c.HTTP.AddrPort, handler, a.tls, a.opts.Logger); err != nil {
		return err
	}
	a.admin, err = newWeb(c.Admin.AddrPort, a.pages(), nil, a.opts.Logger)
	return err
}

// buildRelay opens the UDP sockets. The service, which wants to hear of ends,
// does not exist yet, but no hook is called before Run.
func (a *App) buildRelay() error {
	sealer, err := alloc.NewSealer(alloc.SealerConfig{
		Master: a.opts.Identity.Master, Relay: a.opts.Identity.Relay,
	})
	if err != nil {
		return err
	}
	c := &a.opts.Config
	a.relay, err = engine.New(engine.Config{
		Listen: listen(c), Workers: processors(c), Batch: c.Batch, Unmerged: !c.Merge, ReceiveDelay: c.ReceiveDelay,
		MaxAllocations: c.MaxAllocations, MaxConnections: c.MaxConnections, MaxContent: c.MaxContent,
		IdleTimeout: c.IdleTimeout, HostAloneTimeout: c.HostAloneTimeout,
		BindTimeout: c.BindTimeout, HearTimeout: c.HearTimeout,
		Unlimited: a.opts.Mode == Dev, Region: c.Region, Logger: a.opts.Logger,
		Hooks: engine.Hooks{OnEnd: func(e engine.EndEvent) { a.service.Ended(e.ID) }},
	}, sealer)
	return err
}

// collectAt is the growth of the heap in percent at which the collector runs.
// The table holds no pointers, so a collection costs little whatever its size,
// and a relay of a million allocations stays near 512 MiB.
const collectAt = 50

// collectEarly sets that, unless the operator has set GOGC.
func collectEarly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}

// processors returns the number of workers per listen address, and sees to it
// that Go's scheduler has a processor for each and one more: the engine then
// lets a busy worker keep its own.
func processors(c *config.Config) int {
	workers := c.Workers
	if workers == 0 {
		workers = runtime.NumCPU()
	}
	if need := workers*len(c.UDP) + 1; runtime.GOMAXPROCS(0) < need {
		runtime.GOMAXPROCS(need)
	}
	return workers
}

func listen(c *config.Config) []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(c.UDP))
	for i, a := range c.UDP {
		addrs[i] = a.AddrPort
	}
	return addrs
}

// newAPI completes the configuration of the API's handler with what the
// settings and the mode say.
func newAPI(c *config.Config, mode Mode, h httpapi.Config) (http.Handler, error) {
	h.Anonymous, h.Unlimited = mode == Dev, mode == Dev
	for i, t := range c.Tokens {
		kind, err := httpapi.ParseKind(t.Kind)
		if err != nil {
			return nil, fmt.Errorf("app: tokens[%d]: %w", i, err)
		}
		h.Tokens = append(h.Tokens, httpapi.Token{
			Secret: string(t.Secret), Project: t.Project, Environment: t.Environment, Player: t.Player, Kind: kind,
		})
	}
	return httpapi.New(h)
}

func (a *App) pages() http.Handler {
	return admin.New(admin.Config{
		Title:   "ferry " + a.opts.Version,
		Metrics: a.metrics.Write,
		Probe:   a.relay.Probe,
		Workers: func() []engine.WorkerStats { return a.relay.Stats().Workers },
		Ready:   a.whyNotReady,
	})
}

var errNotReady = errors.New("app: starting or stopping")

func (a *App) whyNotReady() error {
	if a.ready.Load() {
		return nil
	}
	return errNotReady
}
