package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/proto"
)

// The rules of a migration, once more.

// What the simulation sets for HostMigration.Window and HostMigration.Silence, in
// milliseconds.
const (
	mHostMigrationWindow  = 15_000
	mHostMigrationSilence = 4000
)

// mMigration is the place of a host that has left.
type mMigration struct {
	tenant, player string
	max            int
	heard          int64 // tick
	links          int
	removals       int
	until          int64 // 0: the host is live, and has said that it leaves
	newHost        mID
}

type mCandidate struct {
	id, joiner mID
	player     string
	individual bool
	since      int64 // tick
}

type mMigrations struct {
	running    map[mID]*mMigration
	candidates map[mID]mCandidate // by the former host
	places     map[mID]mID        // the former host of each candidate and new host
	// began and playerEnded are the ticks in which hosts and players ended, by host. Of a host
	// and its player that end in one tick either may be first, and in more while a worker
	// holds both up.
	began, playerEnded map[mID]int64
	slack              int64 // ticks
	unsure             map[mID]bool
	begin              int64 // tick of the last restart
}

func newMMigrations() mMigrations {
	return mMigrations{
		running: map[mID]*mMigration{}, candidates: map[mID]mCandidate{}, places: map[mID]mID{},
		began: map[mID]int64{}, playerEnded: map[mID]int64{}, unsure: map[mID]bool{},
	}
}

type mMatch struct {
	unlinked   int64 // tick at which a link of a joiner, or the last one of a host, was closed; 0: none
	removed    bool  // the host sent a DISCONNECT of the joiner
	removals   int   // of a host: players that it removed within 2 s each
	removedAt  int64 // tick
	leftBehind bool  // the host ended first
	hadTurn    bool  // a player had a reservation for its host's place
}

func (m *model) migrationOf(host mID) *mMigration {
	if v := m.running[host]; v != nil && (v.until == 0 || m.now < v.until) {
		return v
	}
	return nil
}

// lastHost is the host that has the place of another one, or of the one that had it, and so on.
func (m *model) lastHost(host mID) mID {
	if v := m.migrationOf(host); v != nil && v.newHost != (mID{}) {
		return m.lastHost(v.newHost)
	}
	return host
}

func (m *model) notesEnd(host mID, own, other map[mID]int64) {
	own[host] = m.now / 250
	if at, ended := other[host]; ended && m.now/250-at <= m.slack {
		m.unsure[host] = true
	}
}

func (m *model) closes(a, peer *mAlloc, at int64) {
	a.unlinked, peer.unlinked = at/250, at/250
	m.removes(a, peer, at)
}

// removes notes a DISCONNECT of a host that has not left.
func (m *model) removes(a, joiner *mAlloc, at int64) {
	if a.role != "host" || joiner == nil || joiner.role != "joiner" || joiner.removed || m.running[a.id] != nil {
		return
	}
	joiner.removed = true
	if at/250 > a.removedAt+8 {
		a.removals = 0
	}
	a.removals++
	a.removedAt = at / 250
}

func (m *model) plays(a mPlayer, v *mMigration) bool {
	switch {
	case a.linked:
		return true
	case a.unlinked == 0 || v.heard > a.unlinked+8:
		return false
	case a.removed && v.links >= v.removals:
		m.cover("migration: the player was removed")
		return false
	case a.removed:
		m.cover("migration: the host disconnected all as it left")
	default:
		m.cover("migration: the player disconnected itself")
	}
	return true
}

func (m *model) isSilent(host *mAlloc) bool {
	return host.bound && m.now/250 > m.settle && m.isOver(host.received, mHostMigrationSilence)
}

func (m *model) newMigration(a *mAlloc) *mMigration {
	return &mMigration{
		tenant: a.tenant, player: a.player, max: a.max, heard: a.received / 250, links: len(a.links), removals: a.removals,
	}
}

// ends is what the end of an allocation means for migrations. Its links are still there.
func (m *model) ends(a *mAlloc) {
	if a.role == "joiner" {
		m.notesEnd(a.match, m.playerEnded, m.began)
		return
	}
	if former, ok := m.places[a.id]; ok {
		m.notesEnd(former, m.playerEnded, m.began)
	}
	m.removeCandidate(a.id)
	m.notesEnd(a.id, m.began, m.playerEnded)
	for id := range a.links {
		m.allocs[id].leftBehind = true
	}
	v := m.running[a.id]
	former := m.places[a.id]
	if f := m.migrationOf(former); f != nil && f.until != 0 && f.until-m.now <= m.slack*250 {
		m.unsure[a.id] = true // The engine may end it later, when the former host is forgotten.
	}
	if !a.bound || v == nil && len(a.links) == 0 && !m.isWanted(a.id) && (a.unlinked == 0 || a.received/250 > a.unlinked+8) &&
		m.migrationOf(former) == nil {
		delete(m.running, a.id)
		m.endCandidate(a.id)
		return
	}
	if v == nil {
		v = m.newMigration(a)
		m.running[a.id] = v
	}
	v.until = m.now + mHostMigrationWindow
}

func (m *model) removeCandidate(id mID) {
	if former, ok := m.places[id]; ok && m.candidates[former].id == id {
		delete(m.candidates, former)
		delete(m.places, id)
	}
}

// recoverMigrations is what a restart with the state file keeps of the run before.
func (m *model) recoverMigrations(old *model) {
	for host, v := range old.running {
		if v.newHost != (mID{}) {
			continue
		}
		links := v.links
		if r, ok := m.before[host]; ok { // It has said that it leaves.
			links = r.links
			delete(m.before, host)
		}
		m.cover("restart: the place of a host that had left")
		m.in[host], m.ended[host] = true, true
		m.running[host] = &mMigration{tenant: v.tenant, links: links, removals: 1, until: m.now + mHostMigrationWindow}
	}
	for id, r := range m.before {
		r.hadTurn = false
		m.before[id] = r
		if !r.candidate {
			continue
		}
		if _, awaited := m.before[r.former]; !awaited && m.running[r.former] == nil {
			m.cover("restart: a candidate stays out")
			m.ended[id] = true
			continue
		}
		m.cover("restart: a candidate has its turn again")
		m.candidates[r.former] = mCandidate{id: id, since: m.begin}
		m.places[id] = r.former
	}
}

// mPlayer is a player that asks for its host's place, also one that has not come back after a restart.
type mPlayer struct {
	*mAlloc
	linked, hadTurn bool
}

func (m *model) playerOf(c *mReservation) (p mPlayer, ok bool) {
	if a := m.allocs[c.id]; a != nil {
		return mPlayer{a, a.links[a.match] || a.leftBehind, a.hadTurn}, a.at != ""
	}
	r, ok := m.before[c.id]
	a := &mAlloc{mReservation: c}
	if a.removed = r.removed; r.left {
		a.unlinked = m.begin
	}
	return mPlayer{a, r.linked, r.hadTurn}, ok && r.bound
}

// isLate: what has not come back so long after a restart counts as silent.
func (m *model) isLate() bool {
	return m.now/250 > m.settle && m.isOver(m.begin*250, mHostMigrationSilence)
}

func (m *model) isWanted(host mID) bool { _, ok := m.candidates[host]; return ok }

func (m *model) endCandidate(former mID) {
	x, ok := m.candidates[former]
	if a := m.allocs[x.id]; a != nil {
		m.cover("migration: a candidate ends")
		m.end(a)
	} else if ok {
		m.cover("restart: a candidate ends that has not come back")
		m.removeCandidate(x.id)
		delete(m.before, x.id)
		if m.ended != nil {
			m.ended[x.id] = true
		}
	}
}

func (m *model) endMigrations() {
	for host, v := range m.running {
		if v.until != 0 && m.now >= v.until {
			delete(m.running, host)
			delete(m.places, v.newHost)
			m.endCandidate(host)
		}
	}
}

// migrate returns the verdict for a player with the ticket of its reservation: "none", "waits",
// "present", or "granted" with the host whose place it may take, and the reservation that ends.
func (m *model) migrate(c *mReservation, host mID) (verdict string, place, yields mID) {
	if h := m.allocs[host]; host != c.match && m.allocs[c.match] == nil && m.migrationOf(c.match) == nil && h != nil && h.role == "host" &&
		h.tenant == c.tenant {
		m.cover("migration: forgotten, and the code leads to another host")
		return "present", mID{}, mID{}
	}
	player, ok := m.playerOf(c)
	if !ok {
		m.cover("migration: of a player that is not bound")
		return "none", mID{}, mID{}
	}
	last := m.lastHost(c.match)
	if m.lastHost(host) != last {
		m.cover("migration: of another match")
		return "none", mID{}, mID{}
	}
	v := m.migrationOf(c.match)
	if v != nil && !m.plays(player, v) {
		m.cover("migration: of no player of the host")
		return "none", mID{}, mID{}
	}
	if m.migrationOf(last) == nil {
		h := m.allocs[last]
		r, awaited := m.before[last]
		switch {
		case h == nil && v == nil && awaited:
			switch {
			case !m.plays(player, &mMigration{links: r.links, removals: 1}):
				m.cover("restart: of no player of a host that has not come back")
				return "none", mID{}, mID{}
			case !m.isLate():
				m.cover("restart: the host may come back")
				return "waits", mID{}, mID{}
			}
			m.cover("restart: the host has not come back")
		case h == nil && v == nil && m.recovering() && !m.ended[last] && !m.settled && !m.isLate():
			return "waits", mID{}, mID{}
		case h == nil:
			m.cover("migration: no place is free")
			return "none", mID{}, mID{}
		case v == nil && !m.plays(player, m.newMigration(h)):
			switch goesOn := h.received/250 > player.unlinked+8; {
			case player.unlinked == 0 || player.removed && goesOn:
				m.cover("migration: the host goes on, and has removed the player")
				return "none", mID{}, mID{}
			case player.removed && m.isSilent(h):
				m.cover("migration: the host is silent, and has removed the player")
				return "none", mID{}, mID{}
			case player.removed:
				m.cover("migration: the host has removed the player, and may leave")
				return "waits", mID{}, mID{}
			}
			m.cover("migration: the host goes on without the player")
			return "present", mID{}, mID{}
		case m.isSilent(h):
			m.cover("migration: the host is silent")
		case v == nil:
			m.cover("migration: the host was heard")
			return "waits", mID{}, mID{}
		default:
			m.cover("migration: the new host is there")
			return "present", mID{}, mID{}
		}
	}
	if last != c.match {
		m.cover("migration: the new host has left too")
	}
	x := m.candidates[last]
	held := m.now/250 - x.since
	switch {
	case x.id == mID{}:
		m.cover("migration: granted")
		return "granted", last, mID{}
	case x.joiner == c.id || x.individual && player.individual && x.player == c.player:
		m.cover("migration: granted again to the same player")
		return "granted", last, x.id
	case held > 8 && !player.hadTurn:
		m.cover("migration: a candidate yields to a player that had no turn")
		return "granted", last, x.id
	case held > 40:
		m.cover("migration: a candidate yields to a player that had its turn")
		return "granted", last, x.id
	}
	m.cover("migration: another player has the place for a moment")
	return "waits", mID{}, mID{}
}

func (m *model) grant(place, yields mID, c, card *mReservation) bool {
	player, _ := m.playerOf(c)
	since := m.now / 250
	if x := m.candidates[place]; x.id != (mID{}) && (x.joiner == c.id || x.individual && player.individual && x.player == c.player) {
		since = x.since
	}
	if yields != (mID{}) {
		m.endCandidate(place)
	}
	if !m.add(card) {
		m.cover("migration: a player with too many hosts")
		return false
	}
	m.candidates[place] = mCandidate{card.id, c.id, c.player, player.individual, since}
	m.places[card.id] = place
	player.mAlloc.hadTurn = true
	if r, ok := m.before[c.id]; ok {
		r.hadTurn = true
		m.before[c.id] = r
	}
	return true
}

func (m *model) mayBind(a *mAlloc) bool {
	former, ok := m.places[a.id]
	if !ok || a.bound || m.migrationOf(former) != nil {
		return true
	}
	host := m.allocs[former]
	_, awaited := m.before[former]
	return host != nil && m.isSilent(host) || awaited
}

func (m *model) takeOver(a *mAlloc) {
	former, ok := m.places[a.id]
	if !ok {
		return
	}
	m.cover("migration: the first BIND takes the place")
	m.removeCandidate(a.id)
	if host := m.allocs[former]; host != nil {
		if m.running[former] == nil {
			m.cover("migration: ends a silent host")
			if host.at != "" && host.heard != 0 {
				m.send(host.at, mError(host.id, 1), true)
			}
			m.running[former] = m.newMigration(host)
		} else {
			m.cover("migration: ends a host that has said that it leaves")
		}
		m.end(host)
	}
	if r, awaited := m.before[former]; awaited {
		m.cover("restart: the place of a host that has not come back")
		delete(m.before, former)
		m.ended[former] = true
		m.running[former] = &mMigration{tenant: r.tenant, links: r.links, removals: 1, until: m.now + mHostMigrationWindow}
	}
	m.running[former].newHost = a.id
	m.places[a.id] = former
}

// leave: a host says that it leaves. It reports whether the caller owns it.
func (m *model) leave(host mID, tenant, player string) bool {
	if v := m.migrationOf(host); v != nil {
		return v.tenant == tenant && (v.player == player || v.player == "")
	}
	a := m.allocs[host]
	if a == nil || a.role != "host" || a.tenant != tenant || a.player != player {
		return false
	}
	if !a.bound {
		m.cover("migration: a host leaves that was never bound")
		m.end(a)
		return true
	}
	m.cover("migration: a host says that it leaves")
	m.running[a.id] = m.newMigration(a)
	return true
}

func (s *sim) migrate(c *mReservation, host mID) {
	if c.ticket == "" {
		return
	}
	s.settle() // Commands that wait would be decided before in one, and later in the other.
	s.learn()
	var scratch seal.Scratch
	opened, ok := s.shared.sealer.Open(&scratch, []byte(c.ticket))
	if !ok {
		return // of an earlier boot, whose key is gone
	}
	t := claimsOf(&opened)
	place, err := s.control.placeFor(&t, proto.AllocationID(host), s.now)
	got := "granted"
	var waits alloc.RefusedError
	switch {
	case errors.Is(err, alloc.ErrMigration) && errors.As(err, &waits):
		if got = "waits"; waits.RetryAfter <= 0 || waits.RetryAfter > 11*time.Second || waits.Reason == "" {
			s.fail("waits for %v: %q", waits.RetryAfter, waits.Reason)
		}
	case errors.Is(err, alloc.ErrHostPresent):
		got = "present"
	case err != nil:
		got = "none"
	}
	want, wantPlace, yields := s.model.migrate(c, host)
	if got != want || got == "granted" && mID(place) != wantPlace {
		s.fail("migration of %x: engine says %s %x (%v), model says %s %x", c.id, got, place, err, want, wantPlace)
	}
	if s.err != nil || got != "granted" || len(s.cards) >= 40 {
		return
	}
	id, _ := newID()
	for !s.takeGates(s.shared.budgets, id) {
		id, _ = newID()
	}
	most := s.control.connectionsOf(place)
	if v := s.model.running[mID(place)]; v != nil && int(most) != v.max && v.max != 0 {
		s.fail("the candidate gets %d connections, the host had %d", most, v.max)
	}
	most = cmp.Or(most, t.maxConnections, s.control.linksOf(place), 1)
	claims := seal.Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Tenant: t.tenant, Player: t.player, Individual: t.individual, Project: []byte(c.tenant),
		MaxConnections: most,
	}
	card := &mReservation{role: "host", id: mID(id), match: mID(id), tenant: c.tenant, player: c.player,
		individual: c.individual, max: int(most)}
	card.data = s.seal(claims)
	var key proto.Key
	s.shared.sealer.NewDeriver().Key(id, &key)
	card.key = key[:]
	sealed := claimsOf(&claims)
	name := alloc.Tenant{Project: c.tenant}
	x := candidate{ID: id, Joiner: t.joiner, Code: "6789BC"}
	err = s.control.addCandidate(&sealed, name, x, place, s.now)
	if ok := s.model.grant(wantPlace, yields, c, card); ok != (err == nil) {
		s.fail("the reservation of a candidate: engine says %v, model says %v", err, ok)
	} else if ok {
		s.cards = append(s.cards, card)
	}
}

// learn takes what the model does not know from the engine: when a host ended, which waits for
// a worker, and which of a host and its player that ended in one tick was first. It compares
// the rest.
func (s *sim) learn() {
	m, e := s.model, &s.control.migrations
	for host, v := range m.running {
		w := e.running[proto.AllocationID(host)]
		switch {
		case w == nil && m.unsure[host]:
			delete(m.running, host)
		case w == nil:
			s.fail("host %x: the engine has no place of it", host)
			return
		case m.unsure[host]:
			v.links, v.until, v.removals = int(w.Links), w.Until, int(w.Removals)
		case v.links != int(w.Links) || v.removals != int(w.Removals) || v.heard != int64(w.Heard) || v.newHost != mID(w.NewHost) ||
			(v.until == 0) != (w.Until == 0) || w.Until < v.until || w.Until > v.until+5000:
			s.fail("the place of host %x: engine has %+v, model %+v", host, w, v)
		default:
			v.until = w.Until
		}
	}
	for host, w := range e.running {
		if m.running[mID(host)] != nil {
			continue
		}
		if !m.unsure[mID(host)] {
			s.fail("host %x: the model has no place of it", host)
			return
		}
		for _, c := range s.cards {
			if c.id == mID(host) {
				m.running[mID(host)] = &mMigration{c.tenant, "", 0, int64(w.Heard), int(w.Links), int(w.Removals), w.Until, mID(w.NewHost)}
			}
		}
	}
	for former, x := range e.candidates {
		if want := m.candidates[mID(former)]; mID(x.ID) != want.id || int64(x.Since) != want.since {
			s.fail("the candidate for %x: engine has %+v, model %+v", former, x, want)
		}
	}
}

func (s *sim) sayLeave(host, owner *mReservation) {
	s.settle()
	s.learn()
	tenant := alloc.Tenant{Project: owner.tenant}
	r := alloc.LeaveRequest{
		Caller: alloc.Caller{Tenant: tenant}, PlayerHash: alloc.HashPlayer(tenant, owner.player), Host: proto.AllocationID(host.id),
	}
	err := s.control.leave(&r, s.now)
	if ok := s.model.leave(host.id, owner.tenant, owner.player); ok != (err == nil) {
		s.fail("leave of %x: engine says %v, model says %v", host.id, err, ok)
	}
}

// hostLeaves lets the host of a match leave, in one of the ways of games, and its players ask
// for its place while they stay, and bind what they get.
func (s *sim) hostLeaves(o op) {
	crashes := s.ident != nil && o.d%8 == 4
	if crashes && s.control.stateFile == nil {
		s.restart(true)
	}
	if n := len(s.cards); o.a%3 == 0 && n < 34 { // a match of more players than may hold a reservation
		s.reserve(alloc.RoleHost, nil, "p", "unbound", 4) // a player without limits
		if len(s.cards) == n {
			return
		}
		for _, player := range []string{"joiner1", "joiner2", "unbound", "unbound"} {
			s.reserve(alloc.RoleJoiner, s.cards[n], "p", player, 0)
		}
		o.a = 1
	}
	s.match(o)
	c := s.reservation(o.a)
	host := s.model.allocs[c.match]
	if host == nil || host.at == "" {
		return
	}
	players := func(do func(x *mReservation, a *mAlloc)) {
		for _, x := range slices.Clone(s.cards) {
			if a := s.model.allocs[x.id]; a != nil && a.at != "" && x.match == c.match && x.id != c.match {
				do(x, a)
			}
		}
	}
	stay := func(d time.Duration) {
		s.advance(d)
		players(func(x *mReservation, _ *mAlloc) { s.datagram(s.home(x, 1), pingMessage(x.id)) })
	}
	at := s.home(host.mReservation, 1)
	switch o.b % 8 {
	case 0, 1: // the host's DISCONNECTs, all or but one
		skip := int(o.b % 2)
		players(func(x *mReservation, _ *mAlloc) {
			if skip--; skip < 0 {
				s.datagram(at, message(9, host.id, x.id))
			}
		})
	case 2: // the players' own, and the host's find no link
		players(func(x *mReservation, _ *mAlloc) { s.datagram(s.home(x, 1), message(9, x.id, host.id)) })
		if o.c%4 == 0 {
			players(func(x *mReservation, _ *mAlloc) { s.datagram(at, message(9, host.id, x.id)) })
		}
	case 3:
		s.sayLeave(host.mReservation, host.mReservation)
		players(func(x *mReservation, _ *mAlloc) { s.datagram(s.home(x, 1), message(9, x.id, host.id)) })
	case 4:
		s.sayLeave(host.mReservation, host.mReservation)
		stay(time.Second)
		s.datagram(at, pingMessage(host.id))
		players(func(x *mReservation, _ *mAlloc) { s.datagram(at, message(9, host.id, x.id)) })
	case 6: // a kick
		one := true
		players(func(x *mReservation, a *mAlloc) {
			if one && a.links[host.id] {
				s.datagram(at, message(9, host.id, x.id))
				s.migrate(x, c.match)
				one = false
			}
		})
	}
	if o.c%3 == 0 {
		stay([...]time.Duration{0, 1750, 2250, 3000}[o.c/3%4] * time.Millisecond)
		s.datagram(at, pingMessage(host.id)) // It goes on, or not.
	}
	switch {
	case o.b%8 == 5, o.b%8 < 5 && o.c%2 == 0:
		s.datagram(at, message(11, host.id))
		s.settle()
	case o.c%5 != 0:
		for range 3 + o.c%3 {
			stay(time.Second)
		}
	}
	s.takePlaces(c, o, stay)
	if crashes {
		s.crashInMigration(o)
	}
}

// crashInMigration restarts the relay, after which candidates and new hosts bind again, and
// players of the former hosts ask for the places of those.
func (s *sim) crashInMigration(o op) {
	places := s.model.places
	s.restart(o.b%3 != 0)
	for i, x := range s.cards {
		if _, ok := places[x.id]; ok {
			s.datagram((i+int(o.a))%len(simAddrs), signed(x, 1+o.c%2, x.key))
		}
	}
	for _, late := range []bool{false, true} {
		for _, x := range slices.Clone(s.cards) { // They may have closed their transports.
			s.migrate(x, x.match)
		}
		if !late {
			s.advance(5 * time.Second)
		}
	}
	s.bindCandidates(o.c)
	for _, host := range slices.Clone(s.cards) {
		former, ok := places[host.id]
		for _, x := range slices.Clone(s.cards) {
			if ok && x.match == former {
				s.migrate(x, host.id)
			}
		}
	}
}

func (s *sim) takePlaces(c *mReservation, o op, stay func(time.Duration)) {
	for round := range 2 + o.d/2%4 {
		asking := slices.Clone(s.cards)
		if round%2 == 1 { // another player asks first, after the time of the first one
			slices.Reverse(asking)
			for range [...]int{0, 0, 3, 15}[o.d/8%4] {
				stay(time.Second)
				for _, x := range asking { // Each has its turn, and no one binds.
					if o.d/8%4 == 3 && x.match == c.match && x.ticket != "" {
						s.migrate(x, c.match)
					}
				}
			}
		}
		for _, x := range asking {
			if x.match == c.match && x.ticket != "" {
				s.migrate(x, s.codeOf(c.match, o.d+round))
			}
		}
		stay([...]time.Duration{250, 1000}[o.d/32%2] * time.Millisecond)
		if host := s.model.allocs[c.match]; host != nil && host.at != "" && (round+o.c)%4 == 0 {
			s.datagram(s.home(host.mReservation, 1), pingMessage(host.id)) // It is back.
			s.bindCandidates(o.c)
		}
		if (round+o.b/8)%5 == 0 {
			s.bindCandidates(o.c + round)
		}
		if v := s.model.running[c.match]; v != nil && s.model.allocs[v.newHost] != nil && o.d/64%2 == 0 {
			x := s.model.allocs[v.newHost]
			if o.d/128%2 == 0 && x.at != "" {
				s.datagram(s.home(x.mReservation, 1), message(11, x.id))
				s.settle()
				continue
			}
			for range 4 {
				stay(time.Second)
			}
		}
	}
}

// codeOf is to which host the code of a match leads: it may move late, or be another one.
func (s *sim) codeOf(match mID, n uint16) mID {
	switch n % 8 {
	case 0:
		return s.reservation(n).match
	case 1, 2, 3:
		return match
	}
	return s.model.lastHost(match)
}

func (s *sim) bindCandidates(n uint16) {
	all := slices.Clone(s.cards)
	if n%2 == 0 {
		slices.Reverse(all)
	}
	for _, x := range all {
		a := s.model.allocs[x.id]
		if _, ok := s.model.places[x.id]; !ok || a == nil || a.bound {
			continue
		}
		free := 0
		for s.model.byAddr[mAddr(simAddrs[free].String())] != nil {
			if free++; free == len(simAddrs) {
				return
			}
		}
		if !s.model.mayBind(a) {
			s.hits["migration: a candidate binds and the place is not free"]++
		}
		s.datagram(free, signed(x, 1, x.key))
	}
}
