package engine

import (
	"context"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.MigrationRelay = (*Server)(nil)

const (
	// maxMigrations limits the hosts whose place may be taken at a time; beyond it the
	// oldest one is over early. One takes less than 200 bytes.
	maxMigrations = 1 << 16
	// candidateMillis is how long a candidate has the permission to itself: the API's limit
	// for its calls to relays and the store, and a second call of the same player.
	candidateMillis = 3000
	// migrationsPerCall is how many may be over in one call, since each calls a hook.
	migrationsPerCall = 256
)

// migration is the time after the end of a host in which one of its players may take its
// place.
type migration struct {
	host           table.Handle // the links of its players still name it
	departure      *departure   // nil, or the players that it disconnected as it left
	everBound      bool
	tenant         uint64
	maxConnections uint16
	until          int64                // ms
	candidate      proto.AllocationID   // the player that has the permission; zero: none yet
	grantedUntil   int64                // ms
	newHosts       []proto.AllocationID // hosts that were about to get the code
}

// maxNewHosts limits the newHosts of a host: a match whose hosts leave so often is given up.
const maxNewHosts = 64

// migrations are the running ones. They belong to the control goroutine.
type migrations struct {
	window  int64      // ms; 0: no player takes the place of a host
	silence table.Tick // after which a host may be replaced that has not ended
	byHost  map[proto.AllocationID]*migration
	queue   []proto.AllocationID // those of byHost, the oldest first
	// unbound are the hosts with a join code that no client has bound. Players may wait for
	// such a host: it may be a candidate.
	unbound map[proto.AllocationID]struct{}
	// departures are the last players that live hosts have disconnected.
	departures map[proto.AllocationID]*departure
}

// departureTicks is how far apart the DISCONNECTs of a host that leaves may be, and its last
// message behind them: 2 s. A client that leaves disconnects all its peers first. A player
// that is disconnected earlier was removed by its host, and may not take its place.
const departureTicks = 2000 / table.TickMillis

// departure is a series of DISCONNECTs of a host.
type departure struct {
	last    table.Tick
	players map[proto.AllocationID]struct{}
}

// noteDisconnect records that a host has disconnected a player.
func (s *migrations) noteDisconnect(host, player *table.Entry, now table.Tick) {
	if s.window == 0 || host.Role != table.RoleHost {
		return
	}
	f := s.departures[host.ID]
	if f == nil || now > f.last+departureTicks {
		f = &departure{players: make(map[proto.AllocationID]struct{})}
		s.departures[host.ID] = f
	}
	f.last = now
	f.players[player.ID] = struct{}{}
}

// departureOf returns the players that a host disconnected as it left, nil if it has a link or
// has sent anything since.
func (c *control) departureOf(host *table.Entry) *departure {
	f := c.migrations.departures[host.ID]
	if f == nil || c.shared.table.Account(host.Handle).Links > 0 {
		return nil
	}
	if heard, _ := c.shared.table.LastSeen(host.Handle); heard > f.last+departureTicks {
		return nil
	}
	return f
}

// has reports whether a player was disconnected.
func (f *departure) has(player proto.AllocationID) bool {
	if f == nil {
		return false
	}
	_, ok := f.players[player]
	return ok
}

func newMigrations(cfg *Config) migrations {
	return migrations{
		window: cfg.HostMigrationWindow.Milliseconds(), silence: ticks(or(cfg.HostMigrationSilence, DefaultHostMigrationSilence)),
		byHost: make(map[proto.AllocationID]*migration), unbound: make(map[proto.AllocationID]struct{}),
		departures: make(map[proto.AllocationID]*departure),
	}
}

// noteCode records that a host has a join code.
func (s *migrations) noteCode(e *table.Entry) {
	if s.window > 0 && !e.Is(table.EverBound) {
		s.unbound[e.ID] = struct{}{}
	}
}

// beginMigration begins the migration of a host that has just ended, if it has players. A
// host that an operator ends has no candidate. It reports whether it did.
func (c *control) beginMigration(host *table.Entry, why EndReason) bool {
	s := &c.migrations
	if s.window == 0 || host.Role != table.RoleHost {
		return false
	}
	_, awaited := s.unbound[host.ID]
	a := c.shared.table.Account(host.Handle)
	left := c.departureOf(host)
	delete(s.unbound, host.ID)
	delete(s.departures, host.ID)
	if a.Links == 0 && left == nil && !awaited || why == EndOperator {
		return false
	}
	if len(s.queue) == maxMigrations {
		c.endMigration()
	}
	s.byHost[host.ID] = &migration{
		host: host.Handle, departure: left, everBound: host.Is(table.EverBound), tenant: a.Tenant,
		maxConnections: a.MaxConnections, until: c.shared.clock() + s.window,
	}
	s.queue = append(s.queue, host.ID)
	return true
}

// endMigrations ends those whose time is over, and reports whether more may be due.
func (c *control) endMigrations(now int64) bool {
	s := &c.migrations
	for range migrationsPerCall {
		if len(s.queue) == 0 || s.byHost[s.queue[0]].until > now {
			return false
		}
		c.endMigration()
	}
	return true
}

// endMigration ends the oldest one.
func (c *control) endMigration() {
	s := &c.migrations
	host := s.queue[0]
	delete(s.byHost, host)
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	if c.hooks.OnMigrationEnd != nil {
		c.hooks.OnMigrationEnd(MigrationEndEvent{Host: host})
	}
}

// migrationOf returns the running migration of a host, or nil.
func (c *control) migrationOf(host proto.AllocationID, now int64) *migration {
	if s := c.migrations.byHost[host]; s != nil && now < s.until {
		return s
	}
	return nil
}

// errorOfAbsent returns the error of a join to a host that is not in the table.
func (c *control) errorOfAbsent(host proto.AllocationID, tenant uint64, now int64) error {
	s := c.migrationOf(host, now)
	switch {
	case s != nil && s.tenant == tenant:
		return alloc.MigrationError{Candidate: s.candidate}
	case s == nil && c.mayExist(host, now):
		return alloc.ErrUnavailable
	}
	return alloc.ErrNotFound
}

// Migrate permits a player to take the place of its host, see [Config].HostMigrationWindow. It
// implements [alloc.MigrationRelay].
func (s *Server) Migrate(ctx context.Context, r alloc.MigrationRequest) (alloc.Migration, error) {
	var scratch alloc.Scratch
	opened, ok := s.shared.sealer.Open(&scratch, r.Ticket[:])
	t := claimsOf(&opened)
	anyPlayer := r.Player == alloc.PlayerHash{}
	if !ok || t.role != alloc.RoleTicket || t.match != r.Host || t.tenant != r.Tenant.Hash() || !anyPlayer && t.player != r.Player {
		return alloc.Migration{}, alloc.ErrNotFound
	}
	var granted alloc.Migration
	var verdict error
	do := func(c *control) {
		if granted, verdict = c.migrate(&t, r.Holder, c.shared.clock()); verdict == nil && !r.NewHost.IsZero() {
			verdict = c.addNewHost(r.Host, r.NewHost)
		}
	}
	if err := s.onControl(ctx, do); err != nil {
		return alloc.Migration{}, err // granted may still be written to.
	}
	granted.Region = s.cfg.Region
	return granted, verdict
}

// addNewHost records a host to which the join code of another one may lead from now on.
func (c *control) addNewHost(host, newHost proto.AllocationID) error {
	s := c.migrations.byHost[host]
	if len(s.newHosts) == maxNewHosts {
		return alloc.ErrNotFound
	}
	s.newHosts = append(s.newHosts, newHost)
	return nil
}

// succeed decides about the player of a ticket, if the join code leads to holder.
func (c *control) migrate(t *claims, holder proto.AllocationID, now int64) (alloc.Migration, error) {
	if c.migrations.window == 0 {
		return alloc.Migration{}, alloc.ErrNotFound
	}
	player, ok := c.shared.table.ByID(t.joiner)
	switch {
	case !ok && c.mayExist(t.joiner, now):
		return alloc.Migration{}, alloc.ErrUnavailable
	case !ok || !player.Is(table.EverBound):
		return alloc.Migration{}, alloc.ErrNotFound
	}
	if err := c.endSilentHost(t.match, &player, now); err != nil {
		return alloc.Migration{}, err
	}
	s := c.migrationOf(t.match, now)
	// The link of a player that the host has disconnected does not name it any more.
	if s == nil || s.everBound && player.Link != s.host && !s.departure.has(t.joiner) {
		return alloc.Migration{}, alloc.ErrNotFound
	}
	if holder != t.match && !slices.Contains(s.newHosts, holder) {
		return alloc.Migration{}, alloc.ErrNotFound // It is the host of another match.
	}
	if s.candidate != t.joiner && !s.candidate.IsZero() && now < s.grantedUntil {
		return alloc.Migration{}, alloc.MigrationError{Candidate: s.candidate}
	}
	if s.candidate != t.joiner || now >= s.grantedUntil {
		s.candidate, s.grantedUntil = t.joiner, now+candidateMillis
		if c.hooks.OnMigrate != nil {
			c.hooks.OnMigrate(MigrateEvent{Host: t.match, Candidate: t.joiner})
		}
	}
	return alloc.Migration{Player: t.player, MaxConnections: int(s.maxConnections)}, nil
}

// endSilentHost ends a host that is live but silent, for one of its players. It returns nil
// if the host has ended, now or before.
func (c *control) endSilentHost(id proto.AllocationID, player *table.Entry, now int64) error {
	host, ok := c.shared.table.ByID(id)
	if !ok {
		if c.migrationOf(id, now) == nil && c.mayExist(id, now) {
			return alloc.ErrUnavailable
		}
		return nil
	}
	left := c.departureOf(&host)
	if host.Is(table.EverBound) && player.Link != host.Handle && !left.has(player.ID) {
		return alloc.ErrHostPresent
	}
	heard, _ := c.shared.table.LastSeen(host.Handle)
	if !host.Is(table.EverBound) {
		heard = c.shared.table.Account(host.Handle).ReservedAt
	}
	if tick(now) <= c.pause.extend(heard, c.migrations.silence) || c.pause.active || tick(now) <= c.pause.resumeAfter {
		return alloc.ErrHostPresent // The silence may also be on our side.
	}
	c.end(host.Handle, EndMigrated)
	return nil
}
