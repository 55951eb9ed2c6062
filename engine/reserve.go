package engine

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
	"github.com/google/uuid"
)

var _ alloc.Relay = (*Server)(nil)

// ReserveHost reserves an allocation for a host. It implements [alloc.Relay].
func (s *Server) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	if r.MaxConnections < 1 || r.MaxConnections > s.cfg.MaxConnections {
		return alloc.Reservation{}, alloc.ErrMaxConnections
	}
	id, err := newID()
	if err != nil {
		return alloc.Reservation{}, err
	}
	claims := seal.Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Tenant: r.Tenant.Hash(),
		Player: r.PlayerHash, PlayerName: []byte(r.Player), Individual: r.Individual,
		Project: []byte(r.Tenant.Project), Environment: []byte(r.Tenant.Environment), Tag: r.Tag,
		MaxConnections: uint16(r.MaxConnections),
	}
	res, err := s.seal(&claims, r.Address)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res.HostConnectionData = res.ConnectionData
	return s.reserve(ctx, claims, res, nil)
}

// ReserveJoiner reserves an allocation for a joiner of r.Host, with its ticket. It implements
// [alloc.Relay].
func (s *Server) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	id, err := newID()
	if err != nil {
		return alloc.Reservation{}, err
	}
	claims := seal.Claims{
		Role: alloc.RoleJoiner, ID: id, Match: r.Host, Tenant: r.Tenant.Hash(),
		Player: r.PlayerHash, PlayerName: []byte(r.Player), Individual: r.Individual,
		Project: []byte(r.Tenant.Project), Environment: []byte(r.Tenant.Environment), Tag: r.Tag,
	}
	res, err := s.seal(&claims, r.Address)
	if err != nil {
		return alloc.Reservation{}, err
	}
	ticket := claims
	ticket.Role, ticket.ID, ticket.Joiner = seal.RoleTicket, r.Host, id
	// A player that takes the host's place needs it, also after a crash.
	if ticket.MaxConnections, err = s.hostConnections(ctx, r.Host, claims.Tenant); err != nil {
		return alloc.Reservation{}, err
	}
	if res.HostConnectionData, err = s.shared.sealer.Seal(ticket); err != nil {
		return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
	}
	if seal.EpochOf(&res.HostConnectionData) != seal.EpochOf(&res.ConnectionData) {
		// The epoch has just ended. The ticket must open for as long as the table's entry.
		if res.ConnectionData, err = s.shared.sealer.Seal(claims); err != nil {
			return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
		}
	}
	return s.reserve(ctx, claims, res, &r.Host)
}

func (s *Server) hostConnections(ctx context.Context, host proto.AllocationID, tenant uint64) (most uint16, err error) {
	err = s.onControl(ctx, func(c *control) error {
		if err := c.checkHost(host, tenant, c.shared.clock()); err != nil {
			return err
		}
		most = c.connectionsOf(host)
		return nil
	})
	return most, err
}

func (s *Server) seal(c *seal.Claims, caller netip.Addr) (alloc.Reservation, error) {
	deriver := s.shared.sealer.Derivers.Get().(*seal.Deriver)
	defer s.shared.sealer.Derivers.Put(deriver)
	if !mayBeProxy(caller) {
		c.Network = deriver.NetworkTag(caller)
	}
	data, err := s.shared.sealer.Seal(*c)
	if err != nil {
		return alloc.Reservation{}, fmt.Errorf("engine: %w", err)
	}
	res := alloc.Reservation{
		ID: c.ID, ConnectionData: data, Endpoints: s.cfg.Advertise, Region: s.cfg.Region,
	}
	deriver.Key(c.ID, &res.Key)
	return res, nil
}

// The address may be that of a proxy or of another machine of the operator.
func mayBeProxy(caller netip.Addr) bool {
	return !caller.IsGlobalUnicast() || isPrivate(caller.Unmap())
}

// For a joiner, host must be alive and of the same tenant; for a host it is nil.
func (s *Server) reserve(ctx context.Context, claims seal.Claims, res alloc.Reservation,
	host *proto.AllocationID) (alloc.Reservation, error) {
	claims.Epoch = seal.EpochOf(&res.ConnectionData)
	sealed := claimsOf(&claims)
	names := namesOf(&claims)
	err := s.onControl(ctx, func(c *control) error {
		if err := c.admit(names.tenant.Project); err != nil {
			return err
		}
		if err := c.reserve(&sealed, host, c.shared.clock()); err != nil {
			return err
		}
		var of proto.AllocationID
		if host != nil {
			of = *host
		}
		c.announce(&sealed, names, of)
		return nil
	})
	if err != nil {
		return alloc.Reservation{}, err // no key or connection data of what does not exist
	}
	return res, nil
}

// The id of the host is zero for a host.
func (c *control) announce(m *claims, n *names, host proto.AllocationID) {
	c.projects.setName(m.tenant, n.tenant)
	c.setTag(m.id, n.tag)
	if c.hooks.OnReserve != nil {
		c.hooks.OnReserve(ReserveEvent{
			ID: m.id, Role: m.role, Tenant: m.tenant, Name: n.tenant, Player: n.player, PlayerCut: n.playerCut,
			MaxConnections: int(m.maxConnections), Host: host, Tag: n.tag,
		})
	}
}

func (c *control) admit(project string) error {
	if c.hooks.Admit == nil {
		return nil
	}
	allocations, players := 0, 0
	if p := c.projects.byName[project]; p != nil {
		allocations, players = p.allocations, p.players
	}
	return c.hooks.Admit(project, allocations, players)
}

func (c *control) reserve(m *claims, host *proto.AllocationID, now int64) error {
	if host == nil && c.drain.active.Load() {
		return alloc.ErrDraining
	}
	if host != nil {
		if err := c.checkHost(*host, m.tenant, now); err != nil {
			return err
		}
	}
	return c.addReservation(m, now)
}

func (c *control) addReservation(m *claims, now int64) error {
	if m.role == alloc.RoleHost && !c.hasSeats(m.maxConnections) {
		return alloc.ErrFull
	}
	old, err := c.yieldingAllocations(m, now)
	if err != nil {
		return err
	}
	if !c.hasSessionRoom(m) {
		return alloc.ErrFull
	}
	h, err := c.insert(m, tick(now))
	if err != nil {
		return alloc.ErrFull // The table has no other reason.
	}
	c.addRecord(h)
	c.replaceAllocations(old)
	return nil
}

func (s private) KeepCode(ctx context.Context, id proto.AllocationID, code string) error {
	packed, err := statefile.ParseCode(code)
	if err != nil {
		return alloc.ErrCodeMalformed
	}
	return s.onControl(ctx, func(c *control) error {
		e, ok := c.shared.table.ByID(id)
		if !ok || e.Role != table.RoleHost {
			return alloc.ErrNotFound
		}
		c.keepCode(&e, packed)
		return nil
	})
}

func (c *control) keepCode(host *table.Entry, code statefile.Code) {
	isNew := c.codes[host.Handle] != code
	c.noteCode(host.Handle, code)
	c.stateFile.SetCode(c.recordPlace(host.Handle), code)
	if isNew && c.hooks.Private.OnCode != nil {
		c.hooks.Private.OnCode(privateapi.CodeEvent{Host: host.ID, Code: code.String()})
	}
}

func (s private) KeptCodes() []privateapi.KeptCode { return s.keptCodes }

func (s *Server) keepCodes(records []statefile.FoundRecord) {
	for i := range records {
		if r := &records[i]; !r.Code.IsZero() {
			s.keptCodes = append(s.keptCodes, privateapi.KeptCode{Tenant: r.Tenant, Host: r.ID, Code: r.Code.String()})
		}
	}
}

// Describe implements [alloc.Relay]. Errors: alloc.ErrNotFound; alloc.ErrUnavailable, within
// Recovery.Window after a restart, if the allocation may still come back; and those of every call,
// see [Server].
func (s *Server) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	var d alloc.Description
	err := s.onControl(ctx, func(c *control) error {
		e, ok := c.shared.table.ByID(id)
		switch {
		case !ok && c.mayExist(id, c.shared.clock()):
			return alloc.ErrUnavailable
		case !ok:
			return alloc.ErrNotFound
		}
		h := e.Handle
		d = alloc.Description{Tenant: c.shared.table.Tenant(h), Player: c.shared.table.Player(h), Role: alloc.Role(e.Role),
			Bound: !e.Endpoint.IsZero()}
		d.Code = c.migrations.codeOf(id)
		return nil
	})
	return d, err
}

// newID has 122 random bits: an attacker cannot guess the id of a live allocation.
func newID() (proto.AllocationID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return proto.AllocationID{}, fmt.Errorf("engine: allocation id: %w", err)
	}
	return proto.AllocationID(id), nil
}

// A seat is room for one player. From its reservation to its end a host takes one for
// itself and one for each connection that it requested, used or not.

// maxMaxSeats fits an int on every platform.
const maxMaxSeats = 1<<31 - 1

// seats belongs to control; taken may be read by any goroutine.
type seats struct {
	taken atomic.Int64
	max   int64 // 0: no limit
	// recoverable are the seats of hosts that may still come back: one for the host and one for
	// each link that it had, since what it requested is in its connection data only.
	recoverable int64
}

func (c *control) seatsOf(host table.Handle) int64 {
	return 1 + int64(c.shared.table.Account(host).MaxConnections)
}

// hasSeats is not asked for a host that comes back after a restart, whose match goes on.
func (c *control) hasSeats(most uint16) bool {
	s := &c.seats
	return s.max == 0 || s.taken.Load()+s.recoverable+1+int64(most) <= s.max
}

func recoverableSeats(r *statefile.Record) int64 {
	if r.Flags&statefile.Host == 0 || r.Flags&statefile.Candidate != 0 {
		return 0
	}
	return 1 + int64(r.Links)
}

// SetMaxSeats changes [Config].MaxSeats for later reservations. Errors: most is out of range, and
// those of every call, see [Server].
func (s *Server) SetMaxSeats(ctx context.Context, most int) error {
	if most < 0 || int64(most) > maxMaxSeats {
		return fmt.Errorf("engine: at most %d seats are out of range", most)
	}
	return s.onControl(ctx, func(c *control) error { c.seats.max = int64(most); return nil })
}

// DrainConfig configures a drain.
type DrainConfig struct {
	// Deadline is how long the drain may take. Zero: no limit. Negative: it is over at once.
	Deadline time.Duration
	// Threshold ends the drain when at most so many allocations are left. Negative is zero.
	Threshold int
}

// drain belongs to control; active may be read by any goroutine.
type drain struct {
	active    atomic.Bool
	until     int64 // ms; 0: no deadline
	threshold int
	finish    func() // ends Run
}

// Drain begins a drain: the relay refuses new hosts, accepts joiners of live hosts, and relays as
// before. Run returns nil when at most cfg.Threshold allocations are left, including those that
// may still come back, or at the deadline. A second Drain replaces the configuration. Errors:
// those of every call, see [Server].
func (s *Server) Drain(ctx context.Context, cfg DrainConfig) error {
	return s.onControl(ctx, func(c *control) error {
		c.drain.until = 0
		if cfg.Deadline != 0 {
			c.drain.until = c.shared.clock() + max(cfg.Deadline, 0).Milliseconds()
		}
		c.drain.threshold = max(cfg.Threshold, 0)
		c.drain.active.Store(true)
		return nil
	})
}

// Undrain ends a drain: the relay accepts new hosts again. Errors: as for Drain.
func (s *Server) Undrain(ctx context.Context) error {
	return s.onControl(ctx, func(c *control) error { c.drain.active.Store(false); return nil })
}

func (c *control) drainSome(now int64) {
	d := &c.drain
	if !d.active.Load() {
		return
	}
	left, _, _ := c.shared.table.Counts()
	if c.shared.recovering(now) {
		left += c.recovery.missing // They may still come back.
	}
	if left <= d.threshold || d.until != 0 && now >= d.until {
		d.finish()
	}
}
