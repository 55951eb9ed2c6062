package dtls

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// maxHandshakeDatagram is the largest datagram that is taken for the handshake.
const maxHandshakeDatagram = 1500

// queuedDatagram is a datagram on its way to a worker.
type queuedDatagram struct {
	from endpoint.Endpoint
	n    int
	data [maxHandshakeDatagram]byte
}

// worker handles the handshakes of some source prefixes. Its goroutine owns it,
// but for the two channels: datagrams go round between them.
type worker struct {
	r    *Records
	full chan *queuedDatagram
	free chan *queuedDatagram

	send       func(to endpoint.Endpoint, pkt []byte)
	cookies    cookies
	handshakes map[endpoint.Endpoint]*halfOpen
	prefixes   map[endpoint.Endpoint]int // half-open handshakes of each
	oldest     *halfOpen                 // of open
	newest     *halfOpen
	out        []byte // the datagram being made
	copied     []byte // a record that two keys may be tried on
	aad        scratch
	answered   bool // the rest of the datagram in hand is ignored
}

func newWorker(r *Records) *worker {
	w := &worker{
		r:          r,
		full:       make(chan *queuedDatagram, r.conf.Queue),
		free:       make(chan *queuedDatagram, r.conf.Queue),
		cookies:    newCookies(),
		handshakes: make(map[endpoint.Endpoint]*halfOpen),
		prefixes:   make(map[endpoint.Endpoint]int),
		out:        make([]byte, 0, 256),
	}
	datagrams := make([]queuedDatagram, r.conf.Queue)
	for i := range datagrams {
		w.free <- &datagrams[i]
	}
	return w
}

// enqueue copies a datagram, and reports false when the queue is full. Any
// goroutine may call it.
func (w *worker) enqueue(from endpoint.Endpoint, pkt []byte) bool {
	select {
	case l := <-w.free:
		l.from, l.n = from, copy(l.data[:], pkt)
		w.full <- l // never blocks: it has room for all datagrams there are
		return true
	default:
		return false
	}
}

func (w *worker) run(ctx context.Context, send func(to endpoint.Endpoint, pkt []byte)) {
	w.send = send
	ticker := time.NewTicker(min(maxTick, w.r.conf.HandshakeTimeout/8))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.expire(w.r.now())
		case l := <-w.full:
			w.datagram(l.from, l.data[:l.n])
			w.free <- l
		}
	}
}

// datagram goes through the records of a datagram, until one of them is answered
// or has a ClientHello. A second answer would be more than the datagram's source,
// which may be forged, has paid for.
func (w *worker) datagram(from endpoint.Endpoint, pkt []byte) {
	w.answered = false
	for len(pkt) > 0 {
		if w.answered {
			w.count(DropTrailing)
			return
		}
		rec, rest, ok := parseRecord(pkt)
		if !ok {
			w.count(DropMalformed)
			return
		}
		pkt = rest
		switch {
		case rec.kind == typeHandshake && rec.epoch == 0:
			w.messages(from, &rec)
		case rec.kind == typeHandshake && rec.epoch == epoch1:
			w.sealed(from, &rec)
		case rec.kind == typeChangeCipherSpec:
			// It says nothing that the epoch of the next record does not.
		case rec.kind == typeAlert && rec.epoch == 0:
			w.count(DropAlert)
		default:
			w.count(DropStray)
		}
	}
}

// messages goes through the handshake messages of a plain record.
func (w *worker) messages(from endpoint.Endpoint, rec *record) {
	for b := rec.body; ; {
		if w.answered {
			w.count(DropTrailing)
			return
		}
		m, rest, ok := parseMessage(b)
		if !ok {
			w.count(DropMalformed)
			return
		}
		switch m.kind {
		case msgClientHello:
			w.answered = true
			w.clientHello(from, rec, &m)
		case msgClientKeyExchange:
			w.keyExchange(from, &m)
		default:
			w.count(DropStray)
		}
		if b = rest; len(b) == 0 {
			return
		}
	}
}

func (w *worker) count(e Event) { w.r.counters.count(e) }

// emit sends what was made in w.out.
func (w *worker) emit(to endpoint.Endpoint) {
	w.answered = true
	w.send(to, w.out)
	w.out = w.out[:0]
}

// clientHello answers a ClientHello with a ServerHello, with a cookie, or not at
// all.
func (w *worker) clientHello(from endpoint.Endpoint, rec *record, m *message) {
	if !m.whole() {
		w.count(DropFragments)
		return
	}
	c, ok := parseHello(m.body)
	if !ok {
		w.count(DropMalformed)
		return
	}
	w.count(Hello)
	suite := choose(&c)
	if suite == nil {
		w.count(DropSuite)
		return
	}
	old := w.handshakes[from]
	if old != nil && old.same(&c, m.seq) {
		w.repeat(from, rec, old)
		return
	}
	switch now := time.Now(); {
	case w.cookies.valid(from, &c, now):
		w.answerValidated(from, rec, m, &c, suite, old)
	case w.inQuietPeriod(from):
		w.count(DropQuiet)
	case old == nil && len(c.cookie) == 0 && answerLen(&c) <= len(rec.whole) && w.admitDirect(prefixOf(from)):
		w.answer(from, rec, m, &c, suite, false)
	default:
		if len(c.cookie) > 0 {
			w.count(DropCookie)
		}
		w.count(CookieSent)
		w.out = appendHelloVerify(w.out, rec.seq, m.seq, w.cookies.make(from, &c, now))
		w.emit(from)
	}
}

// repeat answers a ClientHello that came again, unless it is smaller than it was
// and than the answer: then it may be forged to reflect the answer.
func (w *worker) repeat(from endpoint.Endpoint, rec *record, h *halfOpen) {
	if headerLen+len(h.flight) > len(rec.whole) {
		w.count(DropStray)
		return
	}
	w.count(Resent)
	w.sendFlight(from, h, rec.seq)
}

// inQuietPeriod reports whether a session lives at a source and may still be heard of: a
// client that probes stops when the next answer of its old session comes, while
// one that was started again stays silent there.
func (w *worker) inQuietPeriod(from endpoint.Endpoint) bool {
	s := w.r.table.source(from)
	if s == nil {
		return false
	}
	now := w.r.now()
	if !s.probed.Load() {
		s.probe.Store(now)
		s.probed.Store(true)
	}
	return now-s.probe.Load() < int64(w.r.conf.Quiet)
}

func (w *worker) answerValidated(from endpoint.Endpoint, rec *record, m *message, c *hello, suite *suite, old *halfOpen) {
	derived := 0
	if old != nil {
		if derived = old.derived; derived >= maxDerivations {
			w.count(DropAttempts)
			return
		}
		w.drop(old)
	}
	why := w.admit(prefixOf(from))
	if why == DropHalfOpenFull && w.evict() {
		why = w.admit(prefixOf(from))
	}
	if why != Answered {
		w.count(why)
		return
	}
	w.answer(from, rec, m, c, suite, true)
	w.handshakes[from].derived = derived
}

// answer starts a handshake for which there is a place.
func (w *worker) answer(from endpoint.Endpoint, rec *record, m *message, c *hello, suite *suite, validated bool) {
	h := &halfOpen{
		from: from, suite: suite, transcript: suite.hash(), client: [randomLen]byte(c.random),
		extended: c.extendedMaster, validated: validated, seq: m.seq,
		deadline: w.r.now() + int64(w.r.conf.HandshakeTimeout),
	}
	rand.Read(h.server[:])
	h.flight = appendServerFlight(make([]byte, 0, 80), c, suite, m.seq, h.server[:])
	h.transcript.Write(appendMessageHeader(nil, msgClientHello, m.seq, len(m.body)))
	h.transcript.Write(m.body)
	h.transcript.Write(h.flight)
	w.keep(h)
	w.count(Answered)
	w.sendFlight(from, h, rec.seq)
}

// sendFlight sends ServerHello and ServerHelloDone. Their sequence number is that
// of the ClientHello or higher (RFC 6347 4.2.1). We have no timer for it: who
// wants it again repeats the ClientHello.
func (w *worker) sendFlight(from endpoint.Endpoint, h *halfOpen, recordSeq uint64) {
	h.recordSeq = max(h.recordSeq, recordSeq)
	w.out = appendPlain(w.out, typeHandshake, version12, h.recordSeq, h.flight)
	h.recordSeq = (h.recordSeq + 1) & (1<<seqBits - 1)
	w.emit(from)
}

const (
	cookieLen = 16
	// cookieSlot: a cookie is good in the slot of time in which it was made and
	// in the next one.
	cookieSlot = 32 * time.Second
)

// cookies makes and checks cookies, which prove that a source hears what is sent
// to it, and remembers nothing of them. A worker owns it.
type cookies struct {
	mac hash.Hash
	in  []byte
	sum []byte
}

func newCookies() cookies {
	secret := make([]byte, sha256.Size)
	rand.Read(secret)
	return cookies{mac: hmac.New(sha256.New, secret)}
}

// make returns the cookie for a hello from a source; it is good until the next
// call.
func (c *cookies) make(from endpoint.Endpoint, h *hello, now time.Time) []byte {
	return c.sign(from, h, slot(now))
}

// valid reports whether the cookie in a hello is ours, for this source and this
// hello, and not too old.
func (c *cookies) valid(from endpoint.Endpoint, h *hello, now time.Time) bool {
	if len(h.cookie) != cookieLen {
		return false
	}
	s := slot(now)
	return hmac.Equal(h.cookie, c.sign(from, h, s)) || hmac.Equal(h.cookie, c.sign(from, h, s-1))
}

func slot(now time.Time) uint64 { return uint64(now.UnixNano() / int64(cookieSlot)) }

// sign covers the source and all of the hello but the cookie and the extensions
// (RFC 6347 4.2.1).
func (c *cookies) sign(from endpoint.Endpoint, h *hello, slot uint64) []byte {
	c.in = c.in[:0]
	for _, word := range [...]uint64{slot, from.Hi, from.Lo, from.Tail} {
		c.in = binary.BigEndian.AppendUint64(c.in, word)
	}
	c.in = append(append(c.in, h.before...), h.after...)
	c.mac.Reset()
	c.mac.Write(c.in)
	c.sum = c.mac.Sum(c.sum[:0])
	return c.sum[:cookieLen]
}

// keyExchange keeps the ClientKeyExchange, or the next fragment of it. What it
// says is looked at when the Finished is there. It is plain, so a later one
// replaces it: a forged one must not lock the honest one out.
func (w *worker) keyExchange(from endpoint.Endpoint, m *message) {
	h := w.handshakes[from]
	if h == nil || m.seq != h.seq+1 {
		w.count(DropStray)
		return
	}
	if m.size > w.r.conf.FragmentCap {
		w.count(DropFragments)
		return
	}
	if m.offset == 0 {
		if h.ready() && m.whole() && bytes.Equal(h.exchange[messageHeaderLen:], m.body) {
			return // repeated
		}
		h.exchange = appendMessageHeader(h.exchange[:0], m.kind, m.seq, m.size)
		h.missing, h.candidate = m.size, nil
	} else if m.size != len(h.exchange)-messageHeaderLen+h.missing || m.offset != m.size-h.missing {
		w.count(DropFragments)
		return
	}
	h.exchange = append(h.exchange, m.body...)
	h.missing -= len(m.body)
}

// sealed handles an encrypted record of type handshake: the Finished of a
// handshake, or that of a session which did not get ours.
func (w *worker) sealed(from endpoint.Endpoint, rec *record) {
	h := w.handshakes[from]
	if h != nil && h.ready() {
		if w.finish(from, h, rec) {
			return
		}
	}
	if s := w.r.table.source(from); s != nil {
		w.resend(s, rec)
	} else if h == nil || !h.ready() {
		w.count(DropStray)
	}
}

// finish makes a session if the record is the client's Finished.
func (w *worker) finish(from endpoint.Endpoint, h *halfOpen, rec *record) bool {
	s, why := w.verify(h, rec)
	if why != Established {
		w.count(why)
		return false
	}
	w.drop(h)
	s.from = from
	s.heard.Store(w.r.clock.Load())
	s.plain = h.recordSeq
	w.r.replaceDormant(s)
	r, ok := w.r.table.add(s, func() { w.r.store(s, h, rec.seq) })
	if !ok {
		w.count(DropSessionsFull)
		return true
	}
	w.r.counters[TakenOver].Add(uint64(r.source))
	w.r.counters[SessionLimit].Add(uint64(r.identity))
	w.count(Established)
	w.sendFinished(s)
	return true
}

// verify opens a record with the key of the identity that the client gave, and
// checks the Finished in it.
func (w *worker) verify(h *halfOpen, rec *record) (*session, Event) {
	if h.candidate == nil {
		if why := w.derive(h); why != Established {
			return nil, why
		}
	}
	c := h.candidate
	w.copied = append(w.copied[:0], rec.whole...)
	body, ok := c.keys.in.open(w.copied, &w.aad)
	if !ok {
		return nil, DropKey
	}
	m, rest, ok := parseMessage(body)
	if !ok || len(rest) > 0 || !m.whole() || m.kind != msgFinished || m.seq != h.seq+2 {
		return nil, DropKey
	}
	want, err := c.keys.verifyData("client finished", c.before)
	if err != nil || !hmac.Equal(want, m.body) {
		return nil, DropKey
	}
	after, err := h.hashWith(h.exchange, body)
	if err != nil {
		return nil, DropKey
	}
	ours, err := c.keys.verifyData("server finished", after)
	if err != nil {
		return nil, DropKey
	}
	s := &session{id: c.id, in: c.keys.in, out: c.keys.out}
	s.finished = appendMessage(nil, msgFinished, h.seq+2, ours)
	s.window.take(rec.seq)
	return s, Established
}

// derive makes the candidate of a complete ClientKeyExchange. It returns
// Established, or why it did not.
func (w *worker) derive(h *halfOpen) Event {
	if h.derived >= maxDerivations {
		return DropAttempts
	}
	h.derived++
	id, key, ok := w.lookUp(h.exchange[messageHeaderLen:])
	if !ok {
		return DropIdentity
	}
	before, err := h.hashWith(h.exchange)
	if err != nil {
		return DropKey
	}
	keys, err := derive(h.suite, &key, h.client[:], h.server[:], h.extended, before)
	if err != nil {
		return DropKey
	}
	h.candidate = &candidate{id: id, keys: keys, before: before}
	return Established
}

// lookUp returns the allocation that a ClientKeyExchange names, and its key.
func (w *worker) lookUp(body []byte) (id proto.AllocationID, key proto.Key, ok bool) {
	identity, rest, ok := vector16(body)
	if !ok || len(rest) > 0 {
		return id, key, false
	}
	if id, ok = parseIdentity(identity); !ok {
		return id, key, false
	}
	key, ok = w.r.conf.PSK(id)
	return id, key, ok
}

// resend sends our Finished again if the record is a Finished of the session: the
// client repeats its own until it has ours.
func (w *worker) resend(s *session, rec *record) {
	body, why := w.r.openRecord(s, rec)
	if why != Established {
		w.count(why)
		return
	}
	if m, _, ok := parseMessage(body); !ok || m.kind != msgFinished {
		w.count(DropUnexpected)
		return
	}
	w.count(Resent)
	w.sendFinished(s)
}

// sendFinished sends ChangeCipherSpec and Finished, 75 bytes.
func (w *worker) sendFinished(s *session) {
	out := appendPlain(w.out, typeChangeCipherSpec, version12, s.plain, []byte{1})
	s.plain++
	out, ok := s.seal(out, typeHandshake, s.finished)
	if !ok {
		return
	}
	w.out = out
	w.emit(s.from)
}

// maxDerivations is how often keys are derived for the handshakes of one source
// until the last of them was finished or is over. An honest client needs one;
// the others are what a forger may waste, at 20 µs each. So a prefix costs at
// most HalfOpenPerPrefix times this per HandshakeTimeout.
const maxDerivations = 4

// halfOpen is a handshake that was answered with a ServerHello. The worker of
// its source's prefix owns it.
type halfOpen struct {
	from       endpoint.Endpoint
	suite      *suite
	transcript hash.Hash // over ClientHello, ServerHello and ServerHelloDone
	client     [randomLen]byte
	server     [randomLen]byte
	extended   bool
	validated  bool   // the source address, by a cookie
	seq        uint16 // of the ClientHello, and so of the ServerHello
	recordSeq  uint64 // the next one of ours in epoch 0
	flight     []byte // ServerHello and ServerHelloDone
	exchange   []byte // the ClientKeyExchange with its header, as far as it came
	missing    int    // bytes of it
	candidate  *candidate
	derived    int   // how often keys were derived
	deadline   int64 // since the start of Records

	older, newer *halfOpen // neighbours by age, of the same worker
}

// candidate is what follows from a ClientKeyExchange: nothing is authenticated yet.
type candidate struct {
	id     proto.AllocationID
	keys   secrets
	before []byte // the hash of the transcript up to the ClientKeyExchange
}

// same reports whether a hello is the one that was answered.
func (h *halfOpen) same(c *hello, seq uint16) bool {
	return h.seq == seq && bytes.Equal(h.client[:], c.random)
}

// ready reports whether the ClientKeyExchange is complete.
func (h *halfOpen) ready() bool { return len(h.exchange) > 0 && h.missing == 0 }

// hashWith is the hash of the transcript and what follows it.
func (h *halfOpen) hashWith(more ...[]byte) ([]byte, error) {
	c, err := h.transcript.(hash.Cloner).Clone()
	if err != nil {
		return nil, err
	}
	for _, b := range more {
		c.Write(b)
	}
	return c.Sum(nil), nil
}

// admit takes a place for a handshake, or says why there is none.
func (w *worker) admit(prefix endpoint.Endpoint) Event {
	if w.prefixes[prefix] >= w.r.conf.HalfOpenPerPrefix {
		return DropPrefixFull
	}
	if w.r.halfOpen.Add(1) > int64(w.r.conf.HalfOpen) {
		w.r.halfOpen.Add(-1)
		return DropHalfOpenFull
	}
	w.prefixes[prefix]++
	return Answered
}

// admitDirect takes a place for a handshake without a cookie. It leaves half of
// what the prefix may have to clients with a cookie.
func (w *worker) admitDirect(prefix endpoint.Endpoint) bool {
	if w.prefixes[prefix] >= w.r.conf.HalfOpenPerPrefix/2 {
		return false
	}
	if w.r.direct.Add(1) > int64(w.r.conf.Direct) || w.admit(prefix) != Answered {
		w.r.direct.Add(-1)
		return false
	}
	return true
}

// evict makes a place where there is none, by forgetting the oldest handshake of
// this worker. An honest one is over within two round trips; those that are never
// finished are the oldest, so an attacker with very many sources does not lock
// other clients out for as long as handshakes may take.
func (w *worker) evict() bool {
	if w.oldest == nil {
		return false
	}
	w.drop(w.oldest)
	w.count(Evicted)
	return true
}

// keep remembers a handshake for which there is a place.
func (w *worker) keep(h *halfOpen) {
	w.handshakes[h.from] = h
	h.older = w.newest
	if h.older != nil {
		h.older.newer = h
	} else {
		w.oldest = h
	}
	w.newest = h
}

// drop forgets a handshake.
func (w *worker) drop(h *halfOpen) {
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		w.oldest = h.newer
	}
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		w.newest = h.older
	}
	delete(w.handshakes, h.from)
	prefix := prefixOf(h.from)
	if w.prefixes[prefix]--; w.prefixes[prefix] == 0 {
		delete(w.prefixes, prefix)
	}
	if !h.validated {
		w.r.direct.Add(-1)
	}
	w.r.halfOpen.Add(-1)
}

// expire forgets the handshakes whose time is over.
func (w *worker) expire(now int64) {
	for w.oldest != nil && now >= w.oldest.deadline {
		w.drop(w.oldest)
		w.count(TimedOut)
	}
}
