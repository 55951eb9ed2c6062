package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/statefile"
	"github.com/ferryrelay/ferry/internal/table"
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
	return s.await(ctx, done)
}

// await waits for the answer of control. One that was given counts although the
// relay has stopped, or the caller's time is over, by the time it is looked at.
func (s *Server) await(ctx context.Context, done <-chan struct{}) (err error) {
	select {
	case <-done:
		return nil
	case <-s.stopped:
		err = alloc.ErrUnavailable
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
	}
	select {
	case <-done:
		return nil
	default:
		return err
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
	if res.HostConnectionData, err = s.shared.sealer.Seal(ticket); err != nil {
		return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
	}
	return res, s.reserve(ctx, claims, res.ConnectionData, &r.Host)
}

// seal makes what a reservation holds besides its place in the table.
func (s *Server) seal(c alloc.Claims) (alloc.Reservation, error) {
	data, err := s.shared.sealer.Seal(c)
	if err != nil {
		return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
	}
	res := alloc.Reservation{
		ID: c.ID, ConnectionData: data, Endpoints: s.cfg.Advertise, Region: s.cfg.Region,
	}
	s.shared.sealer.NewDeriver().Key(c.ID, &res.Key)
	return res, nil
}

// reserve enters what was sealed into the table, if host, where one is named,
// lives and has the same tenant.
func (s *Server) reserve(ctx context.Context, claims alloc.Claims, data alloc.ConnectionData, host *proto.AllocationID) error {
	claims.Epoch = data.Epoch()
	sealed := claimsOf(&claims)
	var verdict error
	name := alloc.Tenant{Project: string(claims.Project), Environment: string(claims.Environment)}
	err := s.ask(ctx, func(c *control) {
		if verdict = c.reserve(&sealed, host, c.shared.clock()); verdict == nil {
			c.projects.name(sealed.tenant, name)
		}
	})
	if err != nil {
		return err
	}
	return verdict
}

func (c *control) reserve(m *claims, host *proto.AllocationID, now int64) error {
	if host == nil && c.drain.active.Load() {
		return alloc.ErrDraining
	}
	if host != nil {
		e, ok := c.shared.table.ByID(*host)
		switch {
		case !ok && c.unknown(*host, now):
			return alloc.ErrUnavailable
		case !ok || e.Role != table.RoleHost || c.shared.table.Account(e.Handle).Tenant != m.tenant:
			return alloc.ErrNotFound
		}
	}
	if host == nil && !c.seated(m.most) {
		return alloc.ErrFull
	}
	h, err := c.enter(m, tick(now))
	if err != nil {
		return alloc.ErrFull // The table has no other reason.
	}
	c.keep(h)
	return nil
}

// KeepCode makes the join code of a live host survive a crash of the process:
// it is in the state file when KeepCode returns. Without a state file it does nothing.
// Errors: alloc.ErrNotFound, alloc.ErrUnavailable, alloc.ErrCodeMalformed.
func (s *Server) KeepCode(ctx context.Context, id proto.AllocationID, code string) error {
	packed, err := statefile.ParseCode(code)
	if err != nil {
		return alloc.ErrCodeMalformed
	}
	verdict := alloc.ErrNotFound
	err = s.ask(ctx, func(c *control) {
		if e, ok := c.shared.table.ByID(id); ok && e.Role == table.RoleHost {
			c.stateFile.SetCode(c.place(e.Handle), packed)
			verdict = nil
		}
	})
	if err != nil {
		return err
	}
	return verdict
}

// KeptCode is a join code that a run before this one kept.
type KeptCode struct {
	Tenant uint64 // alloc.Tenant.Hash
	Host   proto.AllocationID
	Code   string
}

// KeptCodes returns the join codes of hosts that may come back. It is called
// before Run.
func (s *Server) KeptCodes() (codes []KeptCode) {
	for _, r := range s.control.recovery.records {
		if !r.Code.IsZero() {
			codes = append(codes, KeptCode{Tenant: r.Tenant, Host: r.ID, Code: r.Code.String()})
		}
	}
	return codes
}

// Describe tells about a live allocation. Soon after a restart it answers
// alloc.ErrUnavailable for one that may yet come back.
func (s *Server) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	var d alloc.Description
	verdict := alloc.ErrNotFound
	err := s.ask(ctx, func(c *control) {
		if e, ok := c.shared.table.ByID(id); ok {
			a := c.shared.table.Account(e.Handle)
			d = alloc.Description{Tenant: a.Tenant, Player: a.Player, Role: alloc.Role(e.Role), Bound: !e.Endpoint.IsZero()}
			verdict = nil
		} else if c.unknown(id, c.shared.clock()) {
			verdict = alloc.ErrUnavailable
		}
	})
	if err != nil {
		return alloc.Description{}, err // d may still be written to.
	}
	return d, verdict
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
