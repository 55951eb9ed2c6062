package dtls

import (
	"context"
	"encoding/binary"
	"errors"
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
	if len(pkt) > maxHandshakeDatagram {
		r.counters.count(DropOversize)
		return
	}
	if !r.worker(from).enqueue(from, pkt) {
		r.counters.count(DropQueue)
	}
}

func (r *Records) worker(from endpoint.Endpoint) *worker {
	p := prefixOf(from)
	x := mix64(mix64(p.Hi^r.table.secret) ^ p.Lo)
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

// maxTick is how far the coarse clock of sessions is behind.
const maxTick = 250 * time.Millisecond

// sweepTicks is how often the table is swept, in ticks.
const sweepTicks = 4

// Run serves handshakes until ctx ends, see [engine.Records]. It fails only when
// it is called a second time.
func (r *Records) Run(ctx context.Context, send func(to endpoint.Endpoint, pkt []byte)) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("dtls: Run was called before")
	}
	var wg sync.WaitGroup
	for _, w := range r.workers {
		wg.Go(func() { w.run(ctx, send) })
	}
	r.control(ctx)
	wg.Wait()
	return nil
}

// control moves the clock and ends idle sessions. Time in which the process stood
// still hardly counts: the clock moves by a few ticks at most.
func (r *Records) control(ctx context.Context) {
	tick := min(maxTick, r.conf.Idle/8)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := r.now()
	for n := 1; ; n++ {
		now := r.now()
		r.clock.Add(min(now-last, int64(sweepTicks*tick)))
		last = now
		if n%sweepTicks == 0 {
			r.sweep()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Records) sweep() {
	r.conf.Sessions.Touch()
	r.forgetDormant()
	if r.table.sessions.Load() == 0 {
		return
	}
	idle := r.table.sweep(r.clock.Load() - int64(r.conf.Idle))
	r.counters[Idle].Add(uint64(idle))
}

// Event is something that is counted: a step of a handshake, the end of a
// session, or the reason for which a datagram or record was dropped.
type Event uint8

// What is counted. Events up to Idle are steps, the rest are drops.
const (
	// Hello: a ClientHello that could be parsed.
	Hello Event = iota
	// CookieSent: one was answered with a HelloVerifyRequest.
	CookieSent
	// Answered: one was answered with a ServerHello, and a handshake is under way.
	Answered
	// Resent: a ServerHello or a Finished went out again, as asked.
	Resent
	// Established: a handshake was finished.
	Established
	// TimedOut: a handshake was not finished in time.
	TimedOut
	// Evicted: the oldest handshake ended, since [Config].HalfOpen were under way
	// and another client had validated its address.
	Evicted
	// TakenOver: a session ended since another one was made at its source.
	TakenOver
	// SessionLimit: a session ended since its allocation made more than
	// [Config].PerIdentity.
	SessionLimit
	// Resumed: a session of the process before goes on.
	Resumed
	// Closed: a session ended with its client's close_notify or fatal alert.
	Closed
	// Idle: a session ended since no authentic record came for [Config].Idle.
	Idle

	// DropMalformed: no record, handshake message or hello of DTLS 1.2.
	DropMalformed
	// DropForeign: a type of record that no client sends.
	DropForeign
	// DropOversize: a datagram for the handshake with more than 1500 bytes.
	DropOversize
	// DropQueue: the queue for the handshake was full.
	DropQueue
	// DropAlert: an alert in plain text, which says nothing.
	DropAlert
	// DropNoSession: a message or alert from where no session lives.
	DropNoSession
	// DropUndecryptable: a record that the key of the session does not open.
	DropUndecryptable
	// DropReplayed: a record that was received before, or is too old to tell.
	DropReplayed
	// DropTrailing: what followed the first message in a datagram, or in one of a
	// handshake a ClientHello or what was answered.
	DropTrailing
	// DropUnexpected: an authentic record that is neither a message nor an alert
	// nor a Finished, such as the wish to negotiate again.
	DropUnexpected
	// DropStray: a part of a handshake that is not under way, or out of turn.
	DropStray
	// DropFragments: a message in more bytes than [Config].FragmentCap, a
	// ClientHello in fragments, or fragments out of order.
	DropFragments
	// DropQuiet: a ClientHello where a session lives, see [Config].Quiet.
	DropQuiet
	// DropSuite: a ClientHello without a cipher suite that we have.
	DropSuite
	// DropCookie: a cookie that is not ours or too old; a new one was sent.
	DropCookie
	// DropPrefixFull: a handshake beyond [Config].HalfOpenPerPrefix.
	DropPrefixFull
	// DropHalfOpenFull: a handshake beyond [Config].HalfOpen, none of which could
	// be evicted.
	DropHalfOpenFull
	// DropSessionsFull: a finished handshake beyond [Config].MaxSessions.
	DropSessionsFull
	// DropIdentity: a finished handshake for no allocation that we know.
	DropIdentity
	// DropKey: a Finished that was not made with the key of its allocation.
	DropKey
	// DropAttempts: a source at which keys were derived in vain too often.
	DropAttempts
	// DropUnstored: an authentic record whose number could not be reserved in the
	// file of sessions, which can be neither written nor removed.
	DropUnstored

	// Events is the number of events.
	Events
)

var eventNames = [Events]string{
	"hello", "cookie_sent", "answered", "resent", "established", "timed_out", "evicted",
	"taken_over", "outnumbered", "resumed", "closed", "idle",
	"drop_malformed", "drop_foreign", "drop_oversize", "drop_queue", "drop_alert",
	"drop_no_session", "drop_undecryptable", "drop_replayed", "drop_trailing",
	"drop_unexpected", "drop_stray", "drop_fragments", "drop_quiet", "drop_suite",
	"drop_cookie", "drop_prefix_full", "drop_half_open_full", "drop_sessions_full",
	"drop_identity", "drop_key", "drop_attempts", "drop_unstored",
}

// String names the event as in a metric, such as "drop_replayed".
func (e Event) String() string {
	if e >= Events {
		return "unknown"
	}
	return eventNames[e]
}

// Stats are counts since [New], and what there is now.
type Stats struct {
	// Counts by event.
	Counts [Events]uint64
	// Sessions that are established, those included that ended a moment ago.
	Sessions int
	// HalfOpen handshakes, and how many of them are of a source that may be
	// forged, since it was not asked for a cookie.
	HalfOpen, Direct int
}

// counters count events. Any goroutine may use them.
type counters [Events]atomic.Uint64

func (c *counters) count(e Event) { c[e].Add(1) }
