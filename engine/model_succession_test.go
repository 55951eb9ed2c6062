package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// The rules of a succession, once more.

// What the simulation sets for Config.SuccessionWindow and Config.SuccessionSilence, in
// milliseconds.
const (
	mSuccessionWindow  = 8000
	mSuccessionSilence = 4000
)

// mSuccession is the time in which a player may take the place of a host that has ended.
type mSuccession struct {
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

// leave begins the succession of a host that ends.
func (m *model) leave(a *mAlloc) {
	if a.role != "host" {
		return
	}
	left := m.hasLeft(a)
	if len(a.links) == 0 && !left && !(m.coded[a.id] && !a.bound) {
		return
	}
	s := &mSuccession{left: left, began: m.now / 250, unsure: a.endedAt == m.now/250, tenant: a.tenant, bound: a.bound, players: map[mID]bool{}, max: a.max, until: m.now + mSuccessionWindow}
	for id := range a.links {
		s.players[id] = true
	}
	if left {
		m.cover("succession: the host disconnected all as it left")
		s.players = m.farewells[a.id].players
	}
	m.successions[a.id] = s
}

// leaveHost notes the end of a player, which may be in the tick of its host's.
func (m *model) leaveHost(a *mAlloc) {
	if a.role != "joiner" {
		return
	}
	if s := m.successions[a.match]; s != nil && s.began == m.now/250 {
		s.unsure = true
	} else if host := m.allocs[a.match]; host != nil {
		host.endedAt = m.now / 250
	}
}

// mFarewell is a series of DISCONNECTs of a host within two seconds each.
type mFarewell struct {
	last    int64 // tick
	players map[mID]bool
}

// disconnects: a host disconnects a player.
func (m *model) disconnects(host, player *mAlloc, at int64) {
	f := m.farewells[host.id]
	if host.role != "host" {
		return
	}
	if f == nil || at/250 > f.last+8 {
		f = &mFarewell{players: map[mID]bool{}}
		m.farewells[host.id] = f
	}
	f.last = at / 250
	f.players[player.id] = true
}

// hasLeft: a host disconnected its last player, and has said nothing since.
func (m *model) hasLeft(host *mAlloc) bool {
	f := m.farewells[host.id]
	return f != nil && len(host.links) == 0 && host.received/250 <= f.last+8
}

// successionOf returns the running succession of a host, or nil.
func (m *model) successionOf(host mID) *mSuccession {
	if s := m.successions[host]; s != nil && m.now < s.until {
		return s
	}
	return nil
}

// isUnsure reports whether the succession of a host may be over in the model only: the
// engine ends a host after a grace period, which a worker may hold up.
func (m *model) isUnsure(host mID) bool {
	s := m.successions[host]
	return s != nil && (s.unsure || m.now >= s.until && m.now < s.until+5000)
}

// mayAnswer reports whether a join to a host may be answered so. Of a host and its last
// player that end in one tick either may be first, so that there is a succession or not.
func (m *model) mayAnswer(host *mReservation, tenant string, succession bool) bool {
	s := m.successionOf(host.id)
	if m.isUnsure(host.id) {
		return true
	}
	if m.allocs[host.id] != nil || host.tenant != tenant {
		return !succession
	}
	waits := s != nil && !s.bound
	for id := range m.allocs {
		waits = waits || s != nil && s.players[id]
	}
	return succession || !waits
}

// succeed returns the verdict for a player with the ticket of its reservation: "granted",
// "present", "none", or "waits" with the player that has the permission.
func (m *model) succeed(c *mReservation) (verdict string, winner mID) {
	player := m.allocs[c.id]
	if player == nil || !player.bound {
		m.cover("succession: of a player that is not there")
		return "none", mID{}
	}
	if host := m.allocs[c.match]; host != nil {
		since := host.received
		if !host.bound {
			since = host.reserved
		}
		mine := host.links[c.id] || m.hasLeft(host) && m.farewells[host.id].players[c.id]
		if host.bound && !mine || m.now/250 <= m.settle || !m.isOver(since, mSuccessionSilence) {
			m.cover("succession: the host is there")
			return "present", mID{}
		}
		m.cover("succession: ends a silent host")
		if host.at != "" && host.heard != 0 {
			m.send(host.at, mError(host.id, 1), true)
		}
		m.end(host)
	}
	s := m.successionOf(c.match)
	switch {
	case s == nil || s.bound && !s.players[c.id]:
		m.cover("succession: no host has left this player")
		return "none", mID{}
	case s.winner != c.id && s.winner != mID{} && m.now < s.granted:
		m.cover("succession: another player was first")
		return "waits", s.winner
	}
	switch {
	case s.winner == mID{}:
		m.cover("succession: granted")
	case s.winner == c.id:
		m.cover("succession: granted again to the same player")
	default:
		m.cover("succession: granted to the next player")
	}
	if s.winner != c.id || m.now >= s.granted {
		s.winner, s.granted = c.id, m.now+3000
	}
	return "granted", s.winner
}

// succeed compares the verdict of the engine with the model's.
func (s *sim) succeed(c *mReservation) {
	if c.ticket == "" {
		if a := s.model.allocs[c.id]; a != nil {
			e, _ := s.shared.table.ByID(proto.AllocationID(c.id))
			s.control.successions.noteCode(&e)
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
	granted, err := s.control.succeed(&t, t.match, s.now)
	got, winner := "granted", mID{}
	var waits alloc.SuccessionError
	switch {
	case errors.As(err, &waits):
		got, winner = "waits", mID(waits.Successor)
	case errors.Is(err, alloc.ErrHostPresent):
		got = "present"
	case err != nil:
		got = "none"
	default:
		winner = mID(t.joiner)
	}
	want, successor := s.model.succeed(c)
	if got != want || winner != successor {
		s.fail("succession of %x: engine says %s %x (%v), model says %s %x", c.id, got, winner, err, want, successor)
	}
	if left := s.model.successions[c.match]; s.err == nil && got == "granted" && granted.MaxConnections != left.max {
		s.fail("the successor gets %d connections, the host had %d", granted.MaxConnections, left.max)
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
				s.succeed(x)
			}
		}
		stay()
	}
}
