// Package advertised is a relay as players reach it: its reservations have the endpoints of all
// transports, which are known once its sockets are open.
package advertised

import (
	"context"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

// Relay is the relay of an Allocations service. Its fields are fixed before the first call.
type Relay struct {
	*engine.Server
	Endpoints []alloc.ServerEndpoint
	// HasRoom reports whether a reservation is possible, which is refused with alloc.ErrFull otherwise.
	// Nil: always.
	HasRoom func() bool
}

var _ alloc.Relay = Relay{}

// ReserveHost implements alloc.Relay.
func (r Relay) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	return reserve(ctx, r, q, r.Server.ReserveHost)
}

// ReserveJoiner implements alloc.Relay.
func (r Relay) ReserveJoiner(ctx context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	return reserve(ctx, r, q, r.Server.ReserveJoiner)
}

// MigrateHost implements alloc.Relay.
func (r Relay) MigrateHost(ctx context.Context, q alloc.MigrationRequest) (alloc.Reservation, error) {
	return reserve(ctx, r, q, r.Server.MigrateHost)
}

// KeepCode keeps the join code of a host over a crash.
func (r Relay) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	return r.Private().KeepCode(ctx, host, code)
}

func reserve[Q any](ctx context.Context, r Relay, q Q, do func(context.Context, Q) (alloc.Reservation, error)) (alloc.Reservation, error) {
	if r.HasRoom != nil && !r.HasRoom() {
		return alloc.Reservation{}, alloc.ErrFull
	}
	res, err := do(ctx, q)
	res.Endpoints = r.Endpoints
	return res, err
}
