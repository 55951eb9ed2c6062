package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// The rules of host migration are in rules.go.

var _ alloc.MigrationRelay = (*Server)(nil)

const (
	// maxMigrations limits the hosts that have ended and whose place may be taken; beyond it the
	// oldest one is over early. One takes less than 300 bytes.
	maxMigrations = 1 << 16
	// migrationsPerCall may be over in one call, since each calls a hook.
	migrationsPerCall = 256
	// departureTicks is for how long after the end of a link its host may send and still be
	// leaving. A host that sends later has removed the player, or goes on without it.
	departureTicks = 2000 / table.TickMillis
	// turnTicks is for how long a candidate keeps the place from a player that has not had it.
	turnTicks = 2000 / table.TickMillis
	// retryAfter: a candidate is mostly bound within a second, and the join code moves at once.
	retryAfter = time.Second
)

// migration is the place of a host that has left. It is stored as JSON in a handover.
type migration struct {
	Host           proto.AllocationID
	Tenant         uint64
	Player         [16]byte // the host's
	MaxConnections uint16
	Heard          table.Tick         // when the host sent its last message before it left
	Links          uint16             // that it had when it left
	Removals       uint16             // Account.Removals when it left
	Until          int64              // ms; 0: it has said that it leaves, and has not ended
	NewHost        proto.AllocationID // that has the place; zero: none
	Code           string             // of the new host
}

// candidate holds the reservation for a host's place. It is stored as JSON in a handover.
type candidate struct {
	ID         proto.AllocationID
	Joiner     proto.AllocationID // the player's allocation in the match of the ticket
	Player     alloc.PlayerHash
	Individual bool
	Code       string
	Since      table.Tick // when the player got the place, whether or not it has asked again
}

// migrations belong to the control goroutine.
type migrations struct {
	window     int64      // ms; 0: no player takes the place of a host
	silence    table.Tick // after which a host may be replaced that has not ended
	bindWithin table.Tick // Timeouts.Bind
	running    map[proto.AllocationID]*migration
	queue      []proto.AllocationID             // hosts of running that have ended, the oldest first
	candidates map[proto.AllocationID]candidate // by the host whose place it is
	// places has the former host of each candidate and of each new host, while its place may be
	// taken.
	places map[proto.AllocationID]proto.AllocationID
}

func newMigrations(cfg *Config) migrations {
	return migrations{
		window: cfg.HostMigration.Window.Milliseconds(), silence: ticks(cmp.Or(cfg.HostMigration.Silence, defaultSilence)),
		bindWithin: cfg.rules().bindWithin,
		running:    make(map[proto.AllocationID]*migration), candidates: make(map[proto.AllocationID]candidate),
		places: make(map[proto.AllocationID]proto.AllocationID),
	}
}

func (s *migrations) migrationOf(host proto.AllocationID, now int64) *migration {
	if v := s.running[host]; v != nil && (v.Until == 0 || now < v.Until) {
		return v
	}
	return nil
}

// lastHost follows from new host to new host.
func (s *migrations) lastHost(host proto.AllocationID, now int64) proto.AllocationID {
	for v := s.migrationOf(host, now); v != nil && !v.NewHost.IsZero(); v = s.migrationOf(host, now) {
		host = v.NewHost
	}
	return host
}

// codeOf returns the code of a new host from the former one, or that a candidate would get, or "".
func (s *migrations) codeOf(id proto.AllocationID) string {
	former, ok := s.places[id]
	if !ok {
		return ""
	}
	if x := s.candidates[former]; x.ID == id {
		return x.Code
	}
	if v := s.running[former]; v != nil {
		return v.Code
	}
	return ""
}

func (c *control) noteUnlink(from, joiner, host *table.Entry, now table.Tick) {
	j := c.shared.table.Account(joiner.Handle)
	j.UnlinkedAt = now
	c.shared.table.Account(host.Handle).UnlinkedAt = now
	c.noteRemoval(from, joiner, now)
}

// A host that has left removes no player.
func (c *control) noteRemoval(from, joiner *table.Entry, now table.Tick) {
	j, h := c.shared.table.Account(joiner.Handle), c.shared.table.Account(from.Handle)
	if from.Role != table.RoleHost || j.RemovedByHost || c.migrations.running[from.ID] != nil {
		return
	}
	j.RemovedByHost = true
	if now > h.MigrationAt+departureTicks {
		h.Removals = 0
	}
	h.MigrationAt = now
	h.Removals++
}

func isLeaving(unlinked, heard table.Tick) bool {
	return unlinked != 0 && heard <= unlinked+departureTicks
}

// isPlayerOf: a host that leaves disconnects most of its players, or none; one that removes a
// player keeps the others.
func (c *control) isPlayerOf(joiner *table.Entry, host *migration) bool {
	if joiner.Link != 0 {
		return true // It names the host of its match, also if that has ended.
	}
	a := c.shared.table.Account(joiner.Handle)
	return isLeaving(a.UnlinkedAt, host.Heard) && (!a.RemovedByHost || host.Links < host.Removals)
}

func (c *control) silentAfter(host table.Handle) table.Tick {
	heard, _ := c.shared.table.LastSeen(host)
	return c.pause.extend(heard, c.migrations.silence)
}

// The silence may also be on our side.
func (c *control) mayBeSilent(now int64) bool {
	return !c.pause.active && tick(now) > c.pause.resumeAfter
}

func (c *control) isSilent(host *table.Entry, now int64) bool {
	return host.Is(table.EverBound) && c.mayBeSilent(now) && tick(now) > c.silentAfter(host.Handle)
}

func (c *control) beginMigration(host *table.Entry, why EndReason) bool {
	s := &c.migrations
	if s.window == 0 || host.Role != table.RoleHost {
		return false
	}
	s.removeCandidate(host.ID)
	now := c.shared.clock()
	v := s.running[host.ID]
	if why == EndOperator || !host.Is(table.EverBound) || v == nil && !c.hasPlayers(host, now) && why != EndMigrated {
		delete(s.running, host.ID)
		c.endCandidate(host.ID)
		return false
	}
	if v == nil {
		v = c.newMigration(host)
		s.running[host.ID] = v
	}
	if len(s.queue) == maxMigrations {
		c.endMigration()
	}
	v.Until = now + s.window
	s.queue = append(s.queue, host.ID)
	return true
}

// hasPlayers counts those of the host whose place it took too, and candidates.
func (c *control) hasPlayers(host *table.Entry, now int64) bool {
	a := c.shared.table.Account(host.Handle)
	heard, _ := c.shared.table.LastSeen(host.Handle)
	former, took := c.migrations.places[host.ID]
	_, wanted := c.migrations.candidates[host.ID]
	return a.Links > 0 || isLeaving(a.UnlinkedAt, heard) || wanted || took && c.migrations.migrationOf(former, now) != nil
}

func (c *control) newMigration(host *table.Entry) *migration {
	a := c.shared.table.Account(host.Handle)
	heard, _ := c.shared.table.LastSeen(host.Handle)
	return &migration{
		Host: host.ID, Tenant: c.shared.table.Tenant(host.Handle), Player: c.shared.table.Player(host.Handle), MaxConnections: a.MaxConnections,
		Heard: heard, Links: a.Links, Removals: a.Removals,
	}
}

func (c *control) endMigrations(now int64) bool {
	s := &c.migrations
	for range migrationsPerCall {
		if len(s.queue) == 0 || s.running[s.queue[0]].Until > now {
			return false
		}
		c.endMigration()
	}
	return true
}

func (c *control) endMigration() {
	s := &c.migrations
	host := s.queue[0]
	delete(s.places, s.running[host].NewHost)
	delete(s.running, host)
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	c.endCandidate(host)
	if c.hooks.OnMigrationEnd != nil {
		c.hooks.OnMigrationEnd(MigrationEndEvent{Host: host})
	}
}

func (s *migrations) removeCandidate(id proto.AllocationID) {
	former, ok := s.places[id]
	if !ok {
		return
	}
	if v := s.running[former]; v != nil && v.NewHost == id {
		return
	}
	delete(s.places, id)
	if s.candidates[former].ID == id {
		delete(s.candidates, former)
	}
}

func (c *control) endCandidate(host proto.AllocationID) {
	if e, ok := c.shared.table.ByID(c.migrations.candidates[host].ID); ok {
		c.end(e.Handle, EndSuperseded)
	}
}

func (v *migration) joinError() error {
	if v.NewHost.IsZero() {
		return alloc.MigrationWaitError{Reason: "the host has left, and no player has taken its place yet", RetryAfter: retryAfter}
	}
	return alloc.MigrationWaitError{Reason: "another player has taken the host's place, and the join code moves there", RetryAfter: retryAfter}
}

func (c *control) checkHost(host proto.AllocationID, tenant uint64, now int64) error {
	v := c.migrations.migrationOf(host, now)
	e, ok := c.shared.table.ByID(host)
	switch {
	case v != nil && v.Tenant == tenant:
		return v.joinError()
	case ok && e.Role == table.RoleHost && c.shared.table.Tenant(e.Handle) == tenant:
		return nil
	case !ok && v == nil && c.mayExist(host, now):
		return alloc.ErrUnavailable
	}
	return alloc.ErrNotFound
}

// MigrateHost implements [alloc.MigrationRelay], see [HostMigration].Window. Further error:
// alloc.ErrCodeMalformed.
func (s *Server) MigrateHost(ctx context.Context, r alloc.MigrationRequest) (alloc.Reservation, error) {
	if _, err := statefile.ParseCode(r.Code); err != nil || r.Code == "" {
		return alloc.Reservation{}, alloc.ErrCodeMalformed
	}
	var scratch seal.Scratch
	opened, ok := s.shared.sealer.Open(&scratch, r.Ticket[:])
	t := claimsOf(&opened)
	anyPlayer := r.Player == alloc.PlayerHash{}
	if !ok || t.role != seal.RoleTicket || t.tenant != r.Tenant.Hash() || !anyPlayer && t.player != r.Player {
		return alloc.Reservation{}, alloc.ErrNotFound
	}
	var res alloc.Reservation
	err := s.onControl(ctx, func(c *control) error {
		now := c.shared.clock()
		former, err := c.placeFor(&t, r.Host, now)
		if err != nil {
			return err
		}
		sealed, claims, err := s.sealCandidate(c, &t, &opened, &r, former)
		if err != nil {
			return err
		}
		m := claimsOf(&claims)
		if err := c.addCandidate(&m, r.Tenant, candidate{ID: m.id, Joiner: t.joiner, Code: r.Code}, former, now); err != nil {
			return err
		}
		c.announce(&m, namesOf(&claims), proto.AllocationID{})
		res = sealed
		return nil
	})
	return res, err
}

func (s *Server) sealCandidate(c *control, t *claims, ticket *seal.Claims, r *alloc.MigrationRequest,
	former proto.AllocationID) (alloc.Reservation, seal.Claims, error) {
	id, err := newID()
	if err != nil {
		return alloc.Reservation{}, seal.Claims{}, err
	}
	joiner, _ := c.shared.table.ByID(t.joiner)
	claims := seal.Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Tenant: t.tenant, Player: t.player, Individual: joiner.Is(table.Individual),
		PlayerName: ticket.PlayerName, PlayerNameCut: ticket.PlayerNameCut, Tag: ticket.Tag,
		Project: []byte(r.Tenant.Project), Environment: []byte(r.Tenant.Environment),
		MaxConnections: c.connectionsOf(former),
	}
	res, err := s.seal(&claims, r.ClientAddress)
	if err != nil {
		return alloc.Reservation{}, seal.Claims{}, err
	}
	res.HostConnectionData = res.ConnectionData
	claims.Epoch = seal.EpochOf(&res.ConnectionData)
	return res, claims, nil
}

func (c *control) connectionsOf(host proto.AllocationID) uint16 {
	if v := c.migrations.running[host]; v != nil {
		return v.MaxConnections
	}
	e, _ := c.shared.table.ByID(host)
	return c.shared.table.Account(e.Handle).MaxConnections
}

// placeFor returns the host of the ticket, or the last one that took its place.
func (c *control) placeFor(t *claims, host proto.AllocationID, now int64) (proto.AllocationID, error) {
	none, s := proto.AllocationID{}, &c.migrations
	if s.window == 0 {
		return none, alloc.ErrNotFound
	}
	if err := c.checkForgotten(t, host, now); err != nil {
		return none, err
	}
	player, ok := c.shared.table.ByID(t.joiner)
	switch {
	case !ok && c.mayExist(t.joiner, now):
		return none, alloc.ErrUnavailable
	case !ok || player.Endpoint.IsZero():
		return none, alloc.ErrNotFound
	}
	last := s.lastHost(t.match, now)
	if s.lastHost(host, now) != last {
		return none, alloc.ErrNotFound // It is the host of another match.
	}
	v := s.migrationOf(t.match, now)
	if v != nil && !c.isPlayerOf(&player, v) {
		return none, alloc.ErrNotFound
	}
	if s.migrationOf(last, now) == nil {
		if err := c.checkSilence(last, v == nil, &player, now); err != nil {
			return none, err
		}
	}
	return last, c.checkCandidate(last, &player, now)
}

// checkForgotten is for a host that is not known any more, as after a crash of the relay or long
// after a migration, and whose join code leads to another one.
func (c *control) checkForgotten(t *claims, host proto.AllocationID, now int64) error {
	if _, ok := c.shared.table.ByID(t.match); ok || host == t.match || c.migrations.migrationOf(t.match, now) != nil {
		return nil
	}
	e, ok := c.shared.table.ByID(host)
	switch {
	case !ok && c.mayExist(host, now):
		return alloc.ErrUnavailable
	case ok && e.Role == table.RoleHost && c.shared.table.Tenant(e.Handle) == t.tenant:
		return alloc.HostPresentError{Host: host}
	}
	return nil
}

// The player is one of the host, or of a host whose place it took.
func (c *control) checkSilence(id proto.AllocationID, own bool, player *table.Entry, now int64) error {
	host, ok := c.shared.table.ByID(id)
	switch {
	case !ok && own && c.mayExist(id, now):
		return alloc.ErrUnavailable
	case !ok:
		return alloc.ErrNotFound
	}
	heard, _ := c.shared.table.LastSeen(host.Handle)
	silent, a := c.isSilent(&host, now), c.shared.table.Account(player.Handle)
	switch {
	case !own && !silent:
		return alloc.HostPresentError{Host: id}
	case !own || c.isPlayerOf(player, c.newMigration(&host)):
	case a.RemovedByHost && (silent || !isLeaving(a.UnlinkedAt, heard)), a.UnlinkedAt == 0:
		return alloc.ErrNotFound
	case !a.RemovedByHost:
		return alloc.HostPresentError{Host: id} // The host goes on without this player.
	}
	if silent {
		return nil
	}
	wait := int64(table.TickMillis)
	if after := c.silentAfter(host.Handle); after >= tick(now) {
		wait = int64(after-tick(now)+1) * table.TickMillis
	}
	reason := fmt.Sprintf("the host was heard %.1f s ago", float64(max(tick(now), heard)-heard)*table.TickMillis/1000)
	if !c.mayBeSilent(now) {
		reason = "many players are silent, and the fault may be the relay's"
	}
	return alloc.MigrationWaitError{Reason: reason, RetryAfter: time.Duration(wait) * time.Millisecond}
}

func (c *control) isSamePlayer(x *candidate, joiner *table.Entry) bool {
	player := alloc.PlayerHash(c.shared.table.Player(joiner.Handle))
	return x.Joiner == joiner.ID || x.Individual && joiner.Is(table.Individual) && x.Player == player
}

// A player that had its turn waits for as long as another one may take to bind.
func (c *control) checkCandidate(former proto.AllocationID, joiner *table.Entry, now int64) error {
	x, taken := c.migrations.candidates[former]
	if !taken || c.isSamePlayer(&x, joiner) {
		return nil
	}
	turn := table.Tick(turnTicks)
	if c.shared.table.Account(joiner.Handle).MigrationAt != 0 {
		turn = c.migrations.bindWithin
	}
	if tick(now) > x.Since+turn {
		return nil
	}
	return alloc.MigrationWaitError{Reason: "another player has the host's place and has not bound it yet", RetryAfter: retryAfter}
}

// The former host is what placeFor has returned for the player.
func (c *control) addCandidate(m *claims, name alloc.Tenant, x candidate, former proto.AllocationID, now int64) error {
	s := &c.migrations
	joiner, _ := c.shared.table.ByID(x.Joiner)
	a := c.shared.table.Account(joiner.Handle)
	x.Since = tick(now)
	if old, taken := s.candidates[former]; taken {
		if c.isSamePlayer(&old, &joiner) {
			x.Since = old.Since
		}
		if e, ok := c.shared.table.ByID(old.ID); ok {
			c.end(e.Handle, EndReplaced)
		}
	}
	if err := c.admit(name.Project); err != nil {
		return err
	}
	m.individual = joiner.Is(table.Individual)
	s.places[x.ID] = former // The state file has it.
	if err := c.addReservation(m, now); err != nil {
		delete(s.places, x.ID)
		return err
	}
	x.Player, x.Individual = c.shared.table.Player(joiner.Handle), m.individual
	s.candidates[former] = x
	if a.MigrationAt == 0 {
		a.MigrationAt = tick(now)
	}
	return nil
}

// refusesCandidate ends the reservation if the place is not free any more.
func (c *control) refusesCandidate(e *table.Entry, now int64) bool {
	former, ok := c.migrations.places[e.ID]
	if !ok || e.Is(table.EverBound) {
		return false
	}
	if c.migrations.candidates[former].ID == e.ID { // A process of an earlier version hands over more than one.
		if host, live := c.shared.table.ByID(former); live && c.isSilent(&host, now) || c.migrations.migrationOf(former, now) != nil {
			return false
		}
	}
	c.end(e.Handle, EndSuperseded)
	return true
}

func (c *control) takeOver(e *table.Entry) {
	s := &c.migrations
	former, ok := s.places[e.ID]
	if !ok {
		return
	}
	winner := s.candidates[former]
	s.removeCandidate(e.ID)
	v := s.running[former]
	if host, live := c.shared.table.ByID(former); live {
		why := EndMigrated
		if v != nil {
			why = EndClosed // It has said that it leaves.
		}
		c.end(host.Handle, why)
		v = s.running[former]
	}
	v.NewHost, v.Code = e.ID, winner.Code
	s.places[e.ID] = former
	code, _ := statefile.ParseCode(winner.Code)
	c.keepCode(e, code)
	if c.hooks.OnMigrate != nil {
		c.hooks.OnMigrate(MigrateEvent{
			Host: former, NewHost: e.ID, Joiner: winner.Joiner, Tenant: v.Tenant, Name: c.tenantName(v.Tenant), Code: winner.Code,
			Tag: c.tags[e.Handle],
		})
	}
}

// LeaveHost implements [alloc.MigrationRelay], see [HostMigration].Window. A host that was never
// bound has no players, and ends.
func (s *Server) LeaveHost(ctx context.Context, r alloc.LeaveRequest) error {
	if r.Proof != (alloc.ConnectionData{}) {
		var scratch seal.Scratch
		opened, ok := s.shared.sealer.Open(&scratch, r.Proof[:])
		if own := claimsOf(&opened); !ok || own.role != alloc.RoleHost || own.id != r.Host || own.tenant != r.Tenant.Hash() {
			return alloc.ErrNotFound
		}
	}
	return s.onControl(ctx, func(c *control) error { return c.leave(&r, c.shared.clock()) })
}

func (c *control) leave(r *alloc.LeaveRequest, now int64) error {
	if c.migrations.window == 0 {
		return alloc.ErrNotFound
	}
	isOwner := func(tenant uint64, player [16]byte) bool {
		return tenant == r.Tenant.Hash() && (r.Player == alloc.PlayerHash{} || r.Player == player)
	}
	if v := c.migrations.migrationOf(r.Host, now); v != nil {
		if !isOwner(v.Tenant, v.Player) {
			return alloc.ErrNotFound
		}
		return nil
	}
	host, ok := c.shared.table.ByID(r.Host)
	switch {
	case !ok && c.mayExist(r.Host, now):
		return alloc.ErrUnavailable
	case !ok || host.Role != table.RoleHost:
		return alloc.ErrNotFound
	}
	if !isOwner(c.shared.table.Tenant(host.Handle), c.shared.table.Player(host.Handle)) {
		return alloc.ErrNotFound
	}
	if !host.Is(table.EverBound) {
		c.end(host.Handle, EndClosed)
		return nil
	}
	c.migrations.running[host.ID] = c.newMigration(&host)
	return nil
}
