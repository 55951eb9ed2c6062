package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.Relay = (*Server)(nil)

// ask runs do in the control goroutine. It returns alloc.ErrUnavailable when
// the relay does not run, or ctx ends before control comes to it; do may then
// still run.
func (s *Server) ask(ctx context.Context, do func(*control)) error {
	done := make(chan struct{})
	select {
	case s.control.calls <- call{do, done}:
	case <-s.stopped:
		return alloc.ErrUnavailable
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
	}
	select {
	case <-done:
		return nil
	case <-s.stopped:
		return alloc.ErrUnavailable
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
	}
}

// ReserveHost sets an allocation aside for a host, which must bind within the
// bind time-out.
func (s *Server) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	if r.MaxConnections < 1 || r.MaxConnections > s.cfg.MaxConnections {
		return alloc.Reservation{}, alloc.ErrMaxConnections
	}
	id, err := newID()
	if err != nil {
		return alloc.Reservation{}, err
	}
	claims := alloc.Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Tenant: r.Tenant.Hash(), Player: r.Player,
		Project: []byte(r.Tenant.Project), Environment: []byte(r.Tenant.Environment),
		MaxConnections: uint16(r.MaxConnections),
	}
	res, err := s.seal(claims)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res.HostConnectionData = res.ConnectionData
	return res, s.reserve(ctx, claims, res.ConnectionData, nil)
}

// ReserveJoiner sets an allocation aside for a joiner of r.Host, and issues the
// ticket with which it asks for its host.
func (s *Server) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	id, err := newID()
	if err != nil {
		return alloc.Reservation{}, err
	}
	claims := alloc.Claims{
		Role: alloc.RoleJoiner, ID: id, Match: r.Host, Tenant: r.Tenant.Hash(), Player: r.Player,
		Project: []byte(r.Tenant.Project), Environment: []byte(r.Tenant.Environment),
	}
	res, err := s.seal(claims)
	if err != nil {
		return alloc.Reservation{}, err
	}
	ticket := claims
	ticket.Role, ticket.ID, ticket.Joiner = alloc.RoleTicket, r.Host, id
	if res.HostConnectionData, err = s.relay.sealer.Seal(ticket); err != nil {
		return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
	}
	return res, s.reserve(ctx, claims, res.ConnectionData, &r.Host)
}

// seal makes what a reservation holds besides its place in the table.
func (s *Server) seal(c alloc.Claims) (alloc.Reservation, error) {
	data, err := s.relay.sealer.Seal(c)
	if err != nil {
		return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
	}
	res := alloc.Reservation{
		ID: c.ID, ConnectionData: data, Endpoints: s.cfg.Advertise, Region: s.cfg.Region,
	}
	s.relay.sealer.NewDeriver().Key(c.ID, &res.Key)
	return res, nil
}

// reserve enters what was sealed into the table, if host, where one is named,
// lives and has the same tenant.
func (s *Server) reserve(ctx context.Context, claims alloc.Claims, data alloc.ConnectionData, host *proto.AllocationID) error {
	epoch := data.Epoch()
	var verdict error
	err := s.ask(ctx, func(c *control) {
		verdict = c.reserve(alloc.Spec{
			ID: claims.ID, Role: claims.Role, Match: claims.Match, Player: claims.Player,
			Tenant: claims.Tenant, Epoch: epoch, MaxConnections: claims.MaxConnections,
		}, host, tick(c.clock()))
	})
	if err != nil {
		return err
	}
	return verdict
}

func (c *control) reserve(spec alloc.Spec, host *proto.AllocationID, now alloc.Tick) error {
	if host != nil {
		e, ok := c.table.ByID(*host)
		if !ok || e.Role != alloc.RoleHost || c.table.Account(e.Handle).Tenant != spec.Tenant {
			return alloc.ErrNotFound
		}
	}
	h, err := c.table.Reserve(spec, now)
	if err != nil {
		return err
	}
	c.sealer.Retain(spec.Epoch)
	c.wheel.put(h, c.lastTick(h)+1)
	return nil
}

// Describe tells about a live allocation.
func (s *Server) Describe(ctx context.Context, id proto.AllocationID) (d alloc.Description, err error) {
	err = s.ask(ctx, func(c *control) {
		if e, ok := c.table.ByID(id); ok {
			a := c.table.Account(e.Handle)
			d = alloc.Description{Tenant: a.Tenant, Player: a.Player, Role: e.Role, Bound: !e.Endpoint.IsZero()}
		}
	})
	if err == nil && d.Role == alloc.RoleNone {
		err = alloc.ErrNotFound
	}
	return d, err
}

// newID returns a random (version 4) UUID: 122 random bits, so that nobody
// guesses the id of a live allocation.
func newID() (proto.AllocationID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return proto.AllocationID{}, fmt.Errorf("engine: allocation id: %w", err)
	}
	return proto.AllocationID(id), nil
}
