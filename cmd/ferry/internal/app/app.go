package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/alloc/store"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/foreign"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/memory"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/metrics"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/state"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
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
	// Fresh says that the identity has just been made, so that nothing of an
	// earlier run can come back.
	Fresh bool
	// StateFile is where what a restart must know of the allocations is kept. Its
	// directory is this process's alone. Empty: nothing is kept.
	StateFile string
	// Logger is required. It hears of nothing per datagram.
	Logger *slog.Logger
	// Version, Revision and GoVersion are shown to the operator.
	Version, Revision, GoVersion string
	// Loaded says where each of the settings came from. Zero: not known.
	Loaded config.Loaded
	// Reload reads the settings anew, as they are now. Nil: they cannot be.
	Reload func() (config.Loaded, error)
	// Level is that of Logger. Nil: it cannot be changed while the process runs.
	Level *slog.LevelVar
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
	api     *web
	admin   *web
	calls   swapped // what answers the API's calls
	inside  swapped // what answers the operator
	since   time.Time
	reload  reload

	certificate *certificate         // nil: none in files
	issued      *issued              // nil: none by ACME
	dtls        *dtls.Records        // nil: no DTLS
	websocket   *websocket.Transport // nil: no WebSocket

	most     int           // allocations at once
	memory   *memory.Guard // nil: not watched
	foreign  *foreign.Watch
	players  players
	restart  restart
	draining draining
	refused  refusals

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
	a := &App{opts: o, since: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	if err := a.build(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *App) build() error {
	collectEarly()
	for _, w := range Warnings(a.opts.Config, a.opts.Mode) {
		a.opts.Logger.Warn(w)
	}
	a.bound()
	if err := a.buildRelay(); err != nil {
		return err
	}
	a.foreign = foreign.NewWatch(a.relay.Addrs(), a.opts.Logger)
	a.buildMetrics()
	if err := a.buildAPI(); err != nil {
		return err
	}
	return a.buildAdmin()
}

func (a *App) buildMetrics() {
	cfg := metrics.Config{
		Stats: a.relay.Stats, Process: a.process,
		Version: a.opts.Version, Revision: a.opts.Revision, GoVersion: a.opts.GoVersion,
	}
	if a.dtls != nil {
		cfg.DTLS = a.dtls.Stats
	}
	if a.websocket != nil {
		cfg.WebSocket = a.websocket.Stats
	}
	a.metrics = metrics.New(cfg)
}

// buildAPI opens the API's port, of which the service tells players, before it
// makes the service that answers there.
func (a *App) buildAPI() (err error) {
	c := &a.opts.Config
	if a.players, err = newPlayers(c, a.opts.Logger); err != nil {
		return err
	}
	if a.certificate, err = loadCertificate(c, a.opts.Logger); err != nil {
		return err
	}
	if a.issued, err = newIssued(c, a.opts.Logger); err != nil {
		return err
	}
	if a.api, err = newWeb(c.HTTP.AddrPort, nil, a.secure(), a.opts.Logger); err != nil {
		return err
	}
	if a.opts.Mode == Serve {
		a.api.listener = httpapi.LimitListener(a.api.listener, connLimits(c, &a.refused))
	}
	if c.ProxyProtocol {
		a.api.listener = websocket.ProxyListener(a.api.listener, proxyConfig(c, &a.refused))
	}
	if err := a.buildService(); err != nil {
		return err
	}
	handler, err := a.handler(c)
	a.calls.serve(handler)
	a.api.server.Handler = a.front(&a.calls)
	return err
}

// handler returns what answers the API's calls by these settings.
func (a *App) handler(c *config.Config) (http.Handler, error) {
	return newAPI(c, a.opts.Mode, httpapi.Config{
		Service: a.service, Logger: a.opts.Logger, OnRequest: a.metrics.OnRequest,
		Authenticate: a.players.authenticate(),
	})
}

// buildRelay opens the UDP sockets. The service, which wants to hear of binds
// and ends, does not exist yet, but no hook is called before Run.
func (a *App) buildRelay() error {
	sealer, err := alloc.NewSealer(alloc.SealerConfig{
		Master: a.opts.Identity.Master, Relay: a.opts.Identity.Relay,
	})
	if err != nil {
		return err
	}
	cfg, err := engineConfig(&a.opts.Config, a.opts.Mode)
	if err != nil {
		return err
	}
	cfg.MaxAllocations, cfg.Logger = a.most, a.opts.Logger
	cfg.Hooks = engine.Hooks{
		OnBind: a.onBind, OnEnd: a.onEnd,
		OnConnect: a.players.connected, OnDisconnect: a.players.disconnected,
	}
	if err := a.addWays(&cfg, sealer); err != nil {
		return err
	}
	if a.opts.Fresh || a.opts.Mode == Dev {
		cfg.RecoverFor = -1
	}
	cfg.Ledger, cfg.Left = a.openLedger(sealer.Boot())
	a.relay, err = engine.New(cfg, sealer)
	if err != nil && cfg.Ledger != nil {
		err = errors.Join(err, cfg.Ledger.Close())
	}
	return err
}

// buildService makes the Allocations service, which knows the join codes of
// the run before.
func (a *App) buildService() error {
	relay, err := a.advertised()
	if err != nil {
		return err
	}
	codes := store.NewMemory()
	for _, kept := range a.relay.KeptCodes() {
		codes.Restore(kept.Tenant, kept.Code, kept.Host)
	}
	c := &a.opts.Config
	a.service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: codes, MaxConnections: c.MaxConnections,
		Regions:        []alloc.Region{{ID: c.Region, Description: c.Region, QoSAddress: relay.qos()}},
		MaxOutstanding: c.MaxOutstanding, BindTimeout: c.BindTimeout, Unlimited: a.opts.Mode == Dev,
		Keep: a.relay.KeepCode, Admit: a.players.admit, OnReserve: a.players.reserved,
	})
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

// newAPI completes the configuration of the API's handler with what the
// settings and the mode say.
func newAPI(c *config.Config, mode Mode, h httpapi.Config) (http.Handler, error) {
	h.Anonymous, h.Unlimited = mode == Dev, mode == Dev
	h.PlayerPerMinute, h.ServerPerMinute = c.PlayerPerMinute, c.ServerPerMinute
	h.AddressPerMinute = c.AddressPerMinute
	h.FailedJoinsPerMinute, h.ServerFailedJoinsPerMinute = c.FailedJoinsPerMinute, c.ServerFailedJoinsPerMinute
	h.TrustedProxies, h.AllowOrigins = trusted(c), origins(c)
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

var (
	errNotReady = errors.New("app: starting or stopping")
	errDraining = errors.New("app: draining: new allocations are refused")
)

func (a *App) whyNotReady() error {
	switch {
	case !a.ready.Load():
		return errNotReady
	case a.draining.is():
		return errDraining
	}
	return nil
}
