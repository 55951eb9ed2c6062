// Package dataplane is a relay as its players reach it: the engine with DTLS, WebSocket and the file of
// DTLS sessions, and the endpoints of all, which are known once its sockets are open. Package relay and a
// process of Ferry are made of it.
package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/proto"
)

// Config configures a Relay.
type Config struct {
	// Engine is that of the engine. New sets Records, and adds WebSocket to Transports.
	Engine   engine.Config
	Identity engine.Identity
	// DTLS and WebSocket are the transports besides plain UDP; nil: none. Zero times follow from those of
	// Engine.
	DTLS      *dtls.Config
	WebSocket *websocket.Config
	// SessionFile is the path of the file of DTLS sessions that go on in the next run. Empty: none.
	SessionFile string
	// Endpoints returns those that players get, if the sockets listen there.
	Endpoints func(listen []netip.AddrPort) ([]alloc.ServerEndpoint, error)
	HasRoom   func() bool // that of the Relay
	Logger    *slog.Logger
}

// Relay is the relay of an Allocations service.
type Relay struct {
	*engine.Server
	Endpoints []alloc.ServerEndpoint
	DTLS      *dtls.Records        // nil: none
	WebSocket *websocket.Transport // nil: none
	// HasRoom reports whether a reservation is possible, which is refused with alloc.ErrFull otherwise.
	// Nil: always.
	HasRoom func() bool

	cfg      Config
	sessions *dtls.SessionFile // nil: none is open
}

var _ alloc.Relay = (*Relay)(nil)

// New opens the sockets and the file of sessions, which TakeOver does if another process hands over. A relay
// that is not run must be closed.
func New(cfg Config) (_ *Relay, err error) {
	r := &Relay{HasRoom: cfg.HasRoom, cfg: cfg}
	if err = r.addTransports(); err == nil {
		r.Server, err = engine.New(r.cfg.Engine, cfg.Identity)
	}
	if err == nil {
		r.Endpoints, err = cfg.Endpoints(r.Addrs())
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Wait waits until the relay runs, and reports whether it does so before ctx ends.
func (r *Relay) Wait(ctx context.Context) bool {
	running := []<-chan struct{}{r.Ready()}
	if r.WebSocket != nil {
		running = append(running, r.WebSocket.Running())
	}
	for _, c := range running {
		select {
		case <-c:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// NewService returns a service. What cfg lacks is that of this relay alone.
func (r *Relay) NewService(cfg alloc.ServiceConfig) (*alloc.Service, error) {
	if cfg.Relay == nil {
		cfg.Relay = r
	}
	if len(cfg.Regions) == 0 && cfg.LiveRegions == nil {
		cfg.Regions = []alloc.Region{r.Region()}
	}
	if cfg.KeepCode == nil && r.cfg.Engine.Recovery.StateFile != "" {
		cfg.KeepCode = r.KeepCode
		if cfg.Relay != r {
			cfg.KeepCode = r.keepOwnCode
		}
	}
	return alloc.NewService(cfg)
}

// RestoreCodes adds the join codes of the run before to a store.
func (r *Relay) RestoreCodes(to alloc.Store) {
	for _, kept := range r.Private().KeptCodes() {
		if _, err := to.MoveCode(context.Background(), kept.Tenant, kept.Code, kept.Host, kept.Host); err != nil {
			r.cfg.Logger.Error("the join code of a host is not restored", "host", kept.Host.String(), "error", err)
		}
	}
}

// Close closes what New has opened, unless Run has done so.
func (r *Relay) Close() error {
	if r.Server == nil {
		return r.CloseSessions()
	}
	return errors.Join(r.Server.Close(), r.CloseSessions())
}

// ReserveHost implements alloc.Relay.
func (r *Relay) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	return reserve(ctx, r, q, r.Server.ReserveHost)
}

// ReserveJoiner implements alloc.Relay.
func (r *Relay) ReserveJoiner(ctx context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	return reserve(ctx, r, q, r.Server.ReserveJoiner)
}

// MigrateHost implements alloc.Relay.
func (r *Relay) MigrateHost(ctx context.Context, q alloc.MigrationRequest) (alloc.Reservation, error) {
	return reserve(ctx, r, q, r.Server.MigrateHost)
}

// keepOwnCode is KeepCode in a service that has hosts on other relays, too.
func (r *Relay) keepOwnCode(ctx context.Context, host proto.AllocationID, code string) error {
	if err := r.KeepCode(ctx, host, code); !errors.Is(err, alloc.ErrNotFound) {
		return err
	}
	return nil
}

// KeepCode keeps the join code of a host over a crash.
func (r *Relay) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	return r.Private().KeepCode(ctx, host, code)
}

func reserve[Q any](ctx context.Context, r *Relay, q Q, do func(context.Context, Q) (alloc.Reservation, error)) (alloc.Reservation, error) {
	if r.HasRoom != nil && !r.HasRoom() {
		return alloc.Reservation{}, alloc.ErrFull
	}
	res, err := do(ctx, q)
	res.Endpoints = r.Endpoints
	return res, err
}
