package engine

// The reference model: the rules of the protocol once more, slow and plain. It shares nothing with
// the engine but numbers of messages. Random sequences compare both; see sim_test.go.

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
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

// mReservation is what a reservation hands out, and so what the relay must recognise.
type mReservation struct {
	role         string // host, joiner
	id, match    mID
	tenant       string
	player       string
	individual   bool // the player is one, not many
	max          int
	key          []byte
	data, ticket string
	network      string // from which its player called the API; empty: not known
	boot         int    // run of the relay that issued it
}

type mAlloc struct {
	*mReservation
	number     int // it entered after those with smaller ones
	reserved   int64
	bound      bool // ever
	at         mAddr
	nonce      int
	received   int64
	active     int64
	deferred   int64
	links      map[mID]bool
	everLinked bool

	confirmed  bool // BIND_RECEIVED for its endpoint has left
	validated  bool
	limited    bool  // no message validates its path
	allowance  int   // bytes that may go to an endpoint that is not validated
	excess     int64 // until when what went beyond the allowance is paid
	heard      int64 // tick of the last message but a BIND from its endpoint; 0: none
	lost       mAddr // the endpoint that another allocation took over
	lostAt     int64 // tick
	since      int64 // tick of the BIND to its endpoint
	contested  bool  // it took its endpoint back
	closing    int64 // tick after which a CLOSE takes effect; 0: none
	leaving    int64 // of a joiner: tick after which its link ends; 0: none
	leftByHost bool
	largeDrops int
	large      int   // messages to it that may be too large
	linkNumber int   // of a joiner: number of its link
	fromHost   int64 // of a joiner: ticks of the last RELAY on its link
	fromJoiner int64
	mRecovered
	mMatch
}

type mMute struct {
	count int
	until int64
}

// mKept is what a worker remembers of the last good BIND of an allocation.
type mKept struct {
	from  mAddr
	nonce int
	mac   string
}

type mSlot struct {
	worker int
	id     mID
}

type mGate struct {
	id     mID
	prefix string
}

type mCode struct {
	to   mAddr
	code byte
}

type mData struct {
	card   *mReservation
	ticket bool
}

type model struct {
	now          int64
	limits       bool // budgets on
	allocs       map[mID]*mAlloc
	entered      int // how many ever did
	byAddr       map[mAddr]*mAlloc
	known        map[string]mData // sealed data that the relay issued
	mutes        map[mAddr]*mMute
	pending      map[mAddr]int // BINDs on their way to control
	notConnected map[[2]mID]int64
	prefix       map[string]*mBucket
	process      mBucket
	mismatch     map[mID]*mBucket
	rebinds      map[mID]*mBucket
	mismatches   map[mGate]*mBucket
	one          map[mCode]*mBucket
	wrongs       map[mID]*mBucket
	spoofed      map[mID]int64
	newLinks     map[mID]*mBucket // of hosts and of joiners
	meters       map[mID]*[2]int64
	excesses     map[string]*int64   // of networks (IPv4 /24, IPv6 /48), and of all by ""
	probes       map[string]*mBucket // of QoS, by prefix
	kept         map[mSlot]mKept
	repeats      map[mSlot]*mBucket
	reported     map[mID]bool // matches of which a large message was reported
	reports      []mReport
	stalls       [][2]int64 // in ticks
	settle       int64
	linkings     int            // links ever
	closed       map[mAddr]bool // endpoints whose sessions are closed
	mRecovery
	mMigrations
	fresh bool // what arrived is the first BIND of an allocation
	out   []mSend
	hits  map[string]int
}

// What the simulation sets instead of the defaults, so that it reaches them:
// datagrams and bytes per second, and bytes to an endpoint that is not validated.
var (
	mJoinerQuota = [2]int64{30, 8 << 10}
	mHostQuota   = [2]int64{40, 16 << 10}
)

// Bytes per second beyond the allowances of limited paths: of a path, a network, and all.
const mExcessPath, mExcessNetwork, mExcessAll = 1600, 2000, 2500

// Sizes in bytes of messages by the receiver's way. The addresses of IPv6 stand
// for a way that does not carry all: above the first size a message is reported,
// above the second it is dropped.
const mSafeMessage, mMaxMessage = 60, 80

type mReport struct {
	match, from, to mID
	size, limit     int
	dropped         bool
}

const (
	mAllowance   = 3000
	mRatio       = 3
	mPrefixBurst = 3
)

// mBucket is a token bucket: tokens in millionths, refilled by time.
type mBucket struct {
	tokens, at  int64
	initialised bool
}

func (b *mBucket) take(now, perSecond, burst int64) bool {
	return b.takeOf(now, perSecond, 1, burst)
}

// takeOf is take for a bucket with count tokens in so many seconds.
func (b *mBucket) takeOf(now, count, seconds, burst int64) bool {
	const token = 1_000_000
	if !b.initialised {
		*b = mBucket{burst * token, now, true}
	}
	b.tokens = min(burst*token, b.tokens+(now-b.at)*count*token/seconds/1000)
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
		mutes: map[mAddr]*mMute{}, pending: map[mAddr]int{}, notConnected: map[[2]mID]int64{},
		prefix: map[string]*mBucket{}, mismatch: map[mID]*mBucket{}, rebinds: map[mID]*mBucket{}, mismatches: map[mGate]*mBucket{},
		hits: map[string]int{},
		one:  map[mCode]*mBucket{}, wrongs: map[mID]*mBucket{}, spoofed: map[mID]int64{}, newLinks: map[mID]*mBucket{},
		meters: map[mID]*[2]int64{}, excesses: map[string]*int64{}, probes: map[string]*mBucket{}, kept: map[mSlot]mKept{},
		repeats:  map[mSlot]*mBucket{},
		reported: map[mID]bool{}, mMigrations: newMMigrations(), closed: map[mAddr]bool{},
	}
}

func (m *model) cover(rule string) { m.hits[rule]++ }

func (m *model) send(to mAddr, bytes string, grace bool) {
	m.out = append(m.out, mSend{to, bytes, grace})
}

func (m *model) reserve(c *mReservation) bool {
	if c.role == "joiner" {
		host := m.allocs[c.match]
		if host == nil || host.role != "host" || host.tenant != c.tenant || m.migrationOf(c.match) != nil {
			return false
		}
		if host.everLinked && m.isSilent(host) {
			m.cover("migration: a join to a silent host")
			return false
		}
	}
	return m.add(c)
}

func (m *model) add(c *mReservation) bool {
	old, ok := m.replaced(c)
	if !ok {
		return false
	}
	c.boot = m.boot
	m.enter(c)
	for _, a := range old {
		m.end(a)
	}
	m.known[c.data] = mData{c, false}
	if c.ticket != "" {
		m.known[c.ticket] = mData{c, true}
	}
	return true
}

func mError(id mID, code byte) string {
	return "\xda\x72\x00\x0c" + string(id[:]) + string(code)
}

func (m *model) enter(c *mReservation) *mAlloc {
	m.entered++
	a := &mAlloc{mReservation: c, number: m.entered, reserved: m.now, received: m.now, active: m.now, links: map[mID]bool{}}
	m.allocs[c.id] = a
	return a
}

func bucketOf[K comparable](all map[K]*mBucket, key K) *mBucket {
	if all[key] == nil {
		all[key] = &mBucket{}
	}
	return all[key]
}

// noteForged counts a message from an endpoint that is not bound to its id: more than a hundred a
// second, and it counts as spoofed at for ten, to the end of a tick.
func (m *model) noteForged(id mID) {
	if m.allocs[id] != nil && !bucketOf(m.wrongs, id).take(m.now, 100, 100) {
		m.spoofed[id] = (m.now/250 + 41) * 250
	}
}

func (m *model) budgetOne(to mAddr, code byte) bool {
	if m.limits && !bucketOf(m.one, mCode{to, code}).take(m.now, 5, 1) {
		m.cover("budget: one of a code in 200 ms")
		return false
	}
	return true
}

func (m *model) budget(to mAddr, code byte, rule string) bool {
	if !m.limits {
		return true
	}
	if !m.budgetOne(to, code) {
		return false
	}
	p := m.prefix[to.prefix()]
	if p == nil {
		p = &mBucket{}
		m.prefix[to.prefix()] = p
	}
	if !p.take(m.now, 10, mPrefixBurst) || !m.process.take(m.now, 20_000, 20_000) {
		m.cover("budget: " + rule)
		return false
	}
	return true
}

func (m *model) arrive(from mAddr, pkt []byte) (outcome string, decide func() string) {
	switch {
	case pkt == nil:
		return m.alive(from), nil
	case len(pkt) < 4:
		return "short", nil
	case pkt[0] == 0x59:
		return m.qos(from, pkt), nil
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
		return m.relay(from, pkt)
	case 11:
		return m.close(from, pkt)
	case 1, 6, 8, 12:
		return "server_type", nil
	}
	return "unknown_type", nil
}

// qos answers a QoS probe: 14 bytes and a title, whose length plus one is in the
// third.
func (m *model) qos(from mAddr, pkt []byte) string {
	if pkt[1]>>4 != 0 || pkt[2] == 0 || len(pkt) != 13+int(pkt[2]) {
		return "size"
	}
	if m.limits && !bucketOf(m.probes, from.prefix()).take(m.now, 20, 40) {
		m.cover("qos: more than 40 of a prefix at once")
		return "rate"
	}
	rest := pkt[len(pkt)-11:]
	m.send(from, "\x95\x00"+string(rest), false)
	return "qos"
}

func (m *model) version(from mAddr, pkt []byte) string {
	if !slices.Contains([]byte{0, 2, 3, 9, 10, 11}, pkt[3]) || len(pkt) < 22 {
		return "version"
	}
	if !m.budget(from, 0, "version") {
		return "budget"
	}
	m.send(from, mError(mID{}, 0), false)
	return "error_version"
}

func mAt(pkt []byte, i int) mID { return mID(pkt[i : i+16]) }

// sender returns the allocation that is bound to from if it is the one named,
// and records that it sent a message of size bytes.
func (m *model) sender(from mAddr, id mID, size int) *mAlloc {
	a := m.byAddr[from]
	if a == nil || a.id != id {
		return nil
	}
	a.received = max(a.received, m.now)
	a.active = max(a.active, m.now)
	a.heard = m.now / 250
	switch {
	case a.validated:
	case a.limited:
		a.allowance = min(a.allowance+mRatio*size, 1<<20)
	default:
		a.validated = true
	}
	return a
}

// refuseMismatch answers a message whose endpoint is not bound to its id: ERROR 3.
func (m *model) refuseMismatch(from mAddr, id mID) string {
	m.noteForged(id)
	mute := m.mutes[from]
	if mute == nil {
		mute = &mMute{}
		m.mutes[from] = mute
	}
	if m.now < mute.until {
		m.cover("mute: three ERROR 3, then silence")
		return "muted"
	}
	if m.pending[from] > 0 {
		m.cover("mute: a BIND is on its way")
		return "muted"
	}
	named := m.allocs[id]
	switch {
	case !m.limits:
	case named != nil:
		if !m.budgetOne(from, 3) {
			return "budget"
		}
		if !m.liveBudget(from, named) {
			return "budget"
		}
	case m.recovering() && m.mayHold(id):
		if !m.budgetOne(from, 3) {
			return "budget"
		}
	case !m.budget(from, 3, "mismatch"):
		return "budget"
	}
	mute.count++
	if mute.count == 3 {
		mute.count, mute.until = 0, m.now+10_000
	}
	m.send(from, mError(id, 3), false)
	return "error_mismatch"
}

func (m *model) liveBudget(from mAddr, named *mAlloc) bool {
	if named.at != "" && named.at.prefix() == from.prefix() {
		if !bucketOf(m.rebinds, named.id).takeOf(m.now, 1, 2, 1) {
			m.cover("budget: mismatch in the network of the allocation")
			return false
		}
		return true
	}
	if !bucketOf(m.mismatches, mGate{named.id, from.prefix()}).takeOf(m.now, 1, 2, 1) {
		m.cover("budget: mismatch of a live allocation from a prefix")
		return false
	}
	if !bucketOf(m.mismatch, named.id).take(m.now, 1, 3) {
		m.cover("budget: mismatch of a live allocation")
		return false
	}
	return true
}

func (m *model) ping(from mAddr, pkt []byte) string {
	if len(pkt) != 22 {
		return "size"
	}
	if m.sender(from, mAt(pkt, 4), len(pkt)) == nil {
		return m.refuseMismatch(from, mAt(pkt, 4))
	}
	m.charge(m.byAddr[from], 22)
	m.send(from, string(pkt), false)
	return "pong"
}

func (m *model) alive(from mAddr) string {
	a := m.byAddr[from]
	if a == nil {
		return "unbound"
	}
	m.sender(from, a.id, 0)
	m.send(from, "", false)
	return "alive"
}

func (m *model) relay(from mAddr, pkt []byte) (string, func() string) {
	if len(pkt) < 38 || len(pkt) != 38+int(binary.BigEndian.Uint16(pkt[36:])) || len(pkt) > 38+1434 {
		return "size", nil
	}
	a := m.sender(from, mAt(pkt, 4), len(pkt))
	if a == nil {
		return m.refuseMismatch(from, mAt(pkt, 4)), nil
	}
	if len(pkt) > 38+1400 {
		return "oversize", nil
	}
	to := mAt(pkt, 20)
	if !a.links[to] {
		if doubt, decide := m.relink(a, to); doubt || decide != nil {
			return "recovering", decide
		}
		return m.refuseUnlinked(a, to), nil
	}
	peer := m.allocs[to]
	switch {
	case peer.at == "":
		return "peer_unbound", nil
	case m.isTooLarge(a, peer, len(pkt)):
		return "receiver_size", nil
	case !m.takeQuota(a, len(pkt)):
		return "rate", nil
	case !m.mayRelayTo(peer, len(pkt)):
		return "unvalidated", nil
	}
	if a.role == "host" {
		peer.fromHost = m.now / 250
	} else {
		a.fromJoiner = m.now / 250
	}
	peer.active = max(peer.active, m.now)
	m.send(peer.at, string(pkt), false)
	return "relayed", nil
}

// mayRelayTo draws a message from what may go to an endpoint that is not validated.
func (m *model) mayRelayTo(peer *mAlloc, size int) bool {
	switch {
	case peer.validated:
		return true
	case peer.allowance >= size:
		peer.allowance -= size
		return true
	case !peer.limited:
		m.cover("path: unvalidated, beyond the allowance")
		return false
	}
	switch {
	case !m.pay(&peer.excess, mExcessPath, size):
		m.cover("path: excess of a path")
	case !peer.at.isPrivate() && !m.pay(m.excessOf(peer.at.routingPrefix()), mExcessNetwork, size):
		m.cover("path: excess of a network")
	case !m.pay(m.excessOf(""), mExcessAll, size):
		m.cover("path: excess of all")
	default:
		if peer.at.isPrivate() {
			m.cover("path: excess in a private network")
		}
		return true
	}
	return false
}

func (m *model) excessOf(prefix string) *int64 {
	if m.excesses[prefix] == nil {
		m.excesses[prefix] = new(int64)
	}
	return m.excesses[prefix]
}

// pay draws bytes from a gate with so many per second, and as many at once: the time until
// which it is paid, in eighths of a microsecond.
func (m *model) pay(paid *int64, perSecond int64, size int) bool {
	const second = 8_000_000
	next := max(*paid, m.now*8000) + second/perSecond*int64(size)
	if next-m.now*8000 > second {
		return false
	}
	*paid = next
	return true
}

func (m *model) charge(a *mAlloc, size int) {
	switch {
	case a.validated || !a.limited:
	case a.allowance >= size:
		a.allowance -= size
	default:
		m.cover("path: a reply beyond the allowance")
		a.excess = max(a.excess, m.now*8000) + 8_000_000/mExcessPath*int64(size)
	}
}

func (m *model) isTooLarge(a, peer *mAlloc, size int) bool {
	if !strings.HasPrefix(string(peer.at), "[") || size <= mSafeMessage {
		return false
	}
	r := mReport{match: a.match, from: a.id, to: peer.id, size: size, limit: mSafeMessage}
	if size > mMaxMessage {
		r.limit, r.dropped = mMaxMessage, true
		peer.largeDrops++
	} else {
		peer.large++
	}
	if !m.reported[a.match] {
		m.cover("size: first of a match is reported, dropped " + strconv.FormatBool(r.dropped))
		m.reported[a.match] = true
		m.reports = append(m.reports, r)
	}
	return r.dropped
}

// takeQuota draws a datagram and its bytes from what an allocation may relay. A
// bucket is the time, in eighths of a microsecond, until which it is paid.
func (m *model) takeQuota(a *mAlloc, size int) bool {
	if !m.limits {
		return true
	}
	quota := mJoinerQuota
	if a.role == "host" {
		quota = mHostQuota
	}
	if m.meters[a.id] == nil {
		m.meters[a.id] = &[2]int64{}
	}
	const second = 8_000_000
	now, paid, ok := m.now*8000, [2]int64{}, true
	for i, price := range [2]int64{(second + quota[0]/2) / quota[0], second * int64(size) / quota[1]} {
		paid[i] = max(m.meters[a.id][i], now) + price
		ok = ok && paid[i]-now <= second
	}
	if ok {
		*m.meters[a.id] = paid
	}
	return ok
}

// refuseUnlinked answers a RELAY without a link: ERROR 5 at once, then once a second
// per ordered pair, and for at most three peers of a sender within a second.
func (m *model) refuseUnlinked(a *mAlloc, to mID) string {
	sent := 0
	for pair, at := range m.notConnected {
		if pair[0] == a.id && m.now-at < 1000 {
			sent++
			if pair[1] == to {
				m.cover("mute: ERROR 5 once a second per pair")
				return "muted"
			}
		}
	}
	if sent >= 3 {
		m.cover("mute: ERROR 5 about three peers a second")
		return "muted"
	}
	m.notConnected[[2]mID{a.id, to}] = m.now
	if !m.budget(a.at, 5, "not connected") {
		return "budget"
	}
	m.charge(a, 21)
	m.send(a.at, mError(a.id, 5), false)
	return "error_not_connected"
}
