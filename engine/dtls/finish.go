package dtls

import (
	"bytes"
	"crypto/hmac"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// keyExchange keeps the ClientKeyExchange, or the next fragment of it. What it
// says is looked at when the Finished is there. It is plain, so a later one
// replaces it: a forged one must not lock the honest one out.
func (w *worker) keyExchange(from endpoint.Endpoint, m *message) {
	h := w.open[from]
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
	h := w.open[from]
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
	w.r.counters[Outnumbered].Add(uint64(r.identity))
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
