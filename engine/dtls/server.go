package dtls

import (
	"bytes"
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/evict"
	"github.com/ferryrelay/ferry/proto"
)

const maxHandshakeDatagram = 1500

// Each class has a queue of its own, so that a flood of one cannot keep the other out.
const (
	hellos   = iota // ClientHellos without a cookie, from sources that may be forged
	progress        // everything else
	queues
)

const (
	// queueBuckets is chosen by a keyed hash of source prefixes.
	queueBuckets = 256
	// bucketShare is the part of a queue that the datagrams of one bucket may take once
	// an eighth of it is taken, but at least minShare datagrams, so that one source
	// cannot fill it.
	bucketShare = 32
	minShare    = 16
	// helloQueues is how many times longer the queue of hellos is: at 100,000 forged
	// ones a second it must hold those of 40 ms, for which a worker on a busy machine
	// may wait for a processor.
	helloQueues = 4
)

type queuedDatagram struct {
	from   endpoint.Endpoint
	bucket uint8
	n      int
	data   [maxHandshakeDatagram]byte
}

// queue holds the datagrams of one class for a worker, in fixed memory: they circulate
// between the two channels.
type queue struct {
	full    chan *queuedDatagram
	free    chan *queuedDatagram
	share   int32 // most datagrams of one bucket
	waiting [queueBuckets]atomic.Int32
}

func (q *queue) init(size int) {
	q.share = int32(max(minShare, size/bucketShare))
	q.full, q.free = make(chan *queuedDatagram, size), make(chan *queuedDatagram, size)
	datagrams := make([]queuedDatagram, size)
	for i := range datagrams {
		q.free <- &datagrams[i]
	}
}

// push copies a datagram, by any goroutine. It reports false if the queue or the bucket's
// share is full.
func (q *queue) push(from endpoint.Endpoint, bucket uint8, pkt []byte) bool {
	waiting := &q.waiting[bucket]
	if waiting.Load() >= q.share && len(q.full) >= cap(q.full)/8 {
		return false
	}
	select {
	case d := <-q.free:
		d.from, d.bucket, d.n = from, bucket, copy(d.data[:], pkt)
		waiting.Add(1)
		q.full <- d // does not block: it has room for all datagrams
		return true
	default:
		return false
	}
}

// worker handles the handshakes of some source prefixes. Its goroutine owns it but the queues.
type worker struct {
	r      *layer
	queues [queues]queue

	relay      driver.RecordsRelay
	cookies    cookies
	handshakes map[endpoint.Endpoint]*halfOpen
	prefixes   evict.Set[endpoint.Endpoint, *halfOpen] // handshakes by source prefix
	byAge      list.List                               // handshakes, the oldest first
	out        []byte                                  // the datagram being built
	copied     []byte                                  // a copy of the record that verify decrypts
	aad        scratch
	received   int  // size of the current datagram
	answered   bool // the rest of the current datagram is ignored
	unsent     int  // datagrams since the last Flush
}

func newWorker(r *layer, relay driver.RecordsRelay) *worker {
	w := &worker{
		r:          r,
		relay:      relay,
		cookies:    newCookies(),
		handshakes: make(map[endpoint.Endpoint]*halfOpen),
		out:        make([]byte, 0, 256),
	}
	w.queues[hellos].init(helloQueues * r.conf.queue)
	w.queues[progress].init(r.conf.queue)
	return w
}

func (w *worker) run(ctx context.Context) {
	var tick <-chan time.Time // nil: nothing can expire
	for {
		if tick == nil && len(w.handshakes) > 0 {
			tick = periodic.Next(min(maxTick, w.r.conf.handshakeTimeout/8))
		}
		// With both queues busy, select takes from each in turn, at random.
		select {
		case <-ctx.Done():
			return
		case <-tick:
			tick = nil
			w.expire(w.r.now())
		case d := <-w.queues[hellos].full:
			w.handleQueued(&w.queues[hellos], d)
		case d := <-w.queues[progress].full:
			w.handleQueued(&w.queues[progress], d)
		}
	}
}

// handleQueued sends the answers in batches while datagrams wait.
func (w *worker) handleQueued(q *queue, d *queuedDatagram) {
	w.handleDatagram(d.from, d.data[:d.n])
	if idle := len(w.queues[hellos].full)+len(w.queues[progress].full) == 0; w.unsent > 0 && (idle || w.unsent >= driver.HandshakeBatch) {
		w.relay.Flush()
		w.unsent = 0
	}
	q.waiting[d.bucket].Add(-1)
	q.free <- d
}

// handleDatagram stops at the first record that is answered or has a ClientHello. The source
// may be forged, so a second answer would be an amplification.
func (w *worker) handleDatagram(from endpoint.Endpoint, pkt []byte) {
	w.answered, w.received = false, len(pkt)
	defer w.addCredit(from)
	for len(pkt) > 0 {
		if w.answered {
			w.count(dropTrailing)
			return
		}
		rec, rest, ok := parseRecord(pkt)
		if !ok {
			w.count(dropMalformed)
			return
		}
		pkt = rest
		switch {
		case rec.kind == typeHandshake && rec.epoch == 0:
			w.handleMessages(from, &rec)
		case rec.kind == typeHandshake && rec.epoch == epoch1:
			w.handleSealed(from, &rec)
		case rec.kind == typeChangeCipherSpec:
			// The epoch of the next record implies it.
		case rec.kind == typeAlert && rec.epoch == 0:
			w.count(dropAlert)
		default:
			w.count(dropStray)
		}
	}
}

// addCredit adds a datagram that was not answered to the credit of its source's session.
func (w *worker) addCredit(from endpoint.Endpoint) {
	if w.answered {
		return
	}
	if s := w.r.table.source(from); s != nil {
		s.credit = min(s.credit+w.received, lastFlightLen)
	}
}

func (w *worker) handleMessages(from endpoint.Endpoint, rec *record) {
	for b := rec.body; ; {
		if w.answered {
			w.count(dropTrailing)
			return
		}
		m, rest, ok := parseMessage(b)
		if !ok {
			w.count(dropMalformed)
			return
		}
		switch m.kind {
		case msgClientHello:
			w.answered = true
			w.handleClientHello(from, rec, &m)
		case msgClientKeyExchange:
			w.handleKeyExchange(from, &m)
		default:
			w.count(dropStray)
		}
		if b = rest; len(b) == 0 {
			return
		}
	}
}

func (w *worker) count(e event) { w.r.counters.count(e) }

func (w *worker) sendOut(to endpoint.Endpoint) {
	w.answered = true
	w.relay.Send(to, w.out)
	w.unsent++
	w.out = w.out[:0]
}

func (w *worker) handleClientHello(from endpoint.Endpoint, rec *record, m *message) {
	if !m.whole() {
		w.count(dropFragments)
		return
	}
	c, ok := parseHello(m.body)
	if !ok {
		w.count(dropMalformed)
		return
	}
	w.count(eventHello)
	suite := chooseSuite(&c)
	if suite == nil {
		w.count(dropSuite)
		return
	}
	old := w.handshakes[from]
	if old != nil && old.matches(&c, m.seq) {
		w.resendFlight(from, rec, old)
		return
	}
	switch now := time.Now(); {
	case w.cookies.isValid(from, &c, now):
		w.answerValidated(from, rec, m, &c, suite, old)
	case w.inQuietPeriod(from):
		w.count(dropQuiet)
	case !w.r.limits.takeAnswer(from.Network(), w.r.now()):
		w.count(dropHelloRate)
	case old == nil && len(c.cookie) == 0 && answerLen(&c) <= len(rec.whole) && w.admitDirect(from.Network()):
		w.answer(from, rec, m, &c, suite, false)
	default:
		if len(c.cookie) > 0 {
			w.count(dropCookie)
		}
		w.count(eventCookieSent)
		w.out = appendHelloVerify(w.out, rec.seq, m.seq, w.cookies.make(from, &c, now))
		w.sendOut(from)
	}
}

// resendFlight answers a repeated ClientHello, unless it is smaller than the answer:
// it may be forged to reflect the answer.
func (w *worker) resendFlight(from endpoint.Endpoint, rec *record, h *halfOpen) {
	switch {
	case headerLen+len(h.flight) > len(rec.whole):
		w.count(dropLargeAnswer)
		return
	case !h.validated && !w.r.limits.takeAnswer(from.Network(), w.r.now()):
		w.count(dropHelloRate)
		return
	}
	w.count(eventResent)
	w.sendFlight(from, h, rec.seq)
}

// inQuietPeriod reports whether the client of a source's session may still use it: one that
// only probes stops at the next message, a restarted one sends nothing more in it.
func (w *worker) inQuietPeriod(from endpoint.Endpoint) bool {
	s := w.r.table.source(from)
	if s == nil {
		return false
	}
	now := w.r.now()
	if !s.helloPending.Load() {
		s.helloTime.Store(now)
		s.helloPending.Store(true)
	}
	return now-s.helloTime.Load() < int64(w.r.conf.quiet)
}

// answerValidated starts a handshake with a source that has returned a cookie. Nothing
// carries over from a handshake of the source that was not finished: its messages may
// have been forged.
func (w *worker) answerValidated(from endpoint.Endpoint, rec *record, m *message, c *hello, suite *suite, old *halfOpen) {
	if old != nil {
		w.remove(old)
	}
	if !w.admit(from.Network()) {
		w.count(dropHalfOpenFull)
		return
	}
	w.answer(from, rec, m, c, suite, true)
}

func (w *worker) answer(from endpoint.Endpoint, rec *record, m *message, c *hello, suite *suite, validated bool) {
	h := &halfOpen{
		from: from, suite: suite, transcript: suite.hash(), client: [randomLen]byte(c.random),
		extended: c.extendedMaster, validated: validated, seq: m.seq,
		deadline: w.r.now() + int64(w.r.conf.handshakeTimeout),
	}
	rand.Read(h.server[:])
	h.flight = appendServerFlight(make([]byte, 0, 80), c, suite, m.seq, h.server[:])
	h.transcript.Write(appendMessageHeader(nil, msgClientHello, m.seq, len(m.body)))
	h.transcript.Write(m.body)
	h.transcript.Write(h.flight)
	w.add(h)
	w.count(eventAnswered)
	w.sendFlight(from, h, rec.seq)
}

// sendFlight sends ServerHello and ServerHelloDone. Their sequence number is that
// of the ClientHello or higher (RFC 6347 4.2.1). There is no retransmission timer:
// a client that did not receive the flight repeats the ClientHello.
func (w *worker) sendFlight(from endpoint.Endpoint, h *halfOpen, recordSeq uint64) {
	h.recordSeq = max(h.recordSeq, recordSeq)
	w.out = appendPlain(w.out, typeHandshake, version12, h.recordSeq, h.flight)
	h.recordSeq = (h.recordSeq + 1) & (1<<seqBits - 1)
	w.sendOut(from)
}

// handleKeyExchange stores the ClientKeyExchange until the Finished is received. It is not
// authenticated, so a later one replaces it: a forged one must not block the genuine one.
func (w *worker) handleKeyExchange(from endpoint.Endpoint, m *message) {
	h := w.handshakes[from]
	if h == nil || m.seq != h.seq+1 {
		w.count(dropStray)
		return
	}
	if m.size > w.r.conf.fragmentCap {
		w.count(dropFragments)
		return
	}
	if m.offset == 0 {
		if h.isExchangeComplete() && m.whole() && bytes.Equal(h.exchange[messageHeaderLen:], m.body) {
			return // repeated
		}
		h.exchange = appendMessageHeader(h.exchange[:0], m.kind, m.seq, m.size)
		h.missing, h.unverified = m.size, nil
	} else if m.size != len(h.exchange)-messageHeaderLen+h.missing || m.offset != m.size-h.missing {
		w.count(dropFragments)
		return
	}
	h.exchange = append(h.exchange, m.body...)
	h.missing -= len(m.body)
}

// handleSealed handles the Finished of a handshake, or of a session whose client did not
// receive ours.
func (w *worker) handleSealed(from endpoint.Endpoint, rec *record) {
	h := w.handshakes[from]
	if h != nil && h.isExchangeComplete() {
		if w.finish(from, h, rec) {
			return
		}
	}
	if s := w.r.table.source(from); s != nil {
		w.resendFinished(s, rec)
	} else if h == nil || !h.isExchangeComplete() {
		w.count(dropStray)
	}
}

func (w *worker) finish(from endpoint.Endpoint, h *halfOpen, rec *record) bool {
	s, reason := w.verify(h, rec)
	if reason != eventEstablished {
		w.count(reason)
		return false
	}
	w.remove(h)
	s.from = from
	s.lastReceived.Store(w.r.clock.Load())
	s.plain = h.recordSeq
	s.unbindable = !w.relay.MayBind(s.id)
	if !w.r.replaceDormant(s) {
		w.count(dropIdentity)
		return true
	}
	r, ok := w.r.table.add(s, w.relay, w.r.clock.Load(), func() { w.r.store(s, h, rec.seq) })
	w.r.counters[eventShed].Add(uint64(r.shed))
	switch {
	case !ok && s.unbindable:
		w.count(dropIdentity)
		return true
	case !ok:
		w.count(dropSessionsFull)
		return true
	case s.unbindable:
		w.count(eventUnbindable)
	}
	w.r.counters[eventTakenOver].Add(uint64(r.source))
	w.r.counters[eventSessionLimit].Add(uint64(r.identity))
	w.count(eventEstablished)
	w.sendFinished(s)
	return true
}

func (w *worker) verify(h *halfOpen, rec *record) (*session, event) {
	if h.unverified == nil {
		if reason := w.derive(h); reason != eventEstablished {
			return nil, reason
		}
	}
	c := h.unverified
	w.copied = append(w.copied[:0], rec.whole...)
	body, ok := c.keys.in.open(w.copied, &w.aad)
	if !ok {
		return nil, dropKey
	}
	m, rest, ok := parseMessage(body)
	if !ok || len(rest) > 0 || !m.whole() || m.kind != msgFinished || m.seq != h.seq+2 {
		return nil, dropKey
	}
	want, err := c.keys.verifyData("client finished", c.transcript)
	if err != nil || !hmac.Equal(want, m.body) {
		return nil, dropKey
	}
	after, err := h.hashWith(h.exchange, body)
	if err != nil {
		return nil, dropKey
	}
	ours, err := c.keys.verifyData("server finished", after)
	if err != nil {
		return nil, dropKey
	}
	s := &session{id: c.id, in: c.keys.in, out: c.keys.out}
	s.finished = appendMessage(nil, msgFinished, h.seq+2, ours)
	s.window.take(rec.seq)
	return s, eventEstablished
}

// derive returns eventEstablished, or the reason of the failure.
func (w *worker) derive(h *halfOpen) event {
	id, ok := identity(h.exchange[messageHeaderLen:])
	if !ok {
		return dropIdentity
	}
	if !w.mayDerive(h) || !w.relay.MayBind(id) && !w.r.limits.takeUnbindable(w.r.now()) {
		return dropAttempts
	}
	key := w.relay.KeyOf(id)
	before, err := h.hashWith(h.exchange)
	if err != nil {
		return dropKey
	}
	keys, err := derive(h.suite, &key, h.client[:], h.server[:], h.extended, before)
	if err != nil {
		return dropKey
	}
	h.unverified = &unverified{id: id, keys: keys, transcript: before}
	return eventEstablished
}

// mayDerive counts a derivation. A handshake without a cookie has maxDerivations; one with
// a cookie draws on a limit that forged messages to other handshakes cannot use up.
func (w *worker) mayDerive(h *halfOpen) bool {
	if !h.validated {
		h.derived++
		return h.derived <= maxDerivations
	}
	now := w.r.now()
	return retryRate.Take(&h.retries, millis(now)) && w.r.limits.takeDerivation(h.from.Network(), now)
}

func identity(body []byte) (id proto.AllocationID, ok bool) {
	identity, rest, ok := vector16(body)
	if !ok || len(rest) > 0 {
		return id, false
	}
	return parseIdentity(identity)
}

// resendFinished answers the Finished that a client repeats until it receives ours.
func (w *worker) resendFinished(s *session, rec *record) {
	body, reason := w.r.openRecord(s, rec)
	if reason != eventEstablished {
		w.count(reason)
		return
	}
	if m, _, ok := parseMessage(body); !ok || m.kind != msgFinished {
		w.count(dropUnexpected)
		return
	}
	// A Finished alone is smaller than the answer, which the whole flight of the client
	// pays for: its parts may come in datagrams of their own.
	if s.credit+w.received < lastFlightLen {
		w.count(dropLargeAnswer)
		return
	}
	w.count(eventResent)
	w.sendFinished(s)
}

const lastFlightLen = headerLen + 1 + sealedLen + messageHeaderLen + verifyLen

func (w *worker) sendFinished(s *session) {
	s.credit = 0
	out := appendPlain(w.out, typeChangeCipherSpec, version12, s.plain, []byte{1})
	s.plain++
	out, ok := s.seal(out, typeHandshake, s.finished)
	if !ok {
		return
	}
	w.out = out
	w.sendOut(s.from)
}
