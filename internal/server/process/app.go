package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	redisstore "github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/ferryrelay/ferry/internal/server/observe/devlog"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/observe/otlp"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/console"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
)

// Options configure an App.
type Options struct {
	Config config.Config
	Mode   Mode
	// Identity is the id and the keys of the relay. Required, except for API.
	Identity state.Identity
	// Fresh: the identity is new, so that no allocation of an earlier run can come
	// back.
	Fresh bool
	// StateFile is the path of engine.Config.StateFile. No other process may use its
	// directory. Empty: none.
	StateFile string
	// SessionFile is the path of the file of DTLS sessions that survive a restart, in
	// the same directory. Empty: they end with the process.
	SessionFile string
	// UsageFile is the path of the file of what projects have used in all runs. Empty: usage
	// begins at zero.
	UsageFile string
	// BanFile is the path of the file of the operator's bans, if the process is not of a fleet.
	// Empty: bans end with the process.
	BanFile string
	// Logger is required. It gets no line per datagram.
	Logger *slog.Logger
	// Version, Revision and GoVersion are shown to the operator.
	Version, Revision, GoVersion string
	// Loaded is the source of each setting. Zero: not known.
	Loaded config.Loaded
	// Reload reads the settings again. Nil: they cannot be reloaded.
	Reload func() (config.Loaded, error)
	// Level is that of Logger. Nil: it cannot be changed while the process runs.
	Level *slog.LevelVar
	// Parent is what another process hands over to this one, and Locks what this one needs for a
	// hand-over besides its sockets, by name. Nil: there is none.
	Parent *upgrade.Parent
	Locks  map[string]*os.File
	// OnReady is called once, when the process is ready. Nil is allowed.
	OnReady func()
}

// App is one process of Ferry: a relay, an API, or both. Its fields are fixed by
// New, except for those that say otherwise. A part that the mode does not have is nil.
type App struct {
	opts       Options
	parts      group
	relay      *localRelay
	service    *alloc.Service
	metrics    *metrics.Metrics
	api        *web
	admin      *web
	apiCalls   swapHandler         // handler of the API's calls
	counts     *httpapi.RateCounts // kept over a reload
	adminPages swapHandler         // handler of the admin pages
	console    *console.Console
	docs       http.Handler // the documentation
	sessions   *admin.Sessions
	log        *console.Log
	audit      *console.Log // what operators do
	auditFile  *auditFile   // nil: there is none
	flight     admin.Flight
	since      time.Time
	settings   *settings

	certificates *certificates // nil: the API speaks plain HTTP

	store    *redisstore.Store // of a fleet
	member   *member           // of a fleet, for a relay
	frontEnd *frontEnd         // of a fleet, for an API
	tracer   *otlp.Tracer      // nil: no traces
	events   events.Stream
	history  *history.History
	drainer  *drainer     // of a relay
	usage    *usageKeeper // of a relay
	bans     *banKeeper

	players   *players
	takeover  *takeover // nil: no process before this one hands over
	handover  *handover
	codes     *localCodes // of the service; nil in a fleet
	rejected  rejections
	accepting accepting

	ready readiness
	ran   atomic.Bool
	quit  context.Context // ends by stop
	stop  context.CancelFunc
	done  chan struct{} // closed when Run has returned
}

// New checks the options and opens all listeners. Nothing runs before Run. An App that
// is never run must be closed.
func New(o Options) (*App, error) {
	if err := Check(o.Config, o.Mode); err != nil {
		return nil, err
	}
	log := console.NewLog(o.Logger.Handler())
	o.Logger = slog.New(log)
	a := &App{
		opts: o, log: log, since: time.Now(),
		done: make(chan struct{}),
	}
	a.settings = newSettings(&a.opts)
	a.quit, a.stop = context.WithCancel(context.Background())
	if err := a.build(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// build creates the parts of the mode, each after those that it uses.
func (a *App) build() (err error) {
	setGCPercent()
	for _, w := range Warnings(a.opts.Config, a.opts.Mode) {
		a.opts.Logger.Warn(w)
	}
	steps := map[Mode][]func() error{
		Serve: {a.openAdmin, a.buildRelay, a.openAPI, a.buildService},
		Dev:   {a.openAdmin, a.buildRelay, a.openAPI, a.buildService},
		Relay: {a.openAdmin, a.buildStore, a.buildRelay, a.openWebSocket, a.buildMember},
		API:   {a.openAdmin, a.buildStore, a.buildCallHistory, a.buildFront, a.openAPI},
	}
	if err := a.openAudit(); err != nil {
		return err
	}
	if a.tracer, err = newTracer(&a.opts); err != nil {
		return err
	}
	if a.tracer != nil { // It exports the last spans of all that follow.
		a.parts.add(part{name: "traces", run: a.tracer.Run})
	}
	if err := a.buildPlayers(); err != nil {
		return err
	}
	if a.takeover, err = newTakeover(a.opts.Parent, a.opts.Logger); err != nil {
		return err
	}
	for _, step := range steps[a.opts.Mode] {
		if err := step(); err != nil {
			return err
		}
	}
	if err := a.buildBans(); err != nil {
		return err
	}
	a.buildMetrics()
	if err := a.buildConsole(); err != nil {
		return err
	}
	a.handover = &handover{
		opts: &a.opts, relay: a.relay, codes: a.codes, history: a.history, ready: a.ready.check, stop: a.stop, given: make(chan struct{}),
		ports: make(map[string]*net.TCPListener),
	}
	for name, w := range map[string]*web{apiFile: a.api, adminFile: a.admin} {
		if w != nil {
			a.handover.ports[name] = w.tcp
		}
	}
	a.subscribe()
	a.parts.add(part{name: "readiness", run: a.runReady})
	if err := a.buildHandlers(); err != nil {
		return err
	}
	a.prepareReload()
	return nil
}

// subscribe connects the parts of the process with its events. This is the order in which they
// are called.
func (a *App) subscribe() {
	s := &a.events
	s.Ready.Subscribe(func(events.Ready) { a.ready.serving.Store(true) })
	s.Ready.Subscribe(func(events.Ready) { notify(a.opts.Logger, "READY=1") })
	a.history.SubscribeFirst(s)
	if a.opts.Mode == Dev {
		d := devlog.New(a.opts.Logger)
		d.Subscribe(s)
		a.parts.addTasks(func(ctx context.Context) { d.Run(ctx, a.relay.engine.Stats, a.relay.handshakeStats) })
	}
	a.history.Subscribe(s)
	if a.codes != nil {
		a.codes.subscribe(s)
	}
	if a.member != nil {
		a.member.subscribe(s)
	}
	a.players.subscribe(s, a.history.Directory)
	s.Call.Subscribe(func(e events.Call) { a.metrics.OnRequest(e.Name, e.Status, e.Took) })
	if a.relay != nil {
		a.relay.subscribe(s)
	}
	s.Ready.Subscribe(func(events.Ready) {
		if a.opts.OnReady != nil {
			a.opts.OnReady()
		}
	})
	a.history.SubscribeLast(s)
}

// buildCallHistory creates the history of a process without a relay.
func (a *App) buildCallHistory() error {
	a.history = history.New(history.Config{Directory: history.NewDirectory(), Logger: a.opts.Logger})
	return nil
}

// buildPlayers creates the policy and the certificates, which the ports need.
func (a *App) buildPlayers() (err error) {
	c := &a.opts.Config
	if a.players, err = newPlayers(c, a.opts.Mode, a.opts.Logger); err != nil {
		return err
	}
	a.parts.addTasks(a.players.run)
	if a.certificates, err = newCertificates(c, a.opts.Logger); err != nil {
		return err
	}
	if a.certificates != nil {
		a.parts.addTasks(a.certificates.run)
	}
	return nil
}

func (a *App) buildMetrics() {
	cfg := metrics.Config{
		Process: a.processMetrics, Players: a.players.stats,
		Version: a.opts.Version, Revision: a.opts.Revision, GoVersion: a.opts.GoVersion,
	}
	if a.relay != nil {
		cfg.Stats, cfg.Usage = a.relay.engine.Stats, a.usage.latest
		if a.relay.dtls != nil {
			cfg.DTLS = a.relay.dtls.Stats
		}
		if a.relay.websocket != nil {
			cfg.WebSocket = a.relay.websocket.Stats
		}
	}
	if a.store != nil {
		cfg.Store = a.store.Stats
	}
	if a.member != nil {
		cfg.Announcer, cfg.Cluster = a.member.announcer.Stats, a.member.cluster.Stats
	}
	if a.frontEnd != nil {
		cfg.Fleet, cfg.Dialer = a.frontEnd.fleet.Stats, a.frontEnd.dialer.Stats
	}
	if a.tracer != nil {
		cfg.Traces = a.tracer.Stats
	}
	if a.certificates != nil {
		cfg.Certificates = a.certificates.states
	}
	a.metrics = metrics.New(cfg)
}

// processMetrics returns the metrics of the process.
func (a *App) processMetrics() metrics.Process {
	p := metrics.Process{
		RefusedTotal:  a.rejected.total.Load(),
		RefusedHeader: a.rejected.header.Load(), EvictedTotal: a.rejected.evictedTotal.Load(),
		EvictedAddress: a.rejected.evictedAddress.Load(), EvictedProtected: a.rejected.evictedProtected.Load(),
		AcceptFailed: a.accepting.failed.Load(),
	}
	if a.relay != nil {
		a.relay.addMetrics(&p)
	}
	return p
}

// openAPI opens the API's port before its handler exists, since the address is
// advertised to players.
func (a *App) openAPI() error {
	c := &a.opts.Config
	l, err := openPort(a.opts.Parent, apiFile, c.HTTP.AddrPort)
	if err != nil {
		return err
	}
	a.api = newWeb(l, nil, a.certificates.tls(), a.opts.Logger, a.accepting.config(a.opts.Logger))
	traceCalls(a.api, a.tracer)
	a.parts.add(a.api.part("api"))
	if a.opts.Mode != Dev {
		a.api.listener = httpapi.LimitListener(a.api.listener, connLimits(c, &a.rejected, a.opts.Logger))
		a.api.server.IdleTimeout = max(c.HTTPIdleTimeout, c.ProxyIdleTimeout)
	}
	if c.ProxyProtocol {
		a.api.listener = websocket.ProxyListener(a.api.listener, proxyConfig(c, &a.rejected))
	}
	return nil
}

// openWebSocket opens the same port for WebSockets alone, if they are on.
func (a *App) openWebSocket() error {
	if a.relay.websocket == nil {
		return nil
	}
	return a.openAPI()
}

// buildHandlers creates the handlers of the ports.
func (a *App) buildHandlers() error {
	if a.api != nil {
		if a.service != nil {
			a.counts = httpapi.NewRateCounts()
		}
		calls, err := a.handler(&a.opts.Config, a.players.policy.Load())
		if err != nil {
			return err
		}
		a.apiCalls.serve(calls)
		a.api.server.Handler = &a.apiCalls
		if a.relay != nil && a.relay.websocket != nil {
			a.api.server.Handler = withWebSocket(&a.apiCalls, a.relay.websocket)
		}
	}
	pages, err := a.pages(&a.opts.Config)
	if err != nil {
		return err
	}
	a.adminPages.serve(pages)
	return nil
}

// prepareReload lets the parts that can use new settings prepare for them.
func (a *App) prepareReload() {
	if a.relay != nil {
		a.settings.onReload(a.relay.prepare)
	}
	a.settings.onReload(a.players.prepare)
	if a.service != nil {
		a.settings.onReload(a.prepareCalls)
	}
	a.settings.onReload(a.preparePages)
	a.settings.onReload(a.settings.prepareLevel)
	if a.certificates != nil {
		a.settings.onReload(a.certificates.prepare)
	}
	if a.auditFile != nil {
		a.settings.onReload(a.auditFile.prepare)
	}
}

// prepareCalls is a [prepare] for the API. The players have prepared before.
func (a *App) prepareCalls(next *config.Config, changed []string) (_ apply, err error) {
	var calls http.Handler
	if slices.ContainsFunc(changed, func(key string) bool { return slices.Contains(reloadsAPI, key) }) {
		if calls, err = a.handler(next, a.players.planned); err != nil {
			return nil, err
		}
	}
	return func(context.Context, *admin.ReloadResult) error {
		if calls != nil {
			a.apiCalls.serve(calls)
		}
		a.service.SetMaxOutstanding(next.MaxOutstanding)
		return nil
	}, nil
}

// preparePages is a [prepare] for the admin pages.
func (a *App) preparePages(next *config.Config, _ []string) (apply, error) {
	pages, err := a.pages(next)
	if err != nil {
		return nil, err
	}
	return func(context.Context, *admin.ReloadResult) error {
		a.adminPages.serve(pages)
		return nil
	}, nil
}

// handler returns the handler of the API's calls for these settings. It continues the
// counters of its predecessor.
func (a *App) handler(c *config.Config, t *policy) (http.Handler, error) {
	if a.service == nil {
		return http.NotFoundHandler(), nil
	}
	h := httpapi.Config{
		Service: a.service, Logger: a.opts.Logger, OnRequest: a.events.PublishCall, OnRefusal: a.events.CallRefusal.Publish,
		Authenticate: t.authenticate(), RateCounts: a.counts,
	}
	if a.store != nil {
		h.SharedLimiter = a.store
	}
	return newAPI(c, a.opts.Mode, h)
}

// buildRelay creates the relay, and what keeps a record of it. The subscribers of its events may not
// exist yet, but no event is published before Run.
func (a *App) buildRelay() error {
	var offer *engine.Handover
	if a.takeover != nil {
		offer = a.takeover.offer
	}
	hooks := a.events.RelayHooks()
	hooks.Admit, hooks.OnCode = a.players.admitOnRelay, a.publishCode
	r, err := newLocalRelay(&a.opts, hooks, offer)
	if err != nil {
		return err
	}
	a.relay, a.players.relay = r, r.engine
	a.history = history.New(history.Config{
		Directory: history.NewDirectory(), Relay: r.engine, MaxContent: a.opts.Config.MaxContent, RecoverFor: r.recoverFor,
		Logger: a.opts.Logger,
	})
	a.drainer = &drainer{relay: r.engine, defaults: drainDefaults(&a.opts.Config), changes: &a.events.Drain, log: a.opts.Logger}
	a.ready.drain = a.drainer
	a.parts.add(part{name: "hand-over", run: func(ctx context.Context) error { return a.handover.run(ctx) }})
	a.parts.add(part{
		name: "session file", free: r.closeSessionFile,
		run: func(ctx context.Context) error { return a.handover.endSessions(ctx) },
	})
	a.parts.add(part{
		name: "relay", ready: r.engine.Ready(), free: r.engine.Close,
		run: func(ctx context.Context) error { return r.run(ctx, a.drainer, a.handover.endRelay) },
	})
	a.usage = newUsageKeeper(a.opts.UsageFile, a.since, r.engine, a.opts.Logger)
	if a.opts.Parent == nil {
		if err := a.usage.load(); err != nil {
			return err
		}
	}
	a.parts.add(part{name: "usage", run: a.usage.run})
	a.parts.addTasks(r.watch, a.drainer.watch, a.history.Run)
	if t := a.takeover; t != nil {
		a.parts.addTasks(func(context.Context) { t.readHistory(a.history) })
	}
	return nil
}

// publishCode is called for each answer with the code of a host: the first one is news.
func (a *App) publishCode(e engine.CodeEvent) {
	if a.history.KeepCode(e.Host, e.Code) {
		a.events.Code.Publish(e)
	}
}

// buildService creates the Allocations service of a single relay, with the join codes of
// the previous run.
func (a *App) buildService() error {
	relay, err := a.relay.advertised(a.apiAddr())
	if err != nil {
		return err
	}
	a.codes = &localCodes{store: alloc.NewMemoryStore(), relay: a.relay.engine, directory: a.history.Directory, log: a.opts.Logger}
	a.codes.restore(nil)
	if a.takeover != nil {
		a.takeover.codes = a.codes
	}
	c := &a.opts.Config
	a.service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: a.codes.store, MaxConnections: c.MaxConnections,
		Regions: []alloc.Region{{
			ID: c.Region, Description: c.Region,
			QoSAddress: relay.qos(), WebSocketURL: placement.WebSocketURL(relay.endpoints),
		}},
		MaxOutstanding: c.MaxOutstanding, BindTimeout: c.BindTimeout, Unlimited: a.opts.Mode == Dev,
		HostMigration: c.HostMigration > 0, KeepCode: a.relay.engine.KeepCode, Admit: a.players.admit, AllowedRegions: a.players.allowedRegions,
		OnReserve: a.events.Reservation.Publish,
	})
	a.codes.service = a.service
	return err
}

// gcPercent is the growth of the heap in percent at which the collector runs.
// The table holds no pointers, so a collection costs little whatever its size,
// and a relay of a million allocations stays near 512 MiB.
const gcPercent = 50

// setGCPercent sets gcPercent, unless the operator has set GOGC.
func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// newAPI completes the configuration of the API's handler by the settings and the mode.
func newAPI(c *config.Config, mode Mode, h httpapi.Config) (http.Handler, error) {
	h.Anonymous, h.Unlimited = mode == Dev, mode == Dev
	h.PlayerPerMinute, h.ServerPerMinute = c.PlayerPerMinute, c.ServerPerMinute
	h.AddressPerMinute = c.AddressPerMinute
	h.FailedJoinsPerMinute, h.ServerFailedJoinsPerMinute = c.FailedJoinsPerMinute, c.ServerFailedJoinsPerMinute
	h.TrustedProxies, h.AllowOrigins = trustedProxies(c), origins(c)
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

// readiness is whether the process accepts requests.
type readiness struct {
	serving atomic.Bool
	drain   *drainer // nil: without a relay
}

// check returns why the process accepts no requests: errNotReady or errDraining, or nil if it does.
func (r *readiness) check() error {
	switch {
	case !r.serving.Load():
		return errNotReady
	case r.drain.isOn():
		return errDraining
	}
	return nil
}
