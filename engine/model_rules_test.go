package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// The rules of BIND and CONNECT_REQUEST, once more.

func (m *model) bind(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) < 40 || len(pkt) != 40+int(pkt[7]) {
		return "size", nil
	}
	if pkt[4] != 0 {
		return "accept_mode", nil
	}
	n := int(pkt[7])
	d, ok := m.known[string(pkt[8:8+n])]
	if !ok {
		return "seal", nil
	}
	if d.ticket {
		return "ticket", nil
	}
	nonce := int(binary.LittleEndian.Uint16(pkt[5:]))
	id := d.card.id
	slot, kept := mSlot{from.worker(), id}, mKept{from, nonce, string(pkt[8+n:])}
	a := m.allocs[id]
	if a != nil {
		if a.confirmed && a.at == from && a.nonce == nonce && m.kept[slot] == kept {
			return m.repeatBind(a, slot), nil
		}
		if a.bound && a.deferred != 0 && (nonce < a.nonce || nonce == a.nonce && a.at != from) {
			m.cover("bind: old nonce once more, no signature checked")
			return "nonce", nil
		}
	}
	mac := hmac.New(sha256.New, d.card.key)
	mac.Write(pkt[:8+n])
	if !hmac.Equal(mac.Sum(nil), pkt[8+n:]) {
		return "mac", nil
	}
	if a != nil {
		m.kept[slot] = kept
	}
	m.fresh = a == nil || !a.bound
	m.pending[from]++
	m.mutes[from] = &mMute{}
	arrived := m.now
	return "", func() string {
		m.pending[from]--
		return m.bound(from, d.card, nonce, arrived)
	}
}

func (m *model) repeatBind(a *mAlloc, slot mSlot) string {
	m.mutes[a.at] = &mMute{}
	a.received, a.active = max(a.received, m.now), max(a.active, m.now)
	if m.limits && !bucketOf(m.repeats, slot).take(m.now, 20, 20) {
		m.cover("bind: answered once more too often")
		return "rate"
	}
	m.cover("bind: answered once more, from memory")
	m.send(a.at, "\xda\x72\x00\x01", false)
	return "bound"
}

func (m *model) bound(from mAddr, card *mReservation, nonce int, arrived int64) string {
	id := card.id
	a := m.allocs[id]
	if owner := m.byAddr[from]; owner != nil && owner != a {
		keeps := int64(8)
		if owner.contested {
			keeps = 40
		}
		switch {
		case a == nil && !m.mayRecover(card):
			m.cover("bind: ended, no ERROR 4 to the endpoint of another")
			return "endpoint_held"
		case a != nil && a.lost == from && arrived/250 <= a.lostAt+40:
			m.cover("bind: takes its endpoint back")
		case card.network == from.prefix() && !owner.validated:
			m.cover("bind: a validated path displaces one that is not")
		case owner.heard != 0 && arrived/250 < owner.heard+keeps:
			m.cover("bind: the endpoint is another's")
			return "endpoint_held"
		}
	}
	if a == nil {
		if !m.mayRecover(card) {
			m.cover("bind: ended, ERROR 4 whatever the nonce")
			return m.answer(from, id, 4)
		}
		if a = m.rebuild(card, from, nonce); a == nil {
			return "nonce"
		}
	}
	if !m.mayBind(a) {
		m.end(a)
		return m.answer(from, id, 4)
	}
	same, first := a.at == from, !a.bound
	switch {
	case !a.bound:
		m.cover("bind: first")
	case same && nonce < a.nonce, !same && nonce <= a.nonce:
		m.cover(map[bool]string{true: "nonce: same endpoint, lower", false: "nonce: other endpoint, not higher"}[same])
		if a.deferred == 0 {
			a.deferred = arrived + 60_000
		}
		return "nonce"
	case same && nonce == a.nonce:
		m.cover("nonce: same endpoint, equal")
	case same:
		m.cover("nonce: same endpoint, higher")
	default:
		m.cover("nonce: other endpoint, higher")
	}
	a.bound, a.nonce = true, nonce
	a.received, a.active = max(a.received, arrived), max(a.active, arrived)
	if !same {
		if owner := m.byAddr[from]; owner != nil {
			m.cover("bind: takes an endpoint over")
			owner.at = ""
		}
		a.contested = a.lost == from && arrived/250 <= a.lostAt+40
		if owner := m.byAddr[from]; owner != nil && !a.contested && (owner.contested || arrived/250 >= owner.since+20) {
			owner.lost, owner.lostAt, owner.contested = from, arrived/250, false
		}
		a.lost, a.since = "", arrived/250
		delete(m.byAddr, a.at)
		m.newPath(a, from, arrived)
		a.at, m.byAddr[from] = from, a
		a.confirmed = false
		if a.contested {
			a.heard = arrived / 250
		}
	}
	m.out = append(m.out, mSend{to: from, bytes: "\xda\x72\x00\x01", grace: !same})
	m.telling = append(m.telling, mNotConnected{a, from})
	if first {
		m.takeOver(a)
	}
	return "bound"
}

func (m *model) answer(to mAddr, id mID, code byte) string {
	if !m.budget(to, code, "control") {
		return "budget"
	}
	if a := m.byAddr[to]; a != nil {
		m.charge(a, 21)
	}
	m.send(to, mError(id, code), false)
	return map[byte]string{2: "error_unauthorized", 4: "error_not_found", 5: "error_not_connected", 6: "error_self_connect"}[code]
}

// isStillBound repeats control's check that the sender is where it was.
func (m *model) isStillBound(a *mAlloc, from mAddr) bool {
	return m.allocs[a.id] == a && a.at == from
}

func (m *model) connect(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 276 || pkt[20] != 255 {
		return "size", nil
	}
	a := m.sender(from, mAt(pkt, 4), len(pkt))
	if a == nil {
		return m.refuseMismatch(from, mAt(pkt, 4)), nil
	}
	d, ok := m.known[string(pkt[21:])]
	if !ok {
		return "seal", nil
	}
	arrived := m.now
	return "", func() string {
		if !m.isStillBound(a, from) {
			return "stale"
		}
		return m.isConnected(a, d, arrived)
	}
}

func (m *model) isConnected(a *mAlloc, d mData, arrived int64) string {
	target := d.card.id
	if d.ticket {
		target = d.card.match
	}
	switch {
	case target == a.id:
		return m.answer(a.at, a.id, 6)
	case d.card.role == "joiner" && !d.ticket, a.role != "joiner", target != a.match, d.card.tenant != a.tenant:
		m.cover("connect: wrong role or match, ERROR 2")
		return m.answer(a.at, a.id, 2)
	case d.ticket && d.card.id != a.id && d.card.player != a.player:
		m.cover("connect: ticket of another player, ERROR 2")
		return m.answer(a.at, a.id, 2)
	}
	if d.ticket && d.card.id != a.id {
		m.cover("connect: another ticket of the same player")
	}
	host := m.allocs[target]
	switch {
	case host == nil && m.mayRecover(&mReservation{id: target, boot: d.card.boot}):
		m.cover("connect: host may yet come back")
		return "recovering"
	case host == nil:
		m.cover("connect: host ended, ERROR 4")
		return m.answer(a.at, a.id, 4)
	case host.at == "":
		return "host_unbound"
	case host.links[a.id]:
		m.cover("connect: repeated")
	case len(host.links) >= host.max:
		if outcome := m.connectToFull(a, host, arrived); outcome != "" {
			return outcome
		}
	case m.isSlotReserved(a, host):
		m.cover("connect: places are kept for their players")
		return "recovering"
	case m.limits && !bucketOf(m.newLinks, a.id).take(arrived, 1, 3):
		m.cover("link: more than 3 of a joiner at once")
		return "rate"
	case m.limits && !bucketOf(m.newLinks, host.id).take(arrived, 4, 4):
		m.cover("link: more than 4 of a host at once")
		return "rate"
	default:
		m.link(a, host, arrived)
	}
	m.charge(a, 36)
	m.send(a.at, "\xda\x72\x00\x06"+string(host.id[:])+string(a.id[:]), false)
	return "accepted"
}

// connectToFull makes room at a full host for a player that has another link to it, or returns
// the outcome.
func (m *model) connectToFull(a, host *mAlloc, arrived int64) string {
	if a.individual && m.limits && !bucketOf(m.newLinks, a.id).take(arrived, 1, 3) {
		m.cover("connect: full, more often than a player may ask")
		return "rate"
	}
	var old *mAlloc
	left := func(x *mAlloc) bool { return m.closed[x.at] }
	for id := range host.links {
		x := m.allocs[id]
		if !a.individual || !x.individual || x.player != a.player {
			continue
		}
		switch {
		case old == nil, left(x) && !left(old):
			old = x
		case left(x) != left(old):
		case !left(x) && x.received/250 != old.received/250:
			if x.received < old.received {
				old = x
			}
		case x.linkNumber < old.linkNumber:
			old = x
		}
	}
	switch {
	case old == nil:
		m.charge(a, 36)
		m.send(a.at, "\xda\x72\x00\x08"+string(host.id[:])+string(a.id[:]), false)
		return "rejected"
	case m.recovering() && host.rebuilt:
		m.cover("connect: full, a player's own link after a restart")
		return "recovering"
	case !left(old) && !m.isOver(old.received, 2000):
		m.cover("connect: full, a player's own link is alive")
		return "place_held"
	case m.limits && !bucketOf(m.newLinks, host.id).take(arrived, 4, 4):
		return "rate"
	case left(old):
		m.cover("connect: full, a player's own link whose session is closed yields")
	default:
		m.cover("connect: full, a player's own silent link yields")
	}
	if len(host.links) > 1 {
		m.cover("connect: full, one link of several yields")
	}
	m.unlink(old, host)
	host.active = max(host.active, arrived)
	m.charge(host, 36)
	m.send(host.at, "\xda\x72\x00\x09"+string(old.id[:])+string(host.id[:]), true)
	m.end(old)
	m.link(a, host, arrived)
	return ""
}

func (m *model) newPath(a *mAlloc, to mAddr, arrived int64) {
	near := a.at != "" && a.at.prefix() == to.prefix()
	a.heard = 0
	switch {
	case a.network == to.prefix():
		m.cover("path: from the network of the reservation")
		a.validated, a.heard = true, arrived/250
	case near && a.validated:
		m.cover("path: as validated as the former one of the same network")
		a.heard = arrived / 250
	case !m.limits:
		a.validated = true
	case a.network != "":
		m.cover("path: limited")
		a.validated, a.limited, a.allowance = false, true, mRatio*295-4
	default:
		a.validated, a.limited, a.allowance = false, false, mAllowance
	}
}

// The rules of links, DISCONNECT and CLOSE, once more.

func (m *model) link(a, host *mAlloc, at int64) {
	host.links[a.id], a.links[host.id] = true, true
	m.linkings++
	a.linkNumber = m.linkings
	if !host.everLinked {
		m.cover("link: first of a host restarts its clocks")
		host.everLinked = true
		host.received, host.active = max(host.received, at), max(host.active, at)
	}
	m.releaseReservedSlot(a, host)
	a.leaving, a.banned, a.hadLink = 0, false, true
	a.unlinked, a.removed = 0, false
	m.record(host)
}

func (m *model) unlink(a, b *mAlloc) {
	delete(a.links, b.id)
	delete(b.links, a.id)
	if a.role == "host" {
		a, b = b, a
	}
	a.leaving, a.banned, a.hadLink = 0, a.rebuilt, false
	m.record(b)
}

func (m *model) closeLink(a, peer *mAlloc, at int64) {
	m.unlink(a, peer)
	m.closes(a, peer, at)
	pkt := "\xda\x72\x00\x09" + string(a.id[:]) + string(peer.id[:])
	if peer.at != "" {
		m.cover("disconnect: forwarded and echoed")
		peer.active = max(peer.active, at)
		m.charge(peer, 36)
		m.send(peer.at, pkt, true)
	}
	if a.at != "" {
		m.charge(a, 36)
		m.send(a.at, pkt, true)
	}
}

func (m *model) disconnect(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 36 {
		return "size", nil
	}
	a := m.sender(from, mAt(pkt, 4), len(pkt))
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
		m.removes(a, peer, arrived)
		m.blockRelink(a, to)
		m.charge(a, 36)
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

// end removes an allocation with its links; its peers get no message.
func (m *model) end(a *mAlloc) {
	m.ends(a)
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
