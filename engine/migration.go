package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// The rules of host migration are in rules.go.

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
	Code           string             // that leads to the host, and then to the new host
	Place          statefile.Place    // of its record, while it has ended and no player has the place
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
	c.stateFile.SetLinks(c.recordPlace(joiner.Handle), 0, c.flags(joiner))
}

func isLeaving(unlinked, heard table.Tick) bool {
	return unlinked != 0 && heard <= unlinked+departureTicks
}

// migrant is a joiner that asks for the place of its host.
type migrant struct {
	id         proto.AllocationID
	player     alloc.PlayerHash
	individual bool
	isLinked   bool // also to a host that has ended
	unlinkedAt table.Tick
	isRemoved  bool
	hadTurn    bool
}

// migrantOf also knows joiners of the previous run that have not come back: after a crash of the
// relay a player may have closed its transport. Their records do not say which player they are.
func (c *control) migrantOf(id proto.AllocationID, player alloc.PlayerHash, individual bool) (m migrant, ok bool) {
	if e, ok := c.shared.table.ByID(id); ok {
		a := c.shared.table.Account(e.Handle)
		return migrant{
			id: id, player: c.shared.table.Player(e.Handle), individual: e.Is(table.Individual), isLinked: e.Link != 0,
			unlinkedAt: a.UnlinkedAt, isRemoved: a.RemovedByHost, hadTurn: a.MigrationAt != 0,
		}, !e.Endpoint.IsZero()
	}
	i, ok := c.recovery.awaitedRecord(id)
	if !ok {
		return migrant{}, false
	}
	f := c.recovery.records[i].Flags
	m = migrant{id: id, player: player, individual: individual, isLinked: f&statefile.Linked != 0, isRemoved: f&statefile.Removed != 0,
		hadTurn: f&statefile.Candidate != 0}
	if f&statefile.Left != 0 {
		m.unlinkedAt = c.recovery.begin
	}
	return m, f&statefile.Bound != 0
}

// isPlayerOf: a host that leaves disconnects most of its players, or none; one that removes a
// player keeps the others.
func (m *migrant) isPlayerOf(host *migration) bool {
	return m.isLinked || isLeaving(m.unlinkedAt, host.Heard) && (!m.isRemoved || host.Links < host.Removals)
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
		c.endCandidate(host.ID, EndSuperseded)
		return false
	}
	if v == nil {
		v = c.newMigration(host)
		s.running[host.ID] = v
	}
	c.limitMigration(v, now)
	return true
}

func (c *control) limitMigration(v *migration, now int64) {
	s := &c.migrations
	if len(s.queue) == maxMigrations {
		c.endMigration()
	}
	v.Until = now + s.window
	s.queue = append(s.queue, v.Host)
}

// recordMigration makes the record of a host that of its place, which survives a crash.
func (c *control) recordMigration(v *migration, place statefile.Place) {
	v.Place = place
	c.stateFile.SetLinks(place, v.Links, statefile.Host|statefile.Left)
}

func (c *control) addMigrationRecords() {
	for _, v := range c.migrations.running {
		if v.Place != 0 || v.Until == 0 || !v.NewHost.IsZero() {
			continue
		}
		code, _ := statefile.ParseCode(v.Code)
		v.Place = c.stateFile.Add(&statefile.Record{
			ID: v.Host, Tenant: v.Tenant, Code: code, Links: v.Links, Flags: statefile.Host | statefile.Left,
		})
	}
}

// recoverMigrations: hosts that had left do not come back, and their places may be taken; candidates
// have their turns again.
func (c *control) recoverMigrations(now int64) {
	r, s := &c.recovery, &c.migrations
	r.begin = tick(now)
	hosts := make(map[uint64]int)
	for i := range r.records {
		x := &r.records[i]
		if x.Flags&statefile.Host == 0 || x.Flags&statefile.Candidate != 0 {
			continue
		}
		hosts[shortID(x.ID)] = i
		if x.Flags&statefile.Left != 0 && s.window != 0 {
			c.migrateAwaited(i, now)
		}
	}
	for i := range r.records {
		x := &r.records[i]
		if x.Flags&statefile.Candidate == 0 || x.Flags&statefile.Host == 0 {
			continue
		}
		host, ok := hosts[x.Endpoint]
		if !ok || s.window == 0 {
			c.blockRecovery(x.ID) // It would be a host without players.
			continue
		}
		former := &r.records[host]
		s.candidates[former.ID] = candidate{ID: x.ID, Code: former.Code.String(), Since: r.begin}
		s.places[x.ID] = former.ID
	}
}

// migrateAwaited begins the migration of a host that does not come back.
func (c *control) migrateAwaited(i int, now int64) *migration {
	lost := &c.recovery.records[i]
	v := c.awaitedMigration(i)
	v.Place = c.awaitedPlace(i)
	c.recovery.returned[i] = true
	c.recovery.missing--
	c.seats.recoverable -= recoverableSeats(&lost.Record)
	c.blockRecovery(lost.ID)
	c.migrations.running[lost.ID] = v
	c.limitMigration(v, now)
	return v
}

// The record does not say how many players the host had removed, nor its connections, which its
// players' tickets have.
func (c *control) awaitedMigration(i int) *migration {
	r := &c.recovery.records[i]
	return &migration{Host: r.ID, Tenant: r.Tenant, Links: r.Links, Removals: 1, Code: r.Code.String()}
}

// shortID has 62 random bits.
func shortID(id proto.AllocationID) uint64 { return binary.LittleEndian.Uint64(id[8:]) }

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
		Heard: heard, Links: a.Links, Removals: a.Removals, Code: c.codes[host.Handle].String(),
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
	c.stateFile.Remove(s.running[host].Place)
	delete(s.running, host)
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	c.endCandidate(host, EndSuperseded)
	if c.hooks.OnMigrationEnd != nil {
		c.hooks.OnMigrationEnd(host)
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

func (c *control) endCandidate(host proto.AllocationID, why EndReason) {
	x, ok := c.migrations.candidates[host]
	if !ok {
		return
	}
	if e, ok := c.shared.table.ByID(x.ID); ok {
		c.end(e.Handle, why)
		return
	}
	c.migrations.removeCandidate(x.ID)
	_ = c.abandonRecovery(x.ID, why, c.shared.clock())
}

func (v *migration) joinError() error {
	if v.NewHost.IsZero() {
		return waitError("the host has left, and no player has taken its place yet", retryAfter)
	}
	return waitError("another player has taken the host's place, and the join code moves there", retryAfter)
}

func (c *control) checkHost(host proto.AllocationID, tenant uint64, now int64) error {
	v := c.migrations.migrationOf(host, now)
	e, ok := c.shared.table.ByID(host)
	switch {
	case v != nil && v.Tenant == tenant:
		return v.joinError()
	case ok && e.Role == table.RoleHost && c.shared.table.Tenant(e.Handle) == tenant:
		// One that never had a player may be silent for longer.
		if c.migrations.window != 0 && e.Is(table.EverLinked) && c.isSilent(&e, now) {
			return waitError("the host is silent, and no player has taken its place yet", retryAfter)
		}
		return nil
	case !ok && v == nil && c.mayExist(host, now):
		return alloc.ErrUnavailable
	}
	return alloc.ErrNotFound
}

// MigrateHost implements [alloc.Relay], see [HostMigration].Window. Further error:
// alloc.ErrCodeMalformed.
func (s *Server) MigrateHost(ctx context.Context, r alloc.MigrationRequest) (alloc.Reservation, error) {
	if _, err := statefile.ParseCode(r.Code); err != nil || r.Code == "" {
		return alloc.Reservation{}, alloc.ErrCodeMalformed
	}
	var scratch seal.Scratch
	opened, ok := s.shared.sealer.Open(&scratch, r.Ticket[:])
	t := claimsOf(&opened)
	anyPlayer := r.PlayerHash == alloc.PlayerHash{}
	if !ok || t.role != seal.RoleTicket || t.tenant != r.Tenant.Hash() || !anyPlayer && t.player != r.PlayerHash {
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
	claims := seal.Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Tenant: t.tenant, Player: t.player, Individual: t.individual,
		PlayerName: ticket.PlayerName, PlayerNameCut: ticket.PlayerNameCut, Tag: ticket.Tag,
		Project: []byte(r.Tenant.Project), Environment: []byte(r.Tenant.Environment),
		MaxConnections: cmp.Or(c.connectionsOf(former), ticket.MaxConnections, c.linksOf(former), 1),
	}
	res, err := s.seal(&claims, r.Address)
	if err != nil {
		return alloc.Reservation{}, seal.Claims{}, err
	}
	res.HostConnectionData = res.ConnectionData
	claims.Epoch = seal.EpochOf(&res.ConnectionData)
	return res, claims, nil
}

// connectionsOf returns 0 for a host of the previous run.
func (c *control) connectionsOf(host proto.AllocationID) uint16 {
	if v := c.migrations.running[host]; v != nil {
		return v.MaxConnections
	}
	if e, ok := c.shared.table.ByID(host); ok {
		return c.shared.table.Account(e.Handle).MaxConnections
	}
	return 0
}

// linksOf is for a host of the previous run whose players have tickets of an earlier version.
func (c *control) linksOf(host proto.AllocationID) uint16 {
	if v := c.migrations.running[host]; v != nil {
		return v.Links
	}
	if i, ok := c.recovery.awaitedRecord(host); ok {
		return c.recovery.records[i].Links
	}
	return 0
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
	player, ok := c.migrantOf(t.joiner, t.player, t.individual)
	switch _, live := c.shared.table.ByID(t.joiner); {
	case !ok && !live && c.mayReturn(t.joiner, now):
		return none, alloc.ErrUnavailable
	case !ok:
		return none, alloc.ErrNotFound
	}
	last := s.lastHost(t.match, now)
	if s.lastHost(host, now) != last {
		return none, alloc.ErrNotFound // It is the host of another match.
	}
	v := s.migrationOf(t.match, now)
	if v != nil && !player.isPlayerOf(v) {
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
	case !ok && c.mayReturn(host, now):
		return alloc.ErrUnavailable
	case ok && e.Role == table.RoleHost && c.shared.table.Tenant(e.Handle) == t.tenant:
		return alloc.RefusedError{Err: alloc.ErrHostPresent, Host: host}
	}
	return nil
}

// mayReturn: what is not there so long after a restart counts as silent.
func (c *control) mayReturn(id proto.AllocationID, now int64) bool {
	return c.mayExist(id, now) && !(c.mayBeSilent(now) && tick(now) > c.pause.extend(c.recovery.begin, c.migrations.silence))
}

func (c *control) checkAwaited(id proto.AllocationID, player *migrant, now int64) error {
	i, ok := c.recovery.awaitedRecord(id)
	switch {
	case !c.mayExist(id, now), ok && !player.isPlayerOf(c.awaitedMigration(i)):
		return alloc.ErrNotFound
	case c.mayReturn(id, now):
		return waitError("the relay has restarted, and the host may come back", retryAfter)
	case !ok:
		return alloc.ErrNotFound
	}
	return nil
}

// The player is one of the host, or of a host whose place it took.
func (c *control) checkSilence(id proto.AllocationID, own bool, player *migrant, now int64) error {
	host, ok := c.shared.table.ByID(id)
	switch {
	case !ok && own:
		return c.checkAwaited(id, player, now)
	case !ok:
		return alloc.ErrNotFound
	}
	heard, _ := c.shared.table.LastSeen(host.Handle)
	silent := c.isSilent(&host, now)
	switch {
	case !own && !silent:
		return alloc.RefusedError{Err: alloc.ErrHostPresent, Host: id}
	case !own || player.isPlayerOf(c.newMigration(&host)):
	case player.isRemoved && (silent || !isLeaving(player.unlinkedAt, heard)), player.unlinkedAt == 0:
		return alloc.ErrNotFound
	case !player.isRemoved:
		return alloc.RefusedError{Err: alloc.ErrHostPresent, Host: id} // The host goes on without this player.
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
	return waitError(reason, time.Duration(wait)*time.Millisecond)
}

func (m *migrant) holds(x *candidate) bool {
	return x.Joiner == m.id || x.Individual && m.individual && x.Player == m.player
}

// A player that had its turn waits for as long as another one may take to bind.
func (c *control) checkCandidate(former proto.AllocationID, player *migrant, now int64) error {
	x, taken := c.migrations.candidates[former]
	if !taken || player.holds(&x) {
		return nil
	}
	turn := table.Tick(turnTicks)
	if player.hadTurn {
		turn = c.migrations.bindWithin
	}
	if tick(now) > x.Since+turn {
		return nil
	}
	return waitError("another player has the host's place and has not bound it yet", retryAfter)
}

// The former host is what placeFor has returned for the player.
func (c *control) addCandidate(m *claims, name alloc.Tenant, x candidate, former proto.AllocationID, now int64) error {
	s := &c.migrations
	player, _ := c.migrantOf(x.Joiner, m.player, m.individual)
	x.Since = tick(now)
	if old, taken := s.candidates[former]; taken && player.holds(&old) {
		x.Since = old.Since
	}
	c.endCandidate(former, EndReplaced)
	if err := c.admit(name.Project); err != nil {
		return err
	}
	m.individual = player.individual
	s.places[x.ID] = former // The state file has it.
	if err := c.addReservation(m, now); err != nil {
		delete(s.places, x.ID)
		return err
	}
	x.Player, x.Individual = player.player, m.individual
	s.candidates[former] = x
	if e, ok := c.shared.table.ByID(x.Joiner); ok {
		c.shared.table.Account(e.Handle).MigrationAt = tick(now)
	} else if i, ok := c.recovery.awaitedRecord(x.Joiner); ok {
		c.recovery.records[i].Flags |= statefile.Candidate // It had its turn.
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
		host, live := c.shared.table.ByID(former)
		_, awaited := c.recovery.awaitedRecord(former)
		if live && c.isSilent(&host, now) || awaited || c.migrations.migrationOf(former, now) != nil {
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
	if i, awaited := c.recovery.awaitedRecord(former); awaited && v == nil {
		v = c.migrateAwaited(i, c.shared.clock())
		if c.hooks.OnEnd != nil {
			c.hooks.OnEnd(EndEvent{ID: former, Role: alloc.RoleHost, Tenant: c.tenantName(v.Tenant), Reason: EndMigrated, Migration: true})
		}
	}
	c.stateFile.Remove(v.Place)
	v.Place = 0
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

// LeaveHost implements [alloc.Relay], see [HostMigration].Window. A host that was never
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
		// After a crash the owner of a host that had left is not known.
		return tenant == r.Tenant.Hash() && (r.PlayerHash == alloc.PlayerHash{} || r.PlayerHash == player || player == [16]byte{})
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
	c.recordHost(&host)
	return nil
}

func waitError(reason string, retryAfter time.Duration) error {
	return alloc.RefusedError{Err: alloc.ErrMigration, Reason: reason, RetryAfter: retryAfter}
}
