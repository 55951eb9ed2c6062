package engine

// The rules of links, DISCONNECT and CLOSE, once more.

// link opens a link at a time.
func (m *model) link(a, host *mAlloc, at int64) {
	host.links[a.id], a.links[host.id] = true, true
	if !host.everLinked {
		m.cover("link: first of a host restarts its clocks")
		host.everLinked = true
		host.received, host.active = max(host.received, at), max(host.active, at)
	}
	m.releaseReservedSlot(a, host)
	a.linkedAt, a.leaving, a.banned, a.hadLink = at/250, 0, false, true
	m.record(host)
}

// unlink closes a link and tells nobody.
func (m *model) unlink(a, b *mAlloc) {
	delete(a.links, b.id)
	delete(b.links, a.id)
	if a.role == "host" {
		a, b = b, a
	}
	a.linkedAt, a.leaving, a.banned, a.hadLink = 0, 0, a.rebuilt, false
	m.record(b)
}

// closeLink closes a link and tells both.
func (m *model) closeLink(a, peer *mAlloc, at int64) {
	m.unlink(a, peer)
	pkt := "\xda\x72\x00\x09" + string(a.id[:]) + string(peer.id[:])
	if peer.at != "" {
		m.cover("disconnect: forwarded and echoed")
		peer.active = max(peer.active, at)
		m.send(peer.at, pkt, true)
	}
	if a.at != "" {
		m.send(a.at, pkt, true)
	}
}

func (m *model) disconnect(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 36 {
		return "size", nil
	}
	a := m.sender(from, mAt(pkt, 4))
	if a == nil {
		return m.refuseMismatch(from, mAt(pkt, 4)), nil
	}
	arrived := m.now
	return "", func() string {
		if !m.isStillBound(a, from) {
			return "stale"
		}
		return m.disconnected(a, mAt(pkt, 20), string(pkt), arrived)
	}
}

func (m *model) disconnected(a *mAlloc, to mID, pkt string, arrived int64) string {
	peer := m.allocs[to]
	if a.links[to] {
		if arrived < m.spoofed[a.id] {
			joiner := a
			if a.role == "host" {
				joiner = peer
			}
			if joiner.leaving == 0 {
				joiner.leaving, joiner.leftByHost = arrived/250+4, a.role == "host"
			}
			return "held"
		}
		m.closeLink(a, peer, arrived)
		return "disconnected"
	}
	if to != a.id && (to == a.match || peer != nil && peer.match == a.match) {
		m.cover("disconnect: no link, same match, echoed")
		m.blockRelink(a, to)
		m.send(a.at, pkt, false)
		return "disconnected"
	}
	if m.recovering() && a.rebuilt {
		return "recovering"
	}
	return m.answer(a.at, a.id, 5)
}

func (m *model) close(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 20 {
		return "size", nil
	}
	a := m.byAddr[from]
	if a == nil || a.id != mAt(pkt, 4) {
		m.noteForged(mAt(pkt, 4))
		return "unbound", nil
	}
	arrived := m.now
	return "", func() string {
		if !m.isStillBound(a, from) {
			return "stale"
		}
		if arrived < m.spoofed[a.id] {
			if a.closing == 0 {
				a.closing = arrived/250 + 4
			}
			return "held"
		}
		m.end(a)
		return "closed"
	}
}

// end removes an allocation with its links; peers are told nothing.
func (m *model) end(a *mAlloc) {
	m.isGone(a)
	for id := range a.links {
		delete(m.allocs[id].links, a.id)
		if a.role == "joiner" {
			m.record(m.allocs[id])
		}
	}
	if a.at != "" {
		delete(m.byAddr, a.at)
	}
	delete(m.allocs, a.id)
}
