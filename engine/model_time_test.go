package engine

import (
	"slices"
)

// What time does, once more.

// isOver reports whether a limit that began at since has passed: at the first tick
// that is later by more than the limit, and by the time that the relay stood
// still meanwhile.
func (m *model) isOver(since, limit int64) bool {
	last := since/250 + limit/250
	for _, s := range m.stalls {
		if since/250 < s[1] && last >= s[0] {
			last += s[1] - s[0]
		}
	}
	return m.now/250 > last
}

// noteStall is what a relay makes of a time in which it stood still.
func (m *model) noteStall(from, to int64) {
	m.stalls = append(m.stalls, [2]int64{from / 250, to / 250})
	m.settle = to/250 + 4
}

// tick does what is overdue; it is called at every multiple of 250 ms. Of one
// allocation it is a CLOSE first, then the end of its life, then its link.
func (m *model) tick() {
	m.endWindow()
	defer m.endMigrations()
	if m.now/250 <= m.settle {
		return
	}
	now := m.now / 250
	for _, a := range m.allocs {
		if a.closing != 0 && now > a.closing {
			if a.received/250 <= a.closing-4 {
				m.cover("close: takes effect after a second")
				m.end(a)
			} else {
				m.cover("close: cancelled by traffic")
				a.closing = 0
			}
		}
	}
	m.expire()
	for _, a := range m.allocs {
		if a.role == "joiner" {
			m.tickLink(a, now)
		}
	}
}

func (m *model) tickLink(a *mAlloc, now int64) {
	host := m.allocs[a.match]
	if host == nil || !a.links[a.match] {
		a.leaving = 0
		return
	}
	if a.leaving != 0 && now > a.leaving {
		by, left, stays := a.fromJoiner, a, host
		if a.leftByHost {
			by, left, stays = a.fromHost, host, a
		}
		if by <= a.leaving-4 {
			m.cover("disconnect: takes effect after a second")
			m.closeLink(left, stays, m.now)
			return
		}
		m.cover("disconnect: cancelled by traffic")
		a.leaving = 0
	}
}

func (m *model) expire() {
	over := m.isOver
	for _, a := range m.allocs {
		if a.deferred != 0 && m.now/250 <= a.deferred/250 {
			if a.bound && (over(a.active, 10_000) && a.everLinked) {
				m.cover("expiry: deferred after a bad nonce")
			}
			continue
		}
		if len(m.stalls) > 0 && a.bound && m.now/250-a.active/250 > 40 && !over(a.active, 10_000) {
			m.cover("expiry: deferred since the relay was stalled")
		}
		idle := int64(10_000)
		if a.role == "host" && !a.everLinked {
			idle = 60_000
		}
		switch {
		case !a.bound:
			if !over(a.reserved, 10_000) {
				continue
			}
			m.cover("expiry: never bound")
		case over(a.active, idle):
			m.cover(map[int64]string{10_000: "expiry: idle", 60_000: "expiry: host alone"}[idle])
		case over(a.received, max(30_000, idle)):
			m.cover("expiry: nothing received")
		default:
			continue
		}
		if a.at != "" {
			if a.heard != 0 {
				m.send(a.at, mError(a.id, 1), true)
			} else {
				m.cover("expiry: no ERROR 1 to an endpoint that was not heard")
			}
		}
		m.end(a)
	}
}

// extend takes back each ERROR 1 that was not sent because its endpoint has a new owner. The model
// does not know when the old one left.
func (m *model) extend(sent []mSend) {
	m.out = slices.DeleteFunc(m.out, func(x mSend) bool {
		last := len(x.bytes) == 21 && x.bytes[20] == 1 && m.byAddr[x.to] != nil
		return last && !slices.ContainsFunc(sent, func(y mSend) bool { return y.to == x.to && y.bytes == x.bytes })
	})
}

// The rules of a restart, once more.

type mRecovered struct {
	rebuilt  bool
	banned   bool // its link will not come back
	hadLink  bool // of a joiner: had one that neither side closed, even if its host has ended
	awaited  int  // of a host: links that have not come back
	recorded int  // of a host: links, as the file has it
}

type mRecord struct {
	bound  bool
	nonce  int
	at     mAddr
	linked bool
	links  int

	tenant    string
	host      bool
	candidate bool // of a migration, and not bound
	former    mID  // of a candidate
	left      bool // of a joiner: its link was closed
	removed   bool // by its host
	hadTurn   bool // of a joiner, since the restart
}

type mNotConnected struct {
	a  *mAlloc
	at mAddr
}

type mRecovery struct {
	boot     int
	until    int64 // end of the window
	complete bool  // there was a file
	before   map[mID]mRecord
	in       map[mID]bool    // what was in it
	proof    []int           // boots whose live allocations are all in the file
	ended    map[mID]bool    // rebuilt and ended again
	boots    []int           // of the present file, newest first
	settled  bool            // and it accounts for all of them
	telling  []mNotConnected // BIND_RECEIVED that have not left yet
}

func (m *model) recovering() bool { return m.now < m.until }

func (m *model) restart(file bool) {
	before := map[mID]mRecord{}
	if file {
		for id, r := range m.before {
			before[id] = r
		}
		for id, a := range m.allocs {
			r := mRecord{bound: a.bound, nonce: a.nonce, at: a.at, linked: a.hadLink, links: a.recorded, tenant: a.tenant,
				left: a.unlinked != 0, removed: a.removed}
			if a.role == "host" {
				r.host, r.linked = true, a.everLinked
				former, candidate := m.places[id]
				r.candidate, r.former = candidate && !a.bound, former
			} else if a.rebuilt && !a.banned {
				r.linked = true
			}
			before[id] = r
		}
	}
	old := *m
	*m = *newModel(m.limits)
	m.now, m.known, m.hits = old.now, old.known, old.hits
	m.boot = old.boot + 1
	m.until = m.now + 60_000
	m.before, m.ended, m.complete = before, map[mID]bool{}, file
	m.in = map[mID]bool{}
	for id := range before {
		m.in[id] = true
	}
	m.begin = m.now / 250
	if file {
		m.recoverMigrations(&old)
	}
	m.boots = []int{m.boot}
	if file {
		m.proof = old.boots[:1]
		if old.settled {
			m.proof = old.boots
		}
		m.boots, m.settled = append(m.boots, old.boots...), old.settled
	}
}

// endWindow ends the recovery window: the first time that control
// works after the window, at a tick or between two.
func (m *model) endWindow() {
	if !m.recovering() && m.before != nil {
		for id, r := range m.before {
			if r.candidate {
				m.removeCandidate(id)
			}
		}
		m.before, m.ended, m.settled = nil, nil, true
	}
}

// mayHold: an id may be one of the run before.
func (m *model) mayHold(id mID) bool { return m.in[id] || !m.complete }

func (m *model) mayRecover(c *mReservation) bool {
	if c.boot == m.boot || !m.recovering() || m.ended[c.id] {
		return false
	}
	if _, ok := m.before[c.id]; ok {
		return true
	}
	for _, b := range m.proof {
		if b == c.boot {
			return false
		}
	}
	return true
}

// rebuild enters an allocation of an earlier run again, or returns nil if its
// BIND may be a replay.
func (m *model) rebuild(c *mReservation, from mAddr, nonce int) *mAlloc {
	r, found := m.before[c.id]
	if found && r.bound && (nonce < r.nonce || nonce == r.nonce && from != r.at) {
		m.cover("restart: a BIND from before is worthless")
		return nil
	}
	if found && r.bound && nonce == r.nonce {
		m.cover("restart: same endpoint, equal nonce")
	}
	m.cover("restart: allocation rebuilt")
	a := m.enter(c)
	a.rebuilt = true
	if found {
		delete(m.before, c.id)
		a.awaited, a.recorded, a.everLinked = r.links, r.links, r.linked
		a.banned = c.role == "joiner" && !r.linked
		if c.role == "joiner" && (r.linked || r.left) {
			a.unlinked, a.removed = m.now/250, r.removed
		}
	}
	return a
}

// relink says whether there is doubt about a link that is not there, and what
// control does about it.
func (m *model) relink(a *mAlloc, to mID) (doubt bool, decide func() string) {
	if !m.recovering() || !a.rebuilt {
		return false, nil
	}
	peer := m.allocs[to]
	if peer != nil && !peer.rebuilt {
		return false, nil
	}
	if peer == nil || a.role == peer.role || a.role == "joiner" && !m.complete {
		return true, nil
	}
	from, arrived := a.at, m.now
	return true, func() string {
		if !m.isStillBound(a, from) {
			return "stale"
		}
		host, joiner := a, m.allocs[to]
		if a.role == "joiner" {
			host, joiner = joiner, a
		}
		switch {
		case host == nil || joiner == nil || len(joiner.links) > 0 || joiner.match != host.id || joiner.tenant != host.tenant:
			return "recovering"
		case joiner.banned:
			m.cover("restart: a kicked player stays out")
			return "recovering"
		case len(host.links) >= host.max:
			return "recovering"
		case a.role == "joiner" && !a.everLinked:
			m.cover("restart: no record of a joiner's link")
			return "recovering"
		}
		m.cover("restart: link restored by its " + a.role)
		m.link(joiner, host, arrived)
		return "relinked"
	}
}

// isSlotReserved: the connections of a host that came back belong to the joiners that had them.
func (m *model) isSlotReserved(a, host *mAlloc) bool {
	if !m.recovering() || !host.rebuilt || a.rebuilt && !a.banned {
		return false
	}
	if m.complete {
		return len(host.links)+host.awaited >= host.max
	}
	return m.now < m.until-60_000+15_000
}

// releaseReservedSlot: the place that was kept for a joiner is not kept any more.
func (m *model) releaseReservedSlot(a, host *mAlloc) {
	if a.role == "joiner" && a.rebuilt && !a.banned && host != nil && host.awaited > 0 {
		host.awaited--
		m.record(host)
	}
}

// isGone is for a joiner that ends, with or without its link.
func (m *model) isGone(a *mAlloc) {
	if len(a.links) == 0 {
		m.releaseReservedSlot(a, m.allocs[a.match])
	}
	if a.rebuilt && m.ended != nil {
		m.ended[a.id] = true
	}
}

// blockRelink: one side has said that there is no link, so none comes back.
func (m *model) blockRelink(a *mAlloc, to mID) {
	joiner := a
	if a.role == "host" {
		joiner = m.allocs[to]
	} else if to != a.match {
		return
	}
	if joiner != nil && joiner.rebuilt && len(joiner.links) == 0 {
		m.releaseReservedSlot(joiner, m.allocs[joiner.match])
		joiner.banned = true
	}
}

func (m *model) record(host *mAlloc) { host.recorded = len(host.links) + host.awaited }

func (m *model) reply(left func(mID) bool) {
	m.telling = slices.DeleteFunc(m.telling, func(t mNotConnected) bool {
		if m.allocs[t.a.id] != t.a || t.a.at != t.at {
			return true
		}
		if !left(t.a.id) {
			return false
		}
		if !t.a.confirmed {
			t.a.confirmed = true
		}
		return true
	})
}
