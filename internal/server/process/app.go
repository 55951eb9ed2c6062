package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/base/parts"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
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
	// Files are those that the next run reads. No other process may use their directories.
	Files state.Files
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

// App is one process of Ferry: a relay, an API, or both. Its fields are fixed by New. A part that the
// mode does not have is nil.
type App struct {
	opts     Options
	parts    *parts.Group
	settings *settings
	relay    *localRelay
	api      *apiServer
	member   *member   // of a fleet, for a relay
	frontEnd *frontEnd // of a fleet, for an API
	operator *operatorServer
	handover *handover
}

// New checks the options and opens all listeners. Nothing runs before Run. An App that
// is never run must be closed.
func New(o Options) (*App, error) {
	if err := Check(o.Config, o.Mode); err != nil {
		return nil, err
	}
	setGCPercent()
	for _, w := range Warnings(o.Config, o.Mode) {
		o.Logger.Warn(w)
	}
	o.Logger = slog.New(console.NewLog(o.Logger.Handler()))
	a := &App{opts: o, parts: parts.NewGroup()}
	open, err := openPorts(&o)
	if err == nil {
		err = a.build(open)
	}
	if err != nil {
		err = errors.Join(err, a.Close())
		open.close()
		return nil, err
	}
	return a, nil
}

// build creates the parts, each with those that it uses. They start in this order.
func (a *App) build(open ports) error {
	o, mode := &a.opts, a.opts.Mode
	stream, directory, accepting := new(events.Stream), history.NewDirectory(), new(accepting)
	a.settings = newSettings(o)
	audit, err := openAudit(o)
	if err != nil {
		return err
	}
	if audit.file != nil {
		a.parts.Add(parts.Open("audit", audit.file.close))
	}
	certificates, err := newCertificates(&o.Config, mode, o.Logger)
	if err != nil {
		return err
	}
	if certificates != nil {
		a.parts.AddTasks(certificates.run)
	}
	port := newAdminPort(o, open[adminFile], certificates, accepting)
	a.parts.Add(port.web.Part("admin"))
	callers, err := newPlayers(&o.Config, mode, o.Logger)
	if err != nil {
		return err
	}
	a.parts.Add(parts.Open("players", callers.close))
	a.parts.AddTasks(callers.run)
	var stores *redisstore.Stores
	if mode.isFleetMember() {
		var p parts.Part
		if stores, p, err = newStores(o); err != nil {
			return err
		}
		a.parts.Add(p)
	}
	from, err := newTakeover(o.Parent, o.Logger)
	if err != nil {
		return err
	}

	var past *history.History
	var drain *drainer
	if mode.hasRelay() {
		if a.relay, err = newLocalRelay(o, stream, directory, callers, from, open.addr(apiFile)); err != nil {
			return err
		}
		past, drain = a.relay.history, a.relay.drain
	} else {
		past = history.New(history.Config{Directory: directory, Logger: o.Logger})
	}
	ready := &readiness{drain: drain, store: stores}
	a.handover = newHandover(o, from, a.relay, open, ready, a.parts.Stop)
	if a.relay != nil {
		a.addRelay(callers)
	}
	bans, err := newBans(o, a.relay, stores, a.settings)
	if err != nil {
		return err
	}
	a.parts.Add(parts.Part{Name: "bans", Run: bans.Run})
	self := self{opts: o, since: time.Now(), ready: ready, url: open.url(apiFile, hasTLS(&o.Config))}
	if mode == API {
		if a.frontEnd, err = newFrontEnd(o, stores, self.announcement); err != nil {
			return err
		}
		a.frontEnd.addTo(a.parts)
	}
	if l := open[apiFile]; l != nil {
		use := apiConfig{listener: l, secure: certificates.tls(), accepting: accepting, admission: newAdmission(callers, bans, a.relay, stores)}
		if a.relay != nil {
			use.websocket = a.relay.engine.WebSocket
		}
		if stores != nil {
			use.limiter = stores.Take
		}
		service, err := a.newService(use.admission, stream)
		if err != nil {
			return err
		}
		if a.api, err = newAPIServer(o, use, service, stream); err != nil {
			return err
		}
		a.parts.Add(a.api.web.Part("api"))
	}
	return a.buildOperator(port, audit, stream, &status{
		self: self, settings: a.settings, certificates: certificates, accepting: accepting, players: callers, bans: bans,
		history: past, relay: a.relay, api: a.api, store: stores, frontEnd: a.frontEnd,
	})
}

// buildOperator creates what operators and monitoring see of the parts, and starts with the readiness.
func (a *App) buildOperator(port *adminPort, audit *audit, stream *events.Stream, s *status) error {
	page, err := newConsole(s, port, audit)
	if err != nil {
		return err
	}
	a.parts.AddTasks(func(ctx context.Context) { page.Run(ctx) })
	if a.opts.Mode == Relay {
		if a.member, err = newMember(s, page.Summary); err != nil {
			return err
		}
		a.member.addTo(a.parts)
	}
	m := newMetrics(s, a.member)
	if a.operator, err = newOperatorServer(port, audit, s, page, m, a.handover); err != nil {
		return err
	}
	a.parts.Add(parts.Part{Name: "readiness", Run: func(ctx context.Context) error { return a.runReady(ctx, s.self.ready, stream) }})
	a.subscribe(stream, s, page, m)
	a.prepareReload(s, audit)
	return nil
}

// subscribe connects the parts with the events. Of each kind a part hears once, in this order.
func (a *App) subscribe(e *events.Stream, s *status, page *console.Console, m *metrics.Metrics) {
	e.Ready.Subscribe(func(events.Ready) {
		s.self.ready.serving.Store(true)
		notify(a.opts.Logger, "READY=1")
	})
	if a.opts.Mode == Dev {
		d := devlog.New(a.opts.Logger)
		d.Subscribe(e)
		a.parts.AddTasks(func(ctx context.Context) { d.Run(ctx, a.relay.engine.Stats, a.relay.engine.DTLS.Stats) })
	}
	if a.relay != nil {
		e.Refuse.Subscribe(page.CountRefusal)
		a.relay.subscribe(e)
	}
	if a.member != nil {
		a.member.subscribe(e)
	}
	s.players.subscribe(e, s.history.Directory)
	s.bans.Subscribe(e)
	e.Call.Subscribe(func(r httpapi.Request) { m.OnRequest(r.Call, r.Status, r.Took) })
	if a.opts.OnReady != nil {
		e.Ready.Subscribe(func(events.Ready) { a.opts.OnReady() })
	}
	s.history.Subscribe(e)
}

// prepareReload lets the parts that can use new settings prepare for them. The relay, which may
// fail to apply them, is first.
func (a *App) prepareReload(s *status, audit *audit) {
	on := a.settings.onReload
	if a.relay != nil {
		on(a.relay.prepare)
	}
	on(s.players.prepare)
	if a.api != nil {
		on(a.api.prepare)
	}
	on(a.operator.prepare)
	on(a.settings.prepareLevel)
	if s.certificates != nil {
		on(s.certificates.prepare)
	}
	if audit.file != nil {
		on(audit.file.prepare)
	}
}

// newService returns the Allocations service of the mode, nil for a relay of a fleet.
func (a *App) newService(rule *admission, stream *events.Stream) (*alloc.Service, error) {
	c := &a.opts.Config
	cfg := alloc.ServiceConfig{
		MaxConnections: c.MaxConnections, MaxOutstanding: maxOutstanding(c), BindTimeout: c.BindTimeout,
		HostMigration: c.HostMigration > 0, Admit: rule.admit, AllowedRegions: rule.players.allowedRegions,
		OnReserve: stream.Reservation.Publish,
	}
	switch {
	case a.frontEnd != nil:
		return a.frontEnd.newService(cfg)
	case a.opts.Mode.hasAPI():
		return a.relay.newService(cfg, a.settings)
	}
	return nil, nil
}

func newMetrics(s *status, m *member) *metrics.Metrics {
	o := s.self.opts
	cfg := metrics.Config{
		Process: s.metrics, Players: s.players.stats, Version: o.Version, Revision: o.Revision, GoVersion: o.GoVersion,
	}
	if r := s.relay; r != nil {
		cfg.Stats, cfg.Usage, cfg.DTLS = r.engine.Stats, r.usage.latest, r.engine.DTLS.Stats
		if r.engine.WebSocket != nil {
			cfg.WebSocket = r.engine.WebSocket.Stats
		}
	}
	if s.store != nil {
		cfg.Store = s.store.Stats
	}
	if m != nil {
		cfg.Announcer, cfg.Cluster = m.announcer.Stats, m.cluster.Stats
	}
	if s.frontEnd != nil {
		cfg.Fleet, cfg.Dialer = s.frontEnd.fleet.Stats, s.frontEnd.dialer.Stats
	}
	if s.certificates != nil {
		cfg.Certificates = s.certificates.metrics
	}
	return metrics.New(cfg)
}

// addRelay adds the parts of the relay, and what keeps a record of it.
func (a *App) addRelay(callers *players) {
	r, h := a.relay, a.handover
	a.parts.Add(parts.Part{Name: "hand-over", Run: h.run})
	a.parts.Add(parts.Part{Name: "session file", Run: h.endSessions})
	a.parts.Add(parts.Part{
		Name: "relay", Ready: r.engine.Ready(), Free: r.engine.Close,
		Run: func(ctx context.Context) error { return r.run(ctx, h.endRelay) },
	})
	a.parts.Add(parts.Part{Name: "usage", Run: r.usage.run})
	a.parts.AddTasks(r.watch, r.history.Run, h.readHistory)
	if a.opts.Mode.hasAPI() {
		a.parts.AddTasks(func(ctx context.Context) {
			callers.rates.run(ctx, callers.hasBandwidthQuotas, r.engine.Private().Projects)
		})
	}
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
