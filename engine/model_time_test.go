package engine

// What time does, once more.

import "slices"

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

// tickLink does what is overdue for the link of a joiner.
func (m *model) tickLink(a *mAlloc, now int64) {
	host := m.allocs[a.match]
	if host == nil || !a.links[a.match] {
		a.leaving, a.linkedAt = 0, 0
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
	if a.linkedAt != 0 && now > a.linkedAt+40 {
		if max(a.fromHost, a.fromJoiner) < a.linkedAt {
			m.cover("link: unused for 10 s, closed silently")
			m.unlink(a, host)
		}
		a.linkedAt = 0
	}
}

// expire ends what has been silent for too long.
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
			m.cover("expiry: put off since the relay stood still")
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
			m.cover("expiry: not heard")
		default:
			continue
		}
		if a.at != "" {
			if a.validated {
				m.send(a.at, mError(a.id, 1), true)
			} else {
				m.cover("expiry: an unproven endpoint is not told")
			}
		}
		m.end(a)
	}
}

// extend takes back each ERROR 1 that was not sent because its endpoint has a new
// owner, who must not hear of the end of the old one. The model does not know
// when it left; that it did not, and that there is a new owner, is all it checks.
func (m *model) extend(sent []mSend) {
	m.out = slices.DeleteFunc(m.out, func(x mSend) bool {
		last := len(x.bytes) == 21 && x.bytes[20] == 1 && m.byAddr[x.to] != nil
		return last && !slices.ContainsFunc(sent, func(y mSend) bool { return y.to == x.to && y.bytes == x.bytes })
	})
}
