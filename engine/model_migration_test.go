package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// The rules of a migration, once more.

// What the simulation sets for Config.HostMigrationWindow and Config.HostMigrationSilence, in
// milliseconds.
const (
	mHostMigrationWindow  = 8000
	mHostMigrationSilence = 4000
)

// mMigration is the time in which a player may take the place of a host that has ended.
type mMigration struct {
	tenant  string
	bound   bool         // the host was, ever
	left    bool         // the host disconnected all players as it left
	players map[mID]bool // that were linked to it
	max     int
	until   int64
	began   int64 // tick
	unsure  bool  // a player ended in the same tick, before or after the host
	winner  mID
	granted int64 // until then, to winner
}

// noteCode: a host that no client has bound has a join code.
func (m *model) noteCode(a *mAlloc) {
	if !a.bound {
		m.coded[a.id] = true
	}
}

// leave begins the migration of a host that ends.
func (m *model) leave(a *mAlloc) {
	if a.role != "host" {
		return
	}
	left := m.hasLeft(a)
	if len(a.links) == 0 && !left && !(m.coded[a.id] && !a.bound) {
		return
	}
	s := &mMigration{left: left, began: m.now / 250, unsure: a.endedAt == m.now/250, tenant: a.tenant, bound: a.bound, players: map[mID]bool{}, max: a.max, until: m.now + mHostMigrationWindow}
	for id := range a.links {
		s.players[id] = true
	}
	if left {
		m.cover("migration: the host disconnected all as it left")
		s.players = m.departures[a.id].players
	}
	m.migrations[a.id] = s
}

// leaveHost notes the end of a player, which may be in the tick of its host's.
func (m *model) leaveHost(a *mAlloc) {
	if a.role != "joiner" {
		return
	}
	if s := m.migrations[a.match]; s != nil && s.began == m.now/250 {
		s.unsure = true
	} else if host := m.allocs[a.match]; host != nil {
		host.endedAt = m.now / 250
	}
}

// mDeparture is a series of DISCONNECTs of a host within two seconds each.
type mDeparture struct {
	last    int64 // tick
	players map[mID]bool
}

// disconnects: a host disconnects a player.
func (m *model) disconnects(host, player *mAlloc, at int64) {
	f := m.departures[host.id]
	if host.role != "host" {
		return
	}
	if f == nil || at/250 > f.last+8 {
		f = &mDeparture{players: map[mID]bool{}}
		m.departures[host.id] = f
	}
	f.last = at / 250
	f.players[player.id] = true
}

// hasLeft: a host disconnected its last player, and has said nothing since.
func (m *model) hasLeft(host *mAlloc) bool {
	f := m.departures[host.id]
	return f != nil && len(host.links) == 0 && host.received/250 <= f.last+8
}

// migrationOf returns the running migration of a host, or nil.
func (m *model) migrationOf(host mID) *mMigration {
	if s := m.migrations[host]; s != nil && m.now < s.until {
		return s
	}
	return nil
}

// isUnsure reports whether the migration of a host may be over in the model only: the
// engine ends a host after a grace period, which a worker may hold up.
func (m *model) isUnsure(host mID) bool {
	s := m.migrations[host]
	return s != nil && (s.unsure || m.now >= s.until && m.now < s.until+5000)
}

// mayAnswer reports whether a join to a host may be answered so. Of a host and its last
// player that end in one tick either may be first, so that there is a migration or not.
func (m *model) mayAnswer(host *mReservation, tenant string, migration bool) bool {
	s := m.migrationOf(host.id)
	if m.isUnsure(host.id) {
		return true
	}
	if m.allocs[host.id] != nil || host.tenant != tenant {
		return !migration
	}
	waits := s != nil && !s.bound
	for id := range m.allocs {
		waits = waits || s != nil && s.players[id]
	}
	return migration || !waits
}

// succeed returns the verdict for a player with the ticket of its reservation: "granted",
// "present", "none", or "waits" with the player that has the permission.
func (m *model) migrate(c *mReservation) (verdict string, winner mID) {
	player := m.allocs[c.id]
	if player == nil || !player.bound {
		m.cover("migration: of a player that is not there")
		return "none", mID{}
	}
	if host := m.allocs[c.match]; host != nil {
		since := host.received
		if !host.bound {
			since = host.reserved
		}
		mine := host.links[c.id] || m.hasLeft(host) && m.departures[host.id].players[c.id]
		if host.bound && !mine || m.now/250 <= m.settle || !m.isOver(since, mHostMigrationSilence) {
			m.cover("migration: the host is there")
			return "present", mID{}
		}
		m.cover("migration: ends a silent host")
		if host.at != "" && host.heard != 0 {
			m.send(host.at, mError(host.id, 1), true)
		}
		m.end(host)
	}
	s := m.migrationOf(c.match)
	switch {
	case s == nil || s.bound && !s.players[c.id]:
		m.cover("migration: no host has left this player")
		return "none", mID{}
	case s.winner != c.id && s.winner != mID{} && m.now < s.granted:
		m.cover("migration: another player was first")
		return "waits", s.winner
	}
	switch {
	case s.winner == mID{}:
		m.cover("migration: granted")
	case s.winner == c.id:
		m.cover("migration: granted again to the same player")
	default:
		m.cover("migration: granted to the next player")
	}
	if s.winner != c.id || m.now >= s.granted {
		s.winner, s.granted = c.id, m.now+3000
	}
	return "granted", s.winner
}

// succeed compares the verdict of the engine with the model's.
func (s *sim) migrate(c *mReservation) {
	if c.ticket == "" {
		if a := s.model.allocs[c.id]; a != nil {
			e, _ := s.shared.table.ByID(proto.AllocationID(c.id))
			s.control.migrations.noteCode(&e)
			s.model.noteCode(a)
		}
		return
	}
	s.settle() // Commands that wait would be decided before in one, and later in the other.
	if s.model.isUnsure(c.match) {
		return
	}
	var scratch alloc.Scratch
	opened, ok := s.shared.sealer.Open(&scratch, []byte(c.ticket))
	if !ok {
		return // of an earlier boot, whose key is gone
	}
	t := claimsOf(&opened)
	granted, err := s.control.migrate(&t, t.match, s.now)
	got, winner := "granted", mID{}
	var waits alloc.MigrationError
	switch {
	case errors.As(err, &waits):
		got, winner = "waits", mID(waits.Candidate)
	case errors.Is(err, alloc.ErrHostPresent):
		got = "present"
	case err != nil:
		got = "none"
	default:
		winner = mID(t.joiner)
	}
	want, candidate := s.model.migrate(c)
	if got != want || winner != candidate {
		s.fail("migration of %x: engine says %s %x (%v), model says %s %x", c.id, got, winner, err, want, candidate)
	}
	if left := s.model.migrations[c.match]; s.err == nil && got == "granted" && granted.MaxConnections != left.max {
		s.fail("the candidate gets %d connections, the host had %d", granted.MaxConnections, left.max)
	}
}

// hostLeaves lets the host of a match leave, with a CLOSE or silently, and its players ask
// for its place while they stay.
func (s *sim) hostLeaves(o op) {
	s.match(o)
	c := s.reservation(o.a)
	host := s.model.allocs[c.match]
	if host == nil || host.at == "" {
		return
	}
	stay := func() {
		s.advance(time.Second)
		for _, x := range s.cards {
			if a := s.model.allocs[x.id]; a != nil && a.at != "" && x.match == c.match && x.id != c.match {
				s.datagram(s.home(x, 1), pingMessage(x.id))
			}
		}
	}
	if o.b%2 == 0 {
		s.datagram(s.home(host.mReservation, 1), message(11, host.id))
		s.settle()
	} else {
		for range 3 + o.c%3 {
			stay()
		}
	}
	for round := range 2 + o.d/2%4 {
		asking := slices.Clone(s.cards)
		if round%2 == 1 { // another player asks first, after the time of the first one
			slices.Reverse(asking)
			for range 3 {
				stay()
			}
		}
		for _, x := range asking {
			if x.match == c.match && x.ticket != "" {
				s.migrate(x)
			}
		}
		stay()
	}
}
