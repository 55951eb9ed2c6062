package engine

import (
	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
)

// Records of DTLS begin with a byte from 20 to 63 (RFC 7983).
const (
	firstRecord = 20
	recordSpan  = 44
)

// recordPath is a worker's part of [Records]. It belongs to its worker.
type recordPath struct {
	records Records
	session Session // of the record in hand; zero for a plain datagram
}

// record handles a datagram that a stranger to [Records] must not send: a
// record, or a plain message from where a session lives. It reports false for
// any other.
func (w *worker) record(now int64, from endpoint.Endpoint, pkt []byte) (Outcome, bool) {
	if len(pkt) == 0 {
		return 0, false
	}
	if pkt[0]-firstRecord >= recordSpan {
		return DropPlain, w.path.records.Alive(from)
	}
	if w.shared.sources.refused(from) {
		return DropForbidden, true
	}
	s, msg := w.path.records.Open(from, pkt)
	if s.Serial == 0 {
		return OutRecord, true
	}
	w.path.session = s
	o := w.handle(now, endpoint.Serial(endpoint.KindDTLS, s.Serial), msg)
	w.path.session = Session{}
	return o, true
}

// otherIdentity reports whether a BIND came in the session of another
// allocation.
func (w *worker) otherIdentity(c *alloc.Claims) bool {
	return w.path.session.Serial != 0 && w.path.session.ID != c.ID
}
