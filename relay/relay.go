package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/parts"
	"github.com/ferryrelay/ferry/internal/base/urlpath"
	"github.com/ferryrelay/ferry/internal/server/dataplane"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/ferryrelay/ferry/internal/server/web"
)

// Relay is a relay with its Allocations service. Its methods may be called by any goroutine.
type Relay struct {
	cfg     Config
	data    *dataplane.Relay
	service *alloc.Service
	api     http.Handler
	parts   *parts.Group
	ready   chan struct{} // closed when Run takes calls
}

// New opens the UDP sockets and the files of a relay, and starts no goroutine. A relay that is not
// run must be closed. After an error Config.Listener is open. Errors: ErrConfig, those of the parts,
// and of Dir.
func New(cfg Config) (_ *Relay, err error) {
	r := &Relay{cfg: cfg, parts: parts.NewGroup(), ready: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.parts.Close())
		}
	}()
	base, err := cfg.base()
	if err != nil {
		return nil, err
	}
	if _, err := cfg.endpoints(cfg.Engine.Listen, base); err != nil {
		return nil, err
	}
	c := dataplane.Config{
		Engine: cfg.Engine, DTLS: cfg.DTLS, WebSocket: cfg.WebSocket, Logger: cmp.Or(cfg.Engine.Logger, slog.New(slog.DiscardHandler)),
		Endpoints: func(listen []netip.AddrPort) ([]alloc.ServerEndpoint, error) { return cfg.endpoints(listen, base) },
	}
	if err := r.open(&c); err != nil {
		return nil, err
	}
	if len(cfg.Service.Regions) > 0 {
		c.Engine.Region = cmp.Or(cfg.Engine.Region, cfg.Service.Regions[0].ID)
	}
	if r.data, err = dataplane.New(c); err != nil {
		return nil, err
	}
	r.parts.Add(parts.Open("session file", r.data.CloseSessions))
	r.parts.Add(parts.Part{Name: "relay", Run: r.relay, Ready: r.data.Ready(), Free: r.data.Close})
	if err := r.buildService(); err != nil {
		return nil, err
	}
	if cfg.Listener != nil {
		limited := httpapi.LimitListener(cfg.Listener, httpapi.ConnLimits{TrustedProxies: cfg.API.TrustedProxies})
		server := web.New(limited, r.Handler(cfg.Pages), cfg.TLS, c.Logger)
		server.Answer = stopWithin
		r.parts.Add(server.Part("api"))
	}
	r.parts.Add(parts.Part{Name: "readiness", Run: r.markReady})
	return r, nil
}

// open sets the identity, and opens the directory of what the next run must know.
func (r *Relay) open(to *dataplane.Config) error {
	var err error
	if r.cfg.Dir == "" {
		to.Identity, err = engine.NewIdentity()
	} else {
		var dir *state.Dir
		if dir, err = state.Open(r.cfg.Dir, to.Logger); err != nil {
			return err
		}
		r.parts.Add(parts.Open("directory", dir.Close))
		dir.NoteHolder()
		to.Identity = engine.Identity{Master: dir.Identity.Master, Relay: dir.Identity.Relay}
		to.Engine.Recovery.StateFile = cmp.Or(to.Engine.Recovery.StateFile, dir.Files().Allocations)
		if to.Engine.Recovery.Window >= 0 {
			to.SessionFile = dir.Files().Sessions
		}
	}
	if r.cfg.Identity != nil {
		to.Identity = *r.cfg.Identity
	}
	return err
}

// buildService creates the service and its handlers, with the join codes of the previous run.
func (r *Relay) buildService() (err error) {
	c := r.cfg.Service
	if c.Relay = r.data; r.cfg.Place != nil {
		c.Relay = r.cfg.Place(r.data)
	}
	if c.Store == nil {
		c.Store = alloc.NewMemoryStore()
	}
	r.data.RestoreCodes(c.Store)
	c.MaxConnections = cmp.Or(c.MaxConnections, r.cfg.Engine.MaxConnections)
	c.BindTimeout = cmp.Or(c.BindTimeout, r.cfg.Engine.Timeouts.Bind)
	c.HostMigration = c.HostMigration || r.cfg.Engine.HostMigration.Window > 0
	if r.service, err = r.data.NewService(c); err != nil {
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
		case r.data.WebSocket != nil && path == "/" && strings.EqualFold(req.Header.Get("Upgrade"), "websocket"):
			r.data.WebSocket.ServeHTTP(w, req)
		default:
			pages.ServeHTTP(w, req)
		}
	})
}

// Engine returns the data plane, for statistics and for what an operator does.
func (r *Relay) Engine() *engine.Server { return r.data.Server }

// Reserver returns the data plane as a service uses it: its reservations have all endpoints of
// this relay. See Config.Place.
func (r *Relay) Reserver() alloc.Relay { return r.data }

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
	if !r.parts.Begin() {
		return engine.ErrAlreadyRun
	}
	defer r.parts.End()
	return r.parts.Run(ctx)
}

// relay relays until ctx ends or a drain is over.
func (r *Relay) relay(ctx context.Context) error {
	if err := r.data.Run(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	return parts.ErrDone
}

func (r *Relay) markReady(ctx context.Context) error {
	if r.data.Wait(ctx) {
		close(r.ready)
	}
	<-ctx.Done()
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
	err := r.data.Drain(ctx, engine.DrainConfig{})
	if err == nil {
		select {
		case <-r.parts.Ended():
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
	if r == nil || r.parts == nil { // New has not made it.
		return nil
	}
	return r.parts.Close()
}
