package engine

import (
	"context"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.SuccessionRelay = (*Server)(nil)

const (
	// maxSuccessions limits the hosts whose place may be taken at a time; beyond it the
	// oldest one is over early. One takes less than 200 bytes.
	maxSuccessions = 1 << 16
	// successorMillis is how long a successor has the permission to itself: the API's limit
	// for its calls to relays and the store, and a second call of the same player.
	successorMillis = 3000
	// successionsPerCall is how many may be over in one call, since each calls a hook.
	successionsPerCall = 256
)

// succession is the time after the end of a host in which one of its players may take its
// place.
type succession struct {
	host           table.Handle // the links of its players still name it
	farewell       *farewell    // nil, or the players that it disconnected as it left
	everBound      bool
	tenant         uint64
	maxConnections uint16
	until          int64                // ms
	successor      proto.AllocationID   // the player that has the permission; zero: none yet
	grantedUntil   int64                // ms
	heirs          []proto.AllocationID // hosts that were about to get the code
}

// maxHeirs limits the heirs of a host: a match whose hosts leave so often is given up.
const maxHeirs = 64

// successions are the running ones. They belong to the control goroutine.
type successions struct {
	window  int64      // ms; 0: no player takes the place of a host
	silence table.Tick // after which a host may be replaced that has not ended
	byHost  map[proto.AllocationID]*succession
	queue   []proto.AllocationID // those of byHost, the oldest first
	// unbound are the hosts with a join code that no client has bound. Players may wait for
	// such a host: it may be a successor.
	unbound map[proto.AllocationID]struct{}
	// farewells are the last players that live hosts have disconnected.
	farewells map[proto.AllocationID]*farewell
}

// farewellTicks is how far apart the DISCONNECTs of a host that leaves may be, and its last
// message behind them: 2 s. A client that leaves disconnects all its peers first. A player
// that is disconnected earlier was removed by its host, and may not take its place.
const farewellTicks = 2000 / table.TickMillis

// farewell is a series of DISCONNECTs of a host.
type farewell struct {
	last    table.Tick
	players map[proto.AllocationID]struct{}
}

// noteDisconnect records that a host has disconnected a player.
func (s *successions) noteDisconnect(host, player *table.Entry, now table.Tick) {
	if s.window == 0 || host.Role != table.RoleHost {
		return
	}
	f := s.farewells[host.ID]
	if f == nil || now > f.last+farewellTicks {
		f = &farewell{players: make(map[proto.AllocationID]struct{})}
		s.farewells[host.ID] = f
	}
	f.last = now
	f.players[player.ID] = struct{}{}
}

// farewellOf returns the players that a host disconnected as it left, nil if it has a link or
// has sent anything since.
func (c *control) farewellOf(host *table.Entry) *farewell {
	f := c.successions.farewells[host.ID]
	if f == nil || c.shared.table.Account(host.Handle).Links > 0 {
		return nil
	}
	if heard, _ := c.shared.table.LastSeen(host.Handle); heard > f.last+farewellTicks {
		return nil
	}
	return f
}

// has reports whether a player was disconnected.
func (f *farewell) has(player proto.AllocationID) bool {
	if f == nil {
		return false
	}
	_, ok := f.players[player]
	return ok
}

func newSuccessions(cfg *Config) successions {
	return successions{
		window: cfg.SuccessionWindow.Milliseconds(), silence: ticks(or(cfg.SuccessionSilence, DefaultSuccessionSilence)),
		byHost: make(map[proto.AllocationID]*succession), unbound: make(map[proto.AllocationID]struct{}),
		farewells: make(map[proto.AllocationID]*farewell),
	}
}

// noteCode records that a host has a join code.
func (s *successions) noteCode(e *table.Entry) {
	if s.window > 0 && !e.Is(table.EverBound) {
		s.unbound[e.ID] = struct{}{}
	}
}

// beginSuccession begins the succession of a host that has just ended, if it has players. A
// host that an operator ends has no successor. It reports whether it did.
func (c *control) beginSuccession(host *table.Entry, why EndReason) bool {
	s := &c.successions
	if s.window == 0 || host.Role != table.RoleHost {
		return false
	}
	_, awaited := s.unbound[host.ID]
	a := c.shared.table.Account(host.Handle)
	left := c.farewellOf(host)
	delete(s.unbound, host.ID)
	delete(s.farewells, host.ID)
	if a.Links == 0 && left == nil && !awaited || why == EndOperator {
		return false
	}
	if len(s.queue) == maxSuccessions {
		c.endSuccession()
	}
	s.byHost[host.ID] = &succession{
		host: host.Handle, farewell: left, everBound: host.Is(table.EverBound), tenant: a.Tenant,
		maxConnections: a.MaxConnections, until: c.shared.clock() + s.window,
	}
	s.queue = append(s.queue, host.ID)
	return true
}

// endSuccessions ends those whose time is over, and reports whether more may be due.
func (c *control) endSuccessions(now int64) bool {
	s := &c.successions
	for range successionsPerCall {
		if len(s.queue) == 0 || s.byHost[s.queue[0]].until > now {
			return false
		}
		c.endSuccession()
	}
	return true
}

// endSuccession ends the oldest one.
func (c *control) endSuccession() {
	s := &c.successions
	host := s.queue[0]
	delete(s.byHost, host)
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	if c.hooks.OnSuccessionEnd != nil {
		c.hooks.OnSuccessionEnd(SuccessionEndEvent{Host: host})
	}
}

// successionOf returns the running succession of a host, or nil.
func (c *control) successionOf(host proto.AllocationID, now int64) *succession {
	if s := c.successions.byHost[host]; s != nil && now < s.until {
		return s
	}
	return nil
}

// errorOfAbsent returns the error of a join to a host that is not in the table.
func (c *control) errorOfAbsent(host proto.AllocationID, tenant uint64, now int64) error {
	s := c.successionOf(host, now)
	switch {
	case s != nil && s.tenant == tenant:
		return alloc.SuccessionError{Successor: s.successor}
	case s == nil && c.mayExist(host, now):
		return alloc.ErrUnavailable
	}
	return alloc.ErrNotFound
}

// Succeed permits a player to take the place of its host, see [Config].SuccessionWindow. It
// implements [alloc.SuccessionRelay].
func (s *Server) Succeed(ctx context.Context, r alloc.SuccessionRequest) (alloc.Succession, error) {
	var scratch alloc.Scratch
	opened, ok := s.shared.sealer.Open(&scratch, r.Ticket[:])
	t := claimsOf(&opened)
	anyPlayer := r.Player == alloc.PlayerHash{}
	if !ok || t.role != alloc.RoleTicket || t.match != r.Host || t.tenant != r.Tenant.Hash() || !anyPlayer && t.player != r.Player {
		return alloc.Succession{}, alloc.ErrNotFound
	}
	var granted alloc.Succession
	var verdict error
	do := func(c *control) {
		if granted, verdict = c.succeed(&t, r.Holder, c.shared.clock()); verdict == nil && !r.Heir.IsZero() {
			verdict = c.addHeir(r.Host, r.Heir)
		}
	}
	if err := s.onControl(ctx, do); err != nil {
		return alloc.Succession{}, err // granted may still be written to.
	}
	granted.Region = s.cfg.Region
	return granted, verdict
}

// addHeir records a host to which the join code of another one may lead from now on.
func (c *control) addHeir(host, heir proto.AllocationID) error {
	s := c.successions.byHost[host]
	if len(s.heirs) == maxHeirs {
		return alloc.ErrNotFound
	}
	s.heirs = append(s.heirs, heir)
	return nil
}

// succeed decides about the player of a ticket, if the join code leads to holder.
func (c *control) succeed(t *claims, holder proto.AllocationID, now int64) (alloc.Succession, error) {
	if c.successions.window == 0 {
		return alloc.Succession{}, alloc.ErrNotFound
	}
	player, ok := c.shared.table.ByID(t.joiner)
	switch {
	case !ok && c.mayExist(t.joiner, now):
		return alloc.Succession{}, alloc.ErrUnavailable
	case !ok || !player.Is(table.EverBound):
		return alloc.Succession{}, alloc.ErrNotFound
	}
	if err := c.endSilentHost(t.match, &player, now); err != nil {
		return alloc.Succession{}, err
	}
	s := c.successionOf(t.match, now)
	// The link of a player that the host has disconnected does not name it any more.
	if s == nil || s.everBound && player.Link != s.host && !s.farewell.has(t.joiner) {
		return alloc.Succession{}, alloc.ErrNotFound
	}
	if holder != t.match && !slices.Contains(s.heirs, holder) {
		return alloc.Succession{}, alloc.ErrNotFound // It is the host of another match.
	}
	if s.successor != t.joiner && !s.successor.IsZero() && now < s.grantedUntil {
		return alloc.Succession{}, alloc.SuccessionError{Successor: s.successor}
	}
	if s.successor != t.joiner || now >= s.grantedUntil {
		s.successor, s.grantedUntil = t.joiner, now+successorMillis
		if c.hooks.OnSucceed != nil {
			c.hooks.OnSucceed(SucceedEvent{Host: t.match, Successor: t.joiner})
		}
	}
	return alloc.Succession{Player: t.player, MaxConnections: int(s.maxConnections)}, nil
}

// endSilentHost ends a host that is live but silent, for one of its players. It returns nil
// if the host has ended, now or before.
func (c *control) endSilentHost(id proto.AllocationID, player *table.Entry, now int64) error {
	host, ok := c.shared.table.ByID(id)
	if !ok {
		if c.successionOf(id, now) == nil && c.mayExist(id, now) {
			return alloc.ErrUnavailable
		}
		return nil
	}
	left := c.farewellOf(&host)
	if host.Is(table.EverBound) && player.Link != host.Handle && !left.has(player.ID) {
		return alloc.ErrHostPresent
	}
	heard, _ := c.shared.table.LastSeen(host.Handle)
	if !host.Is(table.EverBound) {
		heard = c.shared.table.Account(host.Handle).ReservedAt
	}
	if tick(now) <= c.pause.extend(heard, c.successions.silence) || c.pause.active || tick(now) <= c.pause.resumeAfter {
		return alloc.ErrHostPresent // The silence may also be on our side.
	}
	c.end(host.Handle, EndSucceeded)
	return nil
}
