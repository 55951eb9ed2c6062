package dtls

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/endpoint"
)

// Records are the DTLS sessions of a relay. It implements [engine.Records].
//
// Sessions are in the table, handshakes that are under way with the workers.
// All methods may be called by any goroutine.
type Records struct {
	conf     Config
	start    time.Time
	clock    atomic.Int64 // that of sessions, moved by control once per tick
	table    *table
	workers  []*worker
	dormant  dormants
	halfOpen atomic.Int64
	direct   atomic.Int64 // those of halfOpen that were started without a cookie
	counters counters
	pool     sync.Pool // of *scratch
	running  atomic.Bool
}

var _ engine.Records = (*Records)(nil)

// New checks the configuration and takes the memory for tables and queues.
func New(c Config) (*Records, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &Records{conf: c, start: time.Now(), table: newTable(c.MaxSessions, c.PerIdentity)}
	r.restore()
	r.pool.New = func() any { return new(scratch) }
	for range c.Workers {
		r.workers = append(r.workers, newWorker(r))
	}
	return r, nil
}

// Open looks at a datagram, see [engine.Records]. What a record says after its
// first message in the datagram is dropped: real clients send one in each.
func (r *Records) Open(from endpoint.Endpoint, pkt []byte) (engine.Session, []byte) {
	if len(pkt) < headerLen {
		r.counters.count(DropMalformed)
		return engine.Session{}, nil
	}
	epoch := binary.BigEndian.Uint16(pkt[3:])
	switch {
	case pkt[0] == typeData, pkt[0] == typeAlert && epoch != 0:
		return r.open(from, pkt)
	case pkt[0] == typeHandshake, pkt[0] == typeChangeCipherSpec:
		r.enqueue(from, pkt)
	case pkt[0] == typeAlert:
		r.counters.count(DropAlert)
	default:
		r.counters.count(DropForeign)
	}
	return engine.Session{}, nil
}

func (r *Records) open(from endpoint.Endpoint, pkt []byte) (engine.Session, []byte) {
	s := r.table.source(from)
	if s == nil {
		s = r.resume(from, pkt)
	}
	if s == nil {
		r.counters.count(DropNoSession)
		return engine.Session{}, nil
	}
	rec, rest, ok := parseRecord(pkt)
	if !ok {
		r.counters.count(DropMalformed)
		return engine.Session{}, nil
	}
	body, why := r.openRecord(s, &rec)
	if why != Established {
		r.counters.count(why)
		return engine.Session{}, nil
	}
	if len(rest) > 0 {
		r.counters.count(DropTrailing)
	}
	if rec.kind == typeAlert {
		r.alert(s, body)
		return engine.Session{}, nil
	}
	return engine.Session{Serial: s.serial, ID: s.id}, body
}

// openRecord decrypts a record of a session in place. It returns Established, or
// why it did not.
func (r *Records) openRecord(s *session, rec *record) ([]byte, Event) {
	if rec.epoch != epoch1 {
		return nil, DropUndecryptable
	}
	if rec.seq < s.floor || s.window.seen(rec.seq) {
		return nil, DropReplayed
	}
	aad := r.pool.Get().(*scratch)
	body, ok := s.in.open(rec.whole, aad)
	r.pool.Put(aad)
	if !ok {
		return nil, DropUndecryptable
	}
	if !s.window.take(rec.seq) {
		return nil, DropReplayed
	}
	if s.stored != nil && !s.stored.coverReceived(rec.seq, r.now) {
		return nil, DropUnstored
	}
	if now := r.clock.Load(); s.heard.Load() != now {
		s.heard.Store(now)
	}
	if s.probed.Load() {
		s.probed.Store(false)
	}
	return body, Established
}

// Alerts, RFC 5246 7.2.
const (
	alertFatal       = 2
	alertCloseNotify = 0
)

// alert ends a session with an authentic close_notify or fatal alert.
func (r *Records) alert(s *session, body []byte) {
	if len(body) != 2 || body[0] != alertFatal && body[1] != alertCloseNotify {
		r.counters.count(DropUnexpected)
		return
	}
	if s.ended.CompareAndSwap(false, true) {
		r.counters.count(Closed)
	}
}

// enqueue copies a datagram to the worker of its source's prefix.
func (r *Records) enqueue(from endpoint.Endpoint, pkt []byte) {
	if len(pkt) > maxLetter {
		r.counters.count(DropOversize)
		return
	}
	if !r.worker(from).enqueue(from, pkt) {
		r.counters.count(DropQueue)
	}
}

func (r *Records) worker(from endpoint.Endpoint) *worker {
	p := prefixOf(from)
	x := scatter(scatter(p.Hi^r.table.secret) ^ p.Lo)
	return r.workers[(x>>32)%uint64(len(r.workers))]
}

// Alive reports whether a session lives at a UDP source.
func (r *Records) Alive(from endpoint.Endpoint) bool { return r.table.source(from) != nil }

// Seal appends the record with a message, see [engine.Records]. It allocates
// nothing if dst has room for the message and [engine.RecordOverhead] more; msg
// must not lie in that room.
func (r *Records) Seal(dst []byte, serial uint64, msg []byte) ([]byte, endpoint.Endpoint, bool) {
	s := r.table.serial(serial)
	if s == nil {
		return dst, endpoint.Endpoint{}, false
	}
	dst, ok := s.seal(dst, typeData, msg)
	return dst, s.from, ok
}

// MaxMessage returns Config.MaxMessage, see [engine.Records].
func (r *Records) MaxMessage() int { return r.conf.MaxMessage }

// SafeMessage returns [SafeMessage], see [engine.Records].
func (r *Records) SafeMessage() int { return SafeMessage }

// Stats returns the counts. It is not a snapshot of one moment.
func (r *Records) Stats() Stats {
	out := Stats{
		Sessions: int(r.table.sessions.Load()),
		HalfOpen: int(r.halfOpen.Load()),
		Direct:   int(r.direct.Load()),
	}
	for i := range r.counters {
		out.Counts[i] = r.counters[i].Load()
	}
	return out
}

// now is the time since the start, in nanoseconds.
func (r *Records) now() int64 { return int64(time.Since(r.start)) }

// prefixOf returns what the limits count by: an IPv4 address, or an IPv6 /56,
// which is what one customer has.
func prefixOf(from endpoint.Endpoint) endpoint.Endpoint {
	if from.Kind() == endpoint.KindUDP6 {
		return endpoint.Endpoint{Hi: from.Hi &^ 0xFF, Tail: 1}
	}
	return endpoint.Endpoint{Lo: from.Lo}
}
