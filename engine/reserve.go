package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/statefile"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
	"github.com/google/uuid"
)

var _ alloc.Relay = (*Server)(nil)

// ask runs do in the control goroutine. It returns alloc.ErrUnavailable when
// the relay does not run, or ctx ends before control comes to it; do may then
// still run.
func (s *Server) onControl(ctx context.Context, do func(*control)) error {
	done := make(chan struct{})
	select {
	case s.control.calls <- call{do, done}:
	case <-s.stopped:
		return alloc.ErrUnavailable
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
	}
	return s.awaitCall(ctx, done)
}

// await waits for the answer of control. One that was given counts although the
// relay has stopped, or the caller's time is over, by the time it is looked at.
func (s *Server) awaitCall(ctx context.Context, done <-chan struct{}) (err error) {
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
	err := s.onControl(ctx, func(c *control) {
		if verdict = c.reserve(&sealed, host, c.shared.clock()); verdict == nil {
			c.projects.setName(sealed.tenant, name)
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
		case !ok && c.mayExist(*host, now):
			return alloc.ErrUnavailable
		case !ok || e.Role != table.RoleHost || c.shared.table.Account(e.Handle).Tenant != m.tenant:
			return alloc.ErrNotFound
		}
	}
	if host == nil && !c.hasSeats(m.maxConnections) {
		return alloc.ErrFull
	}
	h, err := c.insert(m, tick(now))
	if err != nil {
		return alloc.ErrFull // The table has no other reason.
	}
	c.addRecord(h)
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
	err = s.onControl(ctx, func(c *control) {
		if e, ok := c.shared.table.ByID(id); ok && e.Role == table.RoleHost {
			c.stateFile.SetCode(c.recordPlace(e.Handle), packed)
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
	err := s.onControl(ctx, func(c *control) {
		if e, ok := c.shared.table.ByID(id); ok {
			a := c.shared.table.Account(e.Handle)
			d = alloc.Description{Tenant: a.Tenant, Player: a.Player, Role: alloc.Role(e.Role), Bound: !e.Endpoint.IsZero()}
			verdict = nil
		} else if c.mayExist(id, c.shared.clock()) {
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

// A seat is room for one player. A host takes one, and one for each player that
// it asked for, whether they come or not, from its reservation to its end.

// maxMaxSeats keeps the limit within an int everywhere.
const maxMaxSeats = 1<<31 - 1

// seats counts those that are taken. It belongs to control but for taken.
type seats struct {
	taken atomic.Int64
	max   int64 // 0: no limit
	// awaited are those of hosts which may yet come back after a restart: one for
	// the host and one for each link that it had. What it asked for is in its
	// connection data, which has not been seen yet.
	recoverable int64
}

func (c *control) seatsOf(host table.Handle) int64 {
	return 1 + int64(c.shared.table.Account(host).MaxConnections)
}

// seated reports whether a host with room for most players finds its seats. One
// that comes back after a restart is not asked: its match goes on.
func (c *control) hasSeats(most uint16) bool {
	s := &c.seats
	return s.max == 0 || s.taken.Load()+s.recoverable+1+int64(most) <= s.max
}

// awaitedSeats returns those of a host of the run before.
func recoverableSeats(r *statefile.Record) int64 {
	if r.Flags&statefile.Host == 0 {
		return 0
	}
	return 1 + int64(r.Links)
}

// SetMaxSeats changes [Config].MaxSeats from now on; nobody who is there is
// asked to leave. Error: alloc.ErrUnavailable when the relay does not run.
func (s *Server) SetMaxSeats(ctx context.Context, most int) error {
	if most < 0 || int64(most) > maxMaxSeats {
		return fmt.Errorf("engine: at most %d seats are out of range", most)
	}
	return s.onControl(ctx, func(c *control) { c.seats.max = int64(most) })
}

// DrainConfig says how a drain ends.
type DrainConfig struct {
	// Deadline is how long the drain may take. Zero: until the threshold.
	Deadline time.Duration
	// Threshold ends the drain when no more allocations than that are left.
	Threshold int
}

// drain is what control knows of a drain. It belongs to control but for active.
type drain struct {
	active    atomic.Bool
	until     int64 // ms; 0: no deadline
	threshold int
	finish    func() // ends Run
}

// Drain lets the relay run dry: it takes no more allocations for hosts, still
// takes players for hosts that live, and relays as before. When no more than
// cfg.Threshold allocations are left, those included that may yet come back after
// a restart, or at the deadline, Run returns nil. A
// second Drain replaces what the first one said. Error: alloc.ErrUnavailable
// when the relay does not run.
func (s *Server) Drain(ctx context.Context, cfg DrainConfig) error {
	return s.onControl(ctx, func(c *control) {
		c.drain.until = 0
		if cfg.Deadline > 0 {
			c.drain.until = c.shared.clock() + cfg.Deadline.Milliseconds()
		}
		c.drain.threshold = cfg.Threshold
		c.drain.active.Store(true)
	})
}

// Undrain lets the relay take new allocations again. Error: as for Drain.
func (s *Server) Undrain(ctx context.Context) error {
	return s.onControl(ctx, func(c *control) { c.drain.active.Store(false) })
}

// Draining reports whether the relay runs dry. It may be called at any time.
func (s *Server) Draining() bool { return s.control.drain.active.Load() }

// drainSome ends the run when the drain is over.
func (c *control) drainSome(now int64) {
	d := &c.drain
	if !d.active.Load() {
		return
	}
	left, _, _ := c.shared.table.Counts()
	if c.shared.recovering(now) {
		left += c.recovery.missing // They may yet come back.
	}
	if left <= d.threshold || d.until != 0 && now >= d.until {
		d.finish()
	}
}
