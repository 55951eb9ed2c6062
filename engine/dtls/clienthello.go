package dtls

import (
	"crypto/rand"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

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
	old := w.open[from]
	if old != nil && old.same(&c, m.seq) {
		w.repeat(from, rec, old)
		return
	}
	switch now := time.Now(); {
	case w.cookies.valid(from, &c, now):
		w.answerProven(from, rec, m, &c, suite, old)
	case w.quiet(from):
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
// and than the answer: then somebody forges it for the sake of the answer.
func (w *worker) repeat(from endpoint.Endpoint, rec *record, h *halfOpen) {
	if headerLen+len(h.flight) > len(rec.whole) {
		w.count(DropStray)
		return
	}
	w.count(Resent)
	w.sendFlight(from, h, rec.seq)
}

// quiet reports whether a session lives at a source and may still be heard of: a
// client that probes stops when the next answer of its old session comes, while
// one that was started again stays silent there.
func (w *worker) quiet(from endpoint.Endpoint) bool {
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

func (w *worker) answerProven(from endpoint.Endpoint, rec *record, m *message, c *hello, suite *suite, old *halfOpen) {
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
	w.open[from].derived = derived
}

// answer starts a handshake for which there is a place.
func (w *worker) answer(from endpoint.Endpoint, rec *record, m *message, c *hello, suite *suite, proven bool) {
	h := &halfOpen{
		from: from, suite: suite, transcript: suite.hash(), client: [randomLen]byte(c.random),
		extended: c.extendedMaster, proven: proven, seq: m.seq,
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
