package engine

// The reference model: the rules of the protocol once more, slow and plain,
// written from the text and sharing nothing with the engine but numbers of
// messages. Maps, integer milliseconds, no locks. Random sequences compare it
// with the engine; see sim_test.go.

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

type (
	mID   [16]byte
	mAddr string
)

// mSend is a datagram that the model sends. Those that wait for grace may not
// leave before every worker has passed.
type mSend struct {
	to    mAddr
	bytes string
	grace bool
}

// mCard is what a reservation hands out, and so what the relay must recognise.
type mCard struct {
	role         string // host, joiner
	id, match    mID
	tenant       string
	player       string
	max          int
	key          []byte
	data, ticket string
}

type mAlloc struct {
	*mCard
	reserved   int64
	bound      bool // ever
	at         mAddr
	nonce      int
	heard      int64
	active     int64
	deferred   int64
	links      map[mID]bool
	everLinked bool
}

type mMute struct {
	count int
	until int64
}

type mData struct {
	card   *mCard
	ticket bool
}

type model struct {
	now       int64
	limits    bool // budgets on
	allocs    map[mID]*mAlloc
	byAddr    map[mAddr]*mAlloc
	known     map[string]mData // sealed data that the relay issued
	mutes     map[mAddr]*mMute
	pending   map[mAddr]int // BINDs on their way to control
	strangers map[[2]mID]int64
	prefix    map[string]*mBucket
	process   mBucket
	mismatch  map[mID]*mBucket
	out       []mSend
	hits      map[string]int
}

// mBucket is a token bucket: tokens in millionths, refilled by time.
type mBucket struct {
	tokens, at  int64
	initialised bool
}

func (b *mBucket) take(now, perSecond, burst int64) bool {
	const token = 1_000_000
	if !b.initialised {
		*b = mBucket{burst * token, now, true}
	}
	b.tokens = min(burst*token, b.tokens+(now-b.at)*perSecond*token/1000)
	b.at = now
	if b.tokens < token {
		return false
	}
	b.tokens -= token
	return true
}

func newModel(limits bool) *model {
	return &model{
		limits: limits, allocs: map[mID]*mAlloc{}, byAddr: map[mAddr]*mAlloc{}, known: map[string]mData{},
		mutes: map[mAddr]*mMute{}, pending: map[mAddr]int{}, strangers: map[[2]mID]int64{},
		prefix: map[string]*mBucket{}, mismatch: map[mID]*mBucket{}, hits: map[string]int{},
	}
}

func (m *model) hit(rule string) { m.hits[rule]++ }

func (m *model) send(to mAddr, bytes string, grace bool) {
	m.out = append(m.out, mSend{to, bytes, grace})
}

// reserve sets an allocation aside; a joiner's host must live.
func (m *model) reserve(c *mCard) bool {
	if c.role == "joiner" {
		host := m.allocs[c.match]
		if host == nil || host.role != "host" || host.tenant != c.tenant {
			return false
		}
	}
	m.allocs[c.id] = &mAlloc{mCard: c, reserved: m.now, heard: m.now, active: m.now, links: map[mID]bool{}}
	m.known[c.data] = mData{c, false}
	if c.ticket != "" {
		m.known[c.ticket] = mData{c, true}
	}
	return true
}

func mError(id mID, code byte) string {
	return "\xda\x72\x00\x0c" + string(id[:]) + string(code)
}

// budget draws one ERROR to an address.
func (m *model) budget(to mAddr, rule string) bool {
	if !m.limits {
		return true
	}
	p := m.prefix[to.prefix()]
	if p == nil {
		p = &mBucket{}
		m.prefix[to.prefix()] = p
	}
	if !p.take(m.now, 10, 20) || !m.process.take(m.now, 20_000, 20_000) {
		m.hit("budget: " + rule)
		return false
	}
	return true
}

// arrive is what a worker does with a datagram. If control must decide, it
// returns the decision; else the outcome.
func (m *model) arrive(from mAddr, pkt []byte) (outcome string, decide func() string) {
	switch {
	case len(pkt) < 4:
		return "short", nil
	case pkt[0] != 0xDA || pkt[1] != 0x72:
		return "signature", nil
	case pkt[2] != 0:
		return m.version(from, pkt), nil
	}
	switch pkt[3] {
	case 0:
		return m.bind(from, pkt)
	case 2:
		return m.ping(from, pkt), nil
	case 3:
		return m.connect(from, pkt)
	case 9:
		return m.disconnect(from, pkt)
	case 10:
		return m.relay(from, pkt), nil
	case 11:
		return m.close(from, pkt)
	case 1, 6, 8, 12:
		return "server_type", nil
	}
	return "unknown_type", nil
}

func (m *model) version(from mAddr, pkt []byte) string {
	if !slices.Contains([]byte{0, 2, 3, 9, 10, 11}, pkt[3]) || len(pkt) < 22 {
		return "version"
	}
	if !m.budget(from, "version") {
		return "budget"
	}
	m.send(from, mError(mID{}, 0), false)
	return "error_version"
}

func mAt(pkt []byte, i int) mID { return mID(pkt[i : i+16]) }

// sender returns the allocation that is bound to from if it is the one named,
// and notes that it was heard.
func (m *model) sender(from mAddr, id mID) *mAlloc {
	a := m.byAddr[from]
	if a == nil || a.id != id {
		return nil
	}
	a.heard = max(a.heard, m.now)
	a.active = max(a.active, m.now)
	return a
}

// notBound is the answer to who is not bound to the id named: ERROR 3.
func (m *model) notBound(from mAddr, id mID) string {
	mute := m.mutes[from]
	if mute == nil {
		mute = &mMute{}
		m.mutes[from] = mute
	}
	if m.now < mute.until {
		m.hit("mute: three ERROR 3, then silence")
		return "muted"
	}
	if m.pending[from] > 0 {
		m.hit("mute: a BIND is on its way")
		return "muted"
	}
	if named := m.allocs[id]; named != nil && m.limits {
		if m.mismatch[id] == nil {
			m.mismatch[id] = &mBucket{}
		}
		if !m.mismatch[id].take(m.now, 5, 5) {
			m.hit("budget: mismatch of a live allocation")
			return "budget"
		}
	} else if !m.budget(from, "mismatch") {
		return "budget"
	}
	mute.count++
	if mute.count == 3 {
		mute.count, mute.until = 0, m.now+10_000
	}
	m.send(from, mError(id, 3), false)
	return "error_mismatch"
}

func (m *model) ping(from mAddr, pkt []byte) string {
	if len(pkt) != 22 {
		return "size"
	}
	if m.sender(from, mAt(pkt, 4)) == nil {
		return m.notBound(from, mAt(pkt, 4))
	}
	m.send(from, string(pkt), false)
	return "pong"
}

func (m *model) relay(from mAddr, pkt []byte) string {
	if len(pkt) < 38 || len(pkt) != 38+int(binary.BigEndian.Uint16(pkt[36:])) || len(pkt) > 38+1434 {
		return "size"
	}
	if len(pkt) > 38+1400 {
		return "oversize"
	}
	a := m.sender(from, mAt(pkt, 4))
	if a == nil {
		return m.notBound(from, mAt(pkt, 4))
	}
	to := mAt(pkt, 20)
	if !a.links[to] {
		return m.stranger(a, to)
	}
	peer := m.allocs[to]
	if peer.at == "" {
		return "peer_unbound"
	}
	peer.active = max(peer.active, m.now)
	m.send(peer.at, string(pkt), false)
	return "relayed"
}

// stranger answers a RELAY without a link: ERROR 5 at once, then once a second
// per ordered pair, and for at most four peers of a sender within a second.
func (m *model) stranger(a *mAlloc, to mID) string {
	told := 0
	for pair, at := range m.strangers {
		if pair[0] == a.id && m.now-at < 1000 {
			told++
			if pair[1] == to {
				m.hit("mute: ERROR 5 once a second per pair")
				return "muted"
			}
		}
	}
	if told >= 4 {
		m.hit("mute: ERROR 5 about four peers a second")
		return "muted"
	}
	m.strangers[[2]mID{a.id, to}] = m.now
	if !m.budget(a.at, "not connected") {
		return "budget"
	}
	m.send(a.at, mError(a.id, 5), false)
	return "error_not_connected"
}

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
	mac := hmac.New(sha256.New, d.card.key)
	mac.Write(pkt[:8+n])
	if !hmac.Equal(mac.Sum(nil), pkt[8+n:]) {
		return "mac", nil
	}
	m.pending[from]++
	m.mutes[from] = &mMute{}
	nonce := int(binary.LittleEndian.Uint16(pkt[5:]))
	arrived := m.now
	return "", func() string {
		m.pending[from]--
		return m.bound(from, d.card.id, nonce, arrived)
	}
}

func (m *model) bound(from mAddr, id mID, nonce int, arrived int64) string {
	a := m.allocs[id]
	if a == nil {
		m.hit("bind: ended, ERROR 4 whatever the nonce")
		return m.answer(from, id, 4)
	}
	same := a.at == from
	switch {
	case !a.bound:
		m.hit("bind: first")
	case same && nonce < a.nonce, !same && nonce <= a.nonce:
		m.hit(map[bool]string{true: "nonce: same endpoint, lower", false: "nonce: other endpoint, not higher"}[same])
		if a.deferred == 0 {
			a.deferred = arrived + 60_000
		}
		return "nonce"
	case same && nonce == a.nonce:
		m.hit("nonce: same endpoint, equal")
	case same:
		m.hit("nonce: same endpoint, higher")
	default:
		m.hit("nonce: other endpoint, higher")
	}
	a.bound, a.nonce = true, nonce
	a.heard, a.active = max(a.heard, arrived), max(a.active, arrived)
	if !same {
		if owner := m.byAddr[from]; owner != nil {
			m.hit("bind: takes an endpoint over")
			owner.at = ""
		}
		delete(m.byAddr, a.at)
		a.at, m.byAddr[from] = from, a
	}
	m.send(from, "\xda\x72\x00\x01", !same)
	return "bound"
}

// answer sends an ERROR that control decided on.
func (m *model) answer(to mAddr, id mID, code byte) string {
	if !m.budget(to, "control") {
		return "budget"
	}
	m.send(to, mError(id, code), false)
	return map[byte]string{2: "error_unauthorized", 4: "error_not_found", 5: "error_not_connected", 6: "error_self_connect"}[code]
}

// stillBound repeats control's check that the sender is where it was.
func (m *model) stillBound(a *mAlloc, from mAddr) bool {
	return m.allocs[a.id] == a && a.at == from
}

func (m *model) connect(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 276 || pkt[20] != 255 {
		return "size", nil
	}
	a := m.sender(from, mAt(pkt, 4))
	if a == nil {
		return m.notBound(from, mAt(pkt, 4)), nil
	}
	d, ok := m.known[string(pkt[21:])]
	if !ok {
		return "seal", nil
	}
	arrived := m.now
	return "", func() string {
		if !m.stillBound(a, from) {
			return "stale"
		}
		return m.connected(a, d, arrived)
	}
}

func (m *model) connected(a *mAlloc, d mData, arrived int64) string {
	target := d.card.id
	if d.ticket {
		target = d.card.match
	}
	switch {
	case target == a.id:
		return m.answer(a.at, a.id, 6)
	case d.card.role == "joiner" && !d.ticket, a.role != "joiner", target != a.match, d.card.tenant != a.tenant:
		m.hit("connect: wrong role or match, ERROR 2")
		return m.answer(a.at, a.id, 2)
	case d.ticket && d.card.id != a.id && d.card.player != a.player:
		m.hit("connect: ticket of another player, ERROR 2")
		return m.answer(a.at, a.id, 2)
	}
	if d.ticket && d.card.id != a.id {
		m.hit("connect: another ticket of the same player")
	}
	host := m.allocs[target]
	switch {
	case host == nil:
		m.hit("connect: host ended, ERROR 4")
		return m.answer(a.at, a.id, 4)
	case host.at == "":
		return "host_unbound"
	case host.links[a.id]:
		m.hit("connect: repeated")
	case len(host.links) >= host.max:
		m.send(a.at, "\xda\x72\x00\x08"+string(host.id[:])+string(a.id[:]), false)
		return "rejected"
	default:
		host.links[a.id], a.links[host.id] = true, true
		if !host.everLinked {
			m.hit("link: first of a host restarts its clocks")
			host.everLinked = true
			host.heard, host.active = max(host.heard, arrived), max(host.active, arrived)
		}
	}
	m.send(a.at, "\xda\x72\x00\x06"+string(host.id[:])+string(a.id[:]), false)
	return "accepted"
}

func (m *model) disconnect(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 36 {
		return "size", nil
	}
	a := m.sender(from, mAt(pkt, 4))
	if a == nil {
		return m.notBound(from, mAt(pkt, 4)), nil
	}
	arrived := m.now
	return "", func() string {
		if !m.stillBound(a, from) {
			return "stale"
		}
		return m.disconnected(a, mAt(pkt, 20), string(pkt), arrived)
	}
}

func (m *model) disconnected(a *mAlloc, to mID, pkt string, arrived int64) string {
	peer := m.allocs[to]
	if a.links[to] {
		delete(a.links, to)
		delete(peer.links, a.id)
		if peer.at != "" {
			m.hit("disconnect: forwarded and echoed")
			peer.active = max(peer.active, arrived)
			m.send(peer.at, pkt, true)
		}
		m.send(a.at, pkt, true)
		return "disconnected"
	}
	if to != a.id && (to == a.match || peer != nil && peer.match == a.match) {
		m.hit("disconnect: no link, same match, echoed")
		m.send(a.at, pkt, false)
		return "disconnected"
	}
	return m.answer(a.at, a.id, 5)
}

func (m *model) close(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) != 20 {
		return "size", nil
	}
	a := m.byAddr[from]
	if a == nil || a.id != mAt(pkt, 4) {
		return "unbound", nil
	}
	return "", func() string {
		if !m.stillBound(a, from) {
			return "stale"
		}
		m.end(a)
		return "closed"
	}
}

// end removes an allocation with its links; peers are told nothing.
func (m *model) end(a *mAlloc) {
	for id := range a.links {
		delete(m.allocs[id].links, a.id)
	}
	if a.at != "" {
		delete(m.byAddr, a.at)
	}
	delete(m.allocs, a.id)
}

// tick expires what is overdue; it is called at every multiple of 250 ms.
// A limit of n ms is over at the first tick more than n ms, rounded to ticks,
// after the tick in which the clock began.
func (m *model) tick() {
	over := func(since, limit int64) bool { return m.now/250-since/250 > limit/250 }
	for _, a := range m.allocs {
		if a.deferred != 0 && m.now/250 <= a.deferred/250 {
			if a.bound && (over(a.active, 10_000) && a.everLinked) {
				m.hit("expiry: deferred after a bad nonce")
			}
			continue
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
			m.hit("expiry: never bound")
		case over(a.active, idle):
			m.hit(map[int64]string{10_000: "expiry: idle", 60_000: "expiry: host alone"}[idle])
		case over(a.heard, max(30_000, idle)):
			m.hit("expiry: not heard")
		default:
			continue
		}
		if a.at != "" {
			m.send(a.at, mError(a.id, 1), true)
		}
		m.end(a)
	}
}
