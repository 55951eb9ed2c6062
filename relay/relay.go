package relay

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/base/urlpath"
	"github.com/ferryrelay/ferry/internal/server/advertised"
	"github.com/ferryrelay/ferry/internal/server/host/state"
)

// Relay is a relay with its Allocations service. Its methods may be called by any goroutine.
type Relay struct {
	cfg       Config
	log       *slog.Logger
	engine    *engine.Server
	reserver  alloc.Relay
	service   *alloc.Service
	api       http.Handler
	websocket *websocket.Transport // nil: none
	http      *http.Server         // of Config.Listener; nil: none
	dir       *state.Dir           // nil: none
	sessions  *dtls.SessionFile    // nil: none

	began sync.Once
	stop  chan struct{} // closed by Close
	ready chan struct{} // closed when Run takes calls
	ended chan struct{} // closed when Run has returned
	once  sync.Once     // closes stop
}

// New opens the UDP sockets and the files of a relay, and starts no goroutine. A relay that is not
// run must be closed. After an error Config.Listener is open. Errors: ErrConfig, those of the parts,
// and of Dir.
func New(cfg Config) (_ *Relay, err error) {
	r := &Relay{
		cfg: cfg, log: cfg.Engine.Logger,
		stop: make(chan struct{}), ready: make(chan struct{}), ended: make(chan struct{}),
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.release())
		}
	}()
	base, err := cfg.base()
	if err != nil {
		return nil, err
	}
	if _, err := cfg.endpoints(cfg.Engine.Listen, base); err != nil {
		return nil, err
	}
	identity, err := r.open()
	if err != nil {
		return nil, err
	}
	if err := r.addTransports(identity.Relay); err != nil {
		return nil, err
	}
	if len(cfg.Service.Regions) > 0 {
		r.cfg.Engine.Region = cmp.Or(cfg.Engine.Region, cfg.Service.Regions[0].ID)
	}
	if r.engine, err = engine.New(r.cfg.Engine, identity); err != nil {
		return nil, err
	}
	endpoints, err := cfg.endpoints(r.engine.Addrs(), base)
	if err != nil {
		return nil, err
	}
	if err := r.buildService(endpoints); err != nil {
		return nil, err
	}
	if cfg.Listener != nil {
		r.http = httpapi.NewServer(r.Handler(cfg.Pages))
		r.http.TLSConfig = cfg.TLS
		// Handlers of HTTP/2 outlive their connection, and WebSocket clients speak HTTP/1.
		r.http.Protocols = new(http.Protocols)
		r.http.Protocols.SetHTTP1(true)
		r.http.ErrorLog = slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)
	}
	return r, nil
}

func (r *Relay) open() (engine.Identity, error) {
	var identity state.Identity
	var err error
	if r.cfg.Dir == "" {
		identity, err = state.NewIdentity()
	} else if r.dir, err = state.Open(r.cfg.Dir, r.log); err == nil {
		r.dir.NoteHolder()
		identity = r.dir.Identity
		r.cfg.Engine.Recovery.StateFile = cmp.Or(r.cfg.Engine.Recovery.StateFile, r.dir.Allocations())
	}
	if r.cfg.Identity != nil && err == nil {
		return *r.cfg.Identity, nil
	}
	return engine.Identity{Master: identity.Master, Relay: identity.Relay}, err
}

func (r *Relay) addTransports(id alloc.RelayID) (err error) {
	d := r.cfg.DTLS
	if d != nil && d.Sessions == nil && r.dir != nil && r.cfg.Engine.Recovery.Window >= 0 {
		if r.sessions, err = dtls.OpenSessionFile(dtls.SessionFileConfig{
			Path: r.dir.Sessions(), Relay: id, MaxSessions: d.MaxSessions, OnError: r.onSessionError,
		}); err != nil {
			return err
		}
		c := *d
		c.Sessions, d = r.sessions, &c
	}
	_, r.websocket, err = advertised.AddTransports(&r.cfg.Engine, d, r.cfg.WebSocket)
	return err
}

func (r *Relay) onSessionError(err error) {
	r.log.Error("session file: cannot be written; DTLS sessions will not outlive this process", "error", err)
}

// buildService creates the service and its handlers, with the join codes of the previous run.
func (r *Relay) buildService(endpoints []alloc.ServerEndpoint) (err error) {
	c := r.cfg.Service
	r.reserver = advertised.Relay{Server: r.engine, Endpoints: endpoints}
	if c.Relay = r.reserver; r.cfg.Place != nil {
		c.Relay = r.cfg.Place(r.reserver)
	}
	if c.Store == nil {
		c.Store = alloc.NewMemoryStore()
	}
	for _, kept := range r.engine.Private().KeptCodes() {
		if _, err := c.Store.MoveCode(context.Background(), kept.Tenant, kept.Code, kept.Host, kept.Host); err != nil {
			r.log.Error("the join code of a host is not restored", "host", kept.Host.String(), "error", err)
		}
	}
	if c.KeepCode == nil && r.cfg.Engine.Recovery.StateFile != "" {
		c.KeepCode = r.engine.Private().KeepCode
	}
	if len(c.Regions) == 0 && c.LiveRegions == nil {
		c.Regions = []alloc.Region{advertised.Region(cmp.Or(r.cfg.Engine.Region, "default"), endpoints)}
	}
	c.MaxConnections = cmp.Or(c.MaxConnections, r.cfg.Engine.MaxConnections)
	c.BindTimeout = cmp.Or(c.BindTimeout, r.cfg.Engine.Timeouts.Bind)
	c.HostMigration = c.HostMigration || r.cfg.Engine.HostMigration.Window > 0
	if r.service, err = alloc.NewService(c); err != nil {
		return err
	}
	api := r.cfg.API
	api.Service = r.service
	if api.Logger == nil {
		api.Logger = r.cfg.Engine.Logger
	}
	r.api, err = httpapi.New(api)
	return err
}

// Handler returns a handler that serves the API at /v1/ and WebSockets at the root, and passes
// every other request to pages. A nil pages answers 404. For a program with an HTTP server of
// its own: see httpapi.NewServer and httpapi.LimitListener for the time-outs and limits that a
// public one needs.
func (r *Relay) Handler(pages http.Handler) http.Handler {
	if pages == nil {
		pages = http.NotFoundHandler()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		path := urlpath.Of(req)
		switch {
		case strings.HasPrefix(path, "/v1/"):
			r.api.ServeHTTP(w, req)
		case r.websocket != nil && path == "/" && strings.EqualFold(req.Header.Get("Upgrade"), "websocket"):
			r.websocket.ServeHTTP(w, req)
		default:
			pages.ServeHTTP(w, req)
		}
	})
}

// Engine returns the data plane, for statistics and for what an operator does.
func (r *Relay) Engine() *engine.Server { return r.engine }

// Reserver returns the data plane as a service uses it: its reservations have all endpoints of
// this relay. See Config.Place.
func (r *Relay) Reserver() alloc.Relay { return r.reserver }

// Service returns the Allocations service, for calls without HTTP.
func (r *Relay) Service() *alloc.Service { return r.service }

// Ready returns a channel that is closed when Run relays and answers calls.
func (r *Relay) Ready() <-chan struct{} { return r.ready }

// stopWithin is how long Run waits for calls of the API to end.
const stopWithin = 5 * time.Second

// Run relays, and serves Config.Listener, until ctx ends, Close or Shutdown is called, or a part
// fails. Then the calls of the API end first, which the relay answers, then the relay. No message
// ends the matches: with Config.Dir they go on in the next run. It returns nil, or the error of
// the part that failed. A second call returns engine.ErrAlreadyRun.
func (r *Relay) Run(ctx context.Context) error {
	first := false
	r.began.Do(func() { first = true })
	if !first {
		return engine.ErrAlreadyRun
	}
	defer close(r.ended)
	serving, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	var running sync.WaitGroup
	running.Go(func() { fail(r.engine.Run(relaying)) }) // nil after a drain
	r.markReady(serving)
	if r.http != nil {
		running.Go(func() { fail(r.serve()) })
	}
	select {
	case <-serving.Done():
	case <-r.stop:
		fail(nil)
	}
	err := context.Cause(serving)
	if ctx.Err() != nil || err == context.Canceled {
		err = nil
	}
	err = errors.Join(err, r.stopHTTP())
	stopRelay()
	running.Wait()
	return errors.Join(err, r.release())
}

func (r *Relay) markReady(serving context.Context) {
	parts := []<-chan struct{}{r.engine.Ready()}
	if r.websocket != nil {
		parts = append(parts, r.websocket.Running())
	}
	for _, running := range parts {
		select {
		case <-running:
		case <-serving.Done():
			return
		}
	}
	close(r.ready)
}

func (r *Relay) serve() error {
	limited := httpapi.LimitListener(r.cfg.Listener, httpapi.ConnLimits{TrustedProxies: r.cfg.API.TrustedProxies})
	var err error
	if r.cfg.TLS != nil {
		err = r.http.ServeTLS(limited, "", "")
	} else {
		err = r.http.Serve(limited)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (r *Relay) stopHTTP() error {
	if r.http == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := r.http.Shutdown(ctx); err != nil {
		return r.http.Close()
	}
	return nil
}

// Shutdown stops Run without ending a match: it refuses new hosts, waits until all matches have
// ended or ctx has, and then until Run has returned. It returns the error of ctx if matches were
// left; with Config.Dir these go on in the next run. A relay that does not run is closed.
func (r *Relay) Shutdown(ctx context.Context) error {
	select {
	case <-r.ready:
	default:
		return r.Close()
	}
	err := r.engine.Drain(ctx, engine.DrainConfig{})
	if err == nil {
		select {
		case <-r.ended:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return errors.Join(err, r.Close())
}

// Close stops Run and waits until it has returned, or releases what New opened, and closes
// Config.Listener. It may be called more than once.
func (r *Relay) Close() error {
	if r == nil || r.stop == nil { // New has not made it.
		return nil
	}
	first := false
	r.began.Do(func() { first = true })
	r.once.Do(func() { close(r.stop) })
	if !first {
		<-r.ended
		return nil
	}
	defer close(r.ended)
	err := r.release()
	if r.cfg.Listener != nil {
		err = errors.Join(err, r.cfg.Listener.Close())
	}
	return err
}

func (r *Relay) release() (err error) {
	for _, c := range []struct {
		open bool
		io.Closer
	}{{r.engine != nil, r.engine}, {r.sessions != nil, r.sessions}, {r.dir != nil, r.dir}} {
		if c.open {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}
