package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/ferryrelay/ferry/internal/server/observe/devlog"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
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
	// SignOutFile is the path of the file of sign-outs of the console. Empty: its sessions end with
	// the process.
	SignOutFile string
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
	opts   Options
	parts  group
	life   lifetime
	ready  readiness
	events events.Stream

	settings     *settings
	players      *players
	certificates *certificates // nil: the API speaks plain HTTP
	operator     *operatorServer
	relay        *localRelay
	history      *history.History
	usage        *usageKeeper // of a relay
	bans         *banKeeper
	api          *apiServer
	store        *redisstore.Stores // of a fleet
	member       *member            // of a fleet, for a relay
	frontEnd     *frontEnd          // of a fleet, for an API
	takeover     *takeover          // nil: no process before this one hands over
	handover     *handover
}

type lifetime struct {
	began time.Time // when the process did
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
	o.Logger = slog.New(console.NewLog(o.Logger.Handler()))
	a := &App{opts: o, life: lifetime{began: time.Now(), done: make(chan struct{})}}
	a.life.quit, a.life.stop = context.WithCancel(context.Background())
	if err := a.build(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// build creates the parts of the mode, each after those that it uses.
func (a *App) build() error {
	setGCPercent()
	for _, w := range Warnings(a.opts.Config, a.opts.Mode) {
		a.opts.Logger.Warn(w)
	}
	modes := map[Mode][]func() error{
		Serve: {a.buildRelay, a.openAPI, a.buildService},
		Dev:   {a.buildRelay, a.openAPI, a.buildService},
		Relay: {a.buildRelay, a.openAPI, a.buildMember},
		API:   {a.buildFrontEnd, a.openAPI, a.buildService},
	}
	for _, step := range slices.Concat([]func() error{a.buildBase}, modes[a.opts.Mode], []func() error{a.finish}) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) buildBase() (err error) {
	o := &a.opts
	a.settings = newSettings(o)
	record, file, err := openAudit(o)
	if err != nil {
		return err
	}
	if file != nil {
		a.parts.add(file.part())
	}
	if a.players, err = newPlayers(&o.Config, o.Mode, o.Logger); err != nil {
		return err
	}
	a.parts.addTasks(a.players.run)
	if a.certificates, err = newCertificates(&o.Config, o.Mode, o.Logger); err != nil {
		return err
	}
	if a.certificates != nil {
		a.parts.addTasks(a.certificates.run)
	}
	if a.takeover, err = newTakeover(o.Parent, o.Logger); err != nil {
		return err
	}
	a.handover = &handover{
		opts: o, ready: a.ready.check, stop: a.life.stop, given: make(chan struct{}), ports: make(map[string]*net.TCPListener),
	}
	if a.takeover == nil { // else a process was replaced here before
		a.handover.parents = upgrade.CheckParents()
	}
	if a.operator, err = openOperator(o, a.certificates); err != nil {
		return err
	}
	a.operator.audit, a.operator.auditFile = record, file
	a.addPort("admin", adminFile, a.operator.web)
	if !o.Mode.isFleetMember() {
		return nil
	}
	store, p, err := newStores(o)
	if err == nil {
		a.store, a.ready.store = store, store
		a.parts.add(p)
	}
	return err
}

// addPort adds a server, whose port another process can take over as a file of that name.
func (a *App) addPort(name, file string, w *web) {
	a.parts.add(w.part(name))
	a.handover.ports[file] = w.tcp
}

func (a *App) finish() (err error) {
	o := &a.opts
	if a.history == nil {
		a.history = history.New(history.Config{Directory: history.NewDirectory(), Logger: o.Logger})
	}
	if a.bans, err = newBanKeeper(o, a.relay, a.store); err != nil {
		return err
	}
	a.bans.tokens = func() []config.Token { return a.settings.current().Config.Tokens }
	a.players.bans = &a.bans.list
	a.parts.add(part{name: "bans", run: a.bans.run})
	m := a.newMetrics()
	a.subscribe(m)
	if err := a.finishAPI(); err != nil {
		return err
	}
	if err := a.buildOperator(m); err != nil {
		return err
	}
	a.parts.add(part{name: "readiness", run: a.runReady})
	a.prepareReload()
	return nil
}

// subscribe connects the parts of the process with its events. This is the order in which they
// are called.
func (a *App) subscribe(m *metrics.Metrics) {
	s := &a.events
	s.Ready.Subscribe(func(events.Ready) { a.ready.serving.Store(true) })
	s.Ready.Subscribe(func(events.Ready) { notify(a.opts.Logger, "READY=1") })
	a.history.SubscribeFirst(s)
	if a.opts.Mode == Dev {
		d := devlog.New(a.opts.Logger)
		d.Subscribe(s)
		a.parts.addTasks(func(ctx context.Context) { d.Run(ctx, a.relay.engine.Stats, a.relay.dtls.Stats) })
	}
	a.history.Subscribe(s)
	if a.relay != nil {
		s.Refuse.Subscribe(func(e engine.RefuseEvent) { a.operator.console.CountRefusal(e) })
	}
	if codes := a.handover.codes; codes != nil {
		codes.subscribe(s)
	}
	if a.member != nil {
		a.member.subscribe(s)
	}
	a.players.subscribe(s, a.history.Directory)
	a.bans.subscribe(s)
	s.Call.Subscribe(func(e events.Call) { m.OnRequest(e.Name, e.Status, e.Took) })
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

func (a *App) newMetrics() *metrics.Metrics {
	cfg := metrics.Config{
		Process: a.status().metrics, Players: a.players.stats,
		Version: a.opts.Version, Revision: a.opts.Revision, GoVersion: a.opts.GoVersion,
	}
	if a.relay != nil {
		cfg.Stats, cfg.Usage, cfg.DTLS = a.relay.engine.Stats, a.usage.latest, a.relay.dtls.Stats
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
	if a.certificates != nil {
		cfg.Certificates = a.certificates.metrics
	}
	return metrics.New(cfg)
}

// openAPI opens the port of the API. A relay of a fleet has it for WebSockets alone, if they are on.
func (a *App) openAPI() (err error) {
	if a.opts.Mode == Relay && a.relay.websocket == nil {
		return nil
	}
	a.api, err = openAPI(&a.opts, a.players, a.certificates.tls(), a.operator.accepting.config(a.opts.Logger))
	if err != nil {
		return err
	}
	a.addPort("api", apiFile, a.api.web)
	return nil
}

func (a *App) finishAPI() error {
	if a.api == nil {
		return nil
	}
	fixed := &a.api.fixed
	fixed.Logger, fixed.OnRequest, fixed.OnRefusal = a.opts.Logger, a.events.PublishCall, a.events.CallRefusal.Publish
	if a.store != nil {
		fixed.SharedLimiter = a.store
	}
	var at *websocket.Transport
	if a.relay != nil {
		at = a.relay.websocket
	}
	return a.api.handle(&a.opts.Config, at)
}

// prepareReload lets the parts that can use new settings prepare for them. The relay, which may
// fail to apply them, is first.
func (a *App) prepareReload() {
	s := a.settings
	if a.relay != nil {
		s.onReload(a.relay.prepare)
	}
	s.onReload(a.players.prepare)
	if a.api != nil {
		s.onReload(a.api.prepare)
	}
	s.onReload(a.operator.prepare)
	s.onReload(s.prepareLevel)
	if a.certificates != nil {
		s.onReload(a.certificates.prepare)
	}
	if a.operator.auditFile != nil {
		s.onReload(a.operator.auditFile.prepare)
	}
}

// buildRelay creates the relay, and what keeps a record of it. The subscribers of its events may not
// exist yet, but no event is published before Run.
func (a *App) buildRelay() error {
	var offer *privateapi.Handover
	if a.takeover != nil {
		offer = a.takeover.offer
	}
	hooks := a.events.RelayHooks()
	hooks.Admit = a.players.admitOnRelay
	hooks.OnCode = func(e engine.CodeEvent) { // for each answer with the code of a host: the first one is news
		if a.history.KeepCode(e.Host, e.Code) {
			a.events.Code.Publish(e)
		}
	}
	r, err := newLocalRelay(&a.opts, hooks, &a.events.Drain, offer)
	if err != nil {
		return err
	}
	a.relay, a.players.relay, a.ready.drain = r, r.engine.Private(), r.drain
	a.history = history.New(history.Config{
		Directory: history.NewDirectory(), Relay: r.engine, MaxContent: a.opts.Config.MaxContent, RecoverFor: r.recoverFor,
		Logger: a.opts.Logger,
	})
	h := a.handover
	h.relay, h.history = r, a.history
	a.parts.add(part{name: "hand-over", run: h.run})
	a.parts.add(part{name: "session file", run: h.endSessions, free: r.closeSessionFile})
	a.parts.add(part{
		name: "relay", ready: r.engine.Ready(), free: r.engine.Close,
		run: func(ctx context.Context) error { return r.run(ctx, h.endRelay) },
	})
	a.usage = newUsageKeeper(a.opts.UsageFile, a.life.began, r.engine, a.opts.Logger)
	if a.takeover == nil {
		if err := a.usage.load(); err != nil {
			return err
		}
	}
	a.parts.add(part{name: "usage", run: a.usage.run})
	a.parts.addTasks(r.watch, a.history.Run)
	if t := a.takeover; t != nil {
		a.parts.addTasks(func(context.Context) { t.readHistory(a.history) })
	}
	return nil
}

func (a *App) buildFrontEnd() (err error) {
	if a.frontEnd, err = newFrontEnd(&a.opts, a.store); err != nil {
		return err
	}
	a.players.leases.store = a.store
	a.parts.add(part{name: "dialer", run: a.frontEnd.dialer.Run})
	a.parts.add(part{name: "fleet", run: a.frontEnd.fleet.Run})
	a.frontEnd.others = newAPIProcesses(a.store, func() placement.APIProcess { return a.status().announcement() }, a.opts.Logger)
	a.parts.add(part{name: "processes", run: a.frontEnd.others.run})
	return nil
}

func (a *App) buildService() (err error) {
	c := &a.opts.Config
	cfg := alloc.ServiceConfig{
		MaxConnections: c.MaxConnections, MaxOutstanding: maxOutstanding(c), BindTimeout: c.BindTimeout,
		HostMigration: c.HostMigration > 0, Admit: a.players.admit, AllowedRegions: a.players.allowedRegions,
		OnReserve: a.events.Reservation.Publish,
	}
	if f := a.frontEnd; f != nil {
		cfg.Relay, cfg.Store, cfg.LiveRegions, cfg.KeepCode = f.fleet, f.fleet.Codes(), f.fleet.Regions, f.fleet.KeepCode
		cfg.HasRoom = f.fleet.HasRoom
		a.api.service, err = alloc.NewService(cfg)
		return err
	}
	relay, err := a.relay.advertised(a.api.addr())
	if err != nil {
		return err
	}
	codes := &localCodes{Store: alloc.NewMemoryStore(), relay: a.relay.engine, directory: a.history.Directory, log: a.opts.Logger}
	codes.restore(nil)
	cfg.Relay, cfg.Store, cfg.KeepCode = relay, codes, a.relay.engine.Private().KeepCode
	cfg.HasRoom = func(_ string, seats int) bool { return a.relay.hasRoom(a.settings.current().Config, seats) }
	cfg.Regions = []alloc.Region{{
		ID: c.Region, Description: c.Region, QoSAddress: qosAddress(relay.Endpoints), WebSocketURL: placement.WebSocketURL(relay.Endpoints),
	}}
	a.api.service, err = alloc.NewService(cfg)
	a.handover.codes = codes
	if a.takeover != nil {
		a.takeover.codes = codes
	}
	return err
}

// gcPercent is the growth of the heap in percent at which the collector runs.
// The table holds no pointers, so a collection costs little whatever its size,
// and a relay of a million allocations stays near 512 MiB.
const gcPercent = 50

func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

var (
	errNotReady = errors.New("starting or stopping")
	errDraining = errors.New("draining: new allocations are refused")
)

type readiness struct {
	serving atomic.Bool
	drain   *drainer           // nil: without a relay
	store   *redisstore.Stores // nil: without a fleet
}

// check returns nil if the process accepts requests, else why not: errNotReady, errDraining, or the
// error of a store that has refused this process since its start.
func (r *readiness) check() error {
	if r.store != nil {
		if err := r.store.LoginError(); err != nil {
			return fmt.Errorf("store, store_password_file: %w", err)
		}
	}
	switch {
	case !r.serving.Load():
		return errNotReady
	case r.drain.isOn():
		return errDraining
	}
	return nil
}
