package dtls

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Records are the DTLS sessions of one relay, for [engine.Config]. Any goroutine may call
// their methods.
type Records struct{ layer *layer }

var _ engine.Records = (*Records)(nil)

// New returns Records for a relay. It allocates the tables and queues, and fails if
// the configuration is invalid.
func New(c Config) (*Records, error) {
	l, err := newLayer(c)
	if err != nil {
		return nil, err
	}
	return &Records{l}, nil
}

// RecordsDriver implements [engine.Records].
func (r *Records) RecordsDriver() any { return r.layer }

// Stats returns the counts, which are not read at one instant.
func (r *Records) Stats() Stats {
	counts := r.layer.stats()
	st := Stats{Events: make(map[string]uint64), Sessions: counts.Sessions, HalfOpen: counts.HalfOpen, Direct: counts.Direct}
	for e, n := range counts.Counts {
		st.Events[event(e).String()] = n
	}
	return st
}

// layer is the [driver.Records] of Records.
//
// The table has the sessions, the workers have the unfinished handshakes.
type layer struct {
	conf      Config
	start     time.Time
	clock     atomic.Int64 // of sessions, in ns; control advances it every tick
	table     *table
	workers   []*worker
	file      *SessionFile // nil: sessions are not stored
	dormant   dormants
	relay     atomic.Pointer[driver.RecordsRelay] // nil until Run
	limits    limits
	halfOpen  atomic.Int64
	direct    atomic.Int64 // those of halfOpen that were started without a cookie
	counters  counters
	pool      sync.Pool // of *scratch
	running   atomic.Bool
	connected map[uint64]endpoint.Endpoint // see Records.TakeOver; nil after Begin
}

var _ driver.Records = (*layer)(nil)

func newLayer(c Config) (*layer, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &layer{conf: c, start: time.Now(), table: newTable(c.MaxSessions, c.PerIdentity)}
	r.limits.secret = r.table.secret
	if c.Sessions != nil {
		r.file = c.Sessions
	}
	r.loadDormant()
	r.pool.New = func() any { return new(scratch) }
	for range c.Workers {
		r.workers = append(r.workers, newWorker(r, nil))
	}
	return r, nil
}

// Open opens a datagram, see [driver.Records]. Records after the first one are
// dropped, since real clients send one per datagram. It decrypts in place.
func (r *layer) Open(from endpoint.Endpoint, pkt []byte) (driver.Session, []byte) {
	if len(pkt) < headerLen {
		r.counters.count(dropMalformed)
		return driver.Session{}, nil
	}
	epoch := binary.BigEndian.Uint16(pkt[3:])
	switch {
	case pkt[0] == typeData, pkt[0] == typeAlert && epoch != 0:
		return r.open(from, pkt)
	case pkt[0] == typeHandshake, pkt[0] == typeChangeCipherSpec:
		r.enqueue(from, pkt)
	case pkt[0] == typeAlert:
		r.counters.count(dropAlert)
	default:
		r.counters.count(dropForeign)
	}
	return driver.Session{}, nil
}

func (r *layer) open(from endpoint.Endpoint, pkt []byte) (driver.Session, []byte) {
	s := r.table.source(from)
	if s == nil {
		s = r.resume(from, pkt)
	}
	if s == nil {
		r.counters.count(dropNoSession)
		return driver.Session{}, nil
	}
	rec, rest, ok := parseRecord(pkt)
	if !ok {
		r.counters.count(dropMalformed)
		return driver.Session{}, nil
	}
	body, reason := r.openRecord(s, &rec)
	if reason != eventEstablished {
		r.counters.count(reason)
		return driver.Session{}, nil
	}
	if len(rest) > 0 {
		r.counters.count(dropTrailing)
	}
	if rec.kind == typeAlert {
		r.alert(s, body)
		return driver.Session{}, nil
	}
	return driver.Session{Serial: s.serial, ID: s.id}, body
}

// openRecord decrypts a record of a session in place. The event is eventEstablished, or
// else the reason of the drop.
func (r *layer) openRecord(s *session, rec *record) ([]byte, event) {
	if rec.epoch != epoch1 {
		return nil, dropUndecryptable
	}
	if rec.seq < s.minReceived || s.window.hasSeen(rec.seq) {
		return nil, dropReplayed
	}
	aad := r.pool.Get().(*scratch)
	body, ok := s.in.open(rec.whole, aad)
	r.pool.Put(aad)
	if !ok {
		return nil, dropUndecryptable
	}
	if !s.window.take(rec.seq) {
		return nil, dropReplayed
	}
	if s.stored != nil && !s.stored.reserveReceived(rec.seq, r.now) {
		return nil, dropUnstored
	}
	if now := r.clock.Load(); s.lastReceived.Load() != now {
		s.lastReceived.Store(now)
	}
	if s.helloPending.Load() {
		s.helloPending.Store(false)
	}
	return body, eventEstablished
}

// Alerts, RFC 5246 7.2.
const (
	alertFatal       = 2
	alertCloseNotify = 0
)

// alert ends a session with an authentic close_notify or fatal alert.
func (r *layer) alert(s *session, body []byte) {
	if len(body) != 2 || body[0] != alertFatal && body[1] != alertCloseNotify {
		r.counters.count(dropUnexpected)
		return
	}
	if s.ended.CompareAndSwap(false, true) {
		r.counters.count(eventClosed)
	}
}

// enqueue copies a datagram to a queue of the worker of its source's prefix.
func (r *layer) enqueue(from endpoint.Endpoint, pkt []byte) {
	if len(pkt) > maxHandshakeDatagram {
		r.counters.count(dropOversize)
		return
	}
	prefix := from.Network()
	class := progress
	if isFirstHello(pkt) {
		class = hellos
		if !r.limits.mayAnswer(prefix, r.now()) {
			r.counters.count(dropHelloRate)
			return
		}
	}
	hash := hashPrefix(prefix, r.table.secret)
	w := r.workers[(hash>>32)%uint64(len(r.workers))]
	if !w.queues[class].push(from, uint8(hash>>16), pkt) {
		r.counters.count(dropQueue)
	}
}

// HasRoom reports whether an owner could have one more session, see [driver.Records].
func (r *layer) HasRoom(o driver.Owner) bool { return r.table.hasRoom(o) }

// Alive reports whether there is a session of a UDP source.
func (r *layer) Alive(from endpoint.Endpoint) bool { return r.table.source(from) != nil }

// Seal appends a record with a message to dst, see [driver.Records]. It does not
// allocate if dst has capacity for the message and [driver.RecordOverhead] bytes;
// msg must not overlap that capacity.
func (r *layer) Seal(dst []byte, serial uint64, msg []byte) ([]byte, endpoint.Endpoint, bool) {
	s := r.table.serial(serial)
	if s == nil {
		return dst, endpoint.Endpoint{}, false
	}
	dst, ok := s.seal(dst, typeData, msg)
	if s.unbindable && isNotFound(msg) {
		s.bindBy.Store(min(s.bindBy.Load(), r.clock.Load()+int64(refusedTimeout)))
	}
	return dst, s.from, ok
}

// isNotFound reports whether a message is ERROR 4.
func isNotFound(msg []byte) bool {
	m, err := proto.ParseError(msg)
	return err == nil && m.Code == proto.ErrorNotFound
}

// Source returns the UDP endpoint of a session, see [driver.Records].
func (r *layer) Source(serial uint64) (endpoint.Endpoint, bool) {
	s := r.table.serial(serial)
	if s == nil {
		return endpoint.Endpoint{}, false
	}
	return s.from, true
}

// MaxMessage returns Config.MaxMessage, see [driver.Records].
func (r *layer) MaxMessage() int { return r.conf.MaxMessage }

// SafeMessage returns [SafeMessage], see [driver.Records].
func (r *layer) SafeMessage() int { return SafeMessage }

func (r *layer) stats() counts {
	out := counts{
		Sessions: int(r.table.sessions.Load()),
		HalfOpen: int(r.halfOpen.Load()),
		Direct:   int(r.direct.Load()),
	}
	for i := range r.counters {
		out.Counts[i] = r.counters[i].Load()
	}
	return out
}

// now returns the time since the start in nanoseconds.
func (r *layer) now() int64 { return int64(time.Since(r.start)) }

// maxTick is the largest error of the clock of sessions.
const maxTick = 250 * time.Millisecond

// sweepTicks is the number of ticks between sweeps of the table.
const sweepTicks = 4

// Begin takes over the sessions of the process before this one, see [driver.Records].
func (r *layer) Begin(relay driver.RecordsRelay) {
	r.relay.Store(&relay)
	r.dropEnded(relay)
	r.reviveConnected(relay)
}

// Run serves handshakes until ctx is done, see [driver.Records]. It returns an
// error only if it is called a second time.
func (r *layer) Run(ctx context.Context, relay driver.RecordsRelay) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("dtls: Run was called before")
	}
	var wg sync.WaitGroup
	for _, w := range r.workers {
		w.relay = relay
		wg.Go(func() { w.run(ctx) })
	}
	r.control(ctx, relay)
	wg.Wait()
	return nil
}

// control advances the clock and ends idle sessions. The clock advances by a few
// ticks at a time at most, so that a suspended process does not end all sessions.
func (r *layer) control(ctx context.Context, relay driver.RecordsRelay) {
	tick := min(maxTick, r.conf.Idle/8)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := r.now()
	for n := 1; ; n++ {
		now := r.now()
		r.clock.Add(min(now-last, int64(sweepTicks*tick)))
		last = now
		if n%sweepTicks == 0 {
			r.sweep(relay)
		}
		if n%restoreFileTicks == 0 {
			r.storeAgain()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *layer) sweep(relay driver.RecordsRelay) {
	if r.file != nil {
		r.file.file.Load().Touch()
	}
	r.expireDormant()
	if r.table.sessions.Load() == 0 {
		return
	}
	now := r.clock.Load()
	idle, unbound := r.table.sweep(relay, now, now-int64(r.conf.Idle))
	r.counters[eventIdle].Add(uint64(idle))
	r.counters[eventUnbound].Add(uint64(unbound))
}

// event is a counted event: a step of a handshake, the end of a session, or the
// reason why a datagram or record was dropped.
type event uint8

// The events. Those up to eventUnbindable are steps and ends, the rest are drops.
const (
	// eventHello: a valid ClientHello was received.
	eventHello event = iota
	// eventCookieSent: a ClientHello was answered with a HelloVerifyRequest.
	eventCookieSent
	// eventAnswered: a ClientHello was answered with a ServerHello; the handshake is
	// half open.
	eventAnswered
	// eventResent: a ServerHello or a Finished was sent again on request.
	eventResent
	// eventEstablished: a handshake was finished.
	eventEstablished
	// eventTimedOut: a handshake was not finished in time.
	eventTimedOut
	// eventEvicted: the oldest handshake ended, since [Config].HalfOpen in all or
	// [Config].HalfOpenPerPrefix were half open and another client had validated its
	// address.
	eventEvicted
	// eventTakenOver: a session ended since another was established at its source.
	eventTakenOver
	// eventSessionLimit: a session ended since its allocation had more than
	// [Config].PerIdentity.
	eventSessionLimit
	// eventResumed: a session of the previous process resumed.
	eventResumed
	// eventClosed: a session ended with its client's close_notify or fatal alert.
	eventClosed
	// eventIdle: a session ended since no authentic record was received for
	// [Config].Idle.
	eventIdle
	// eventUnbound: a session ended since no allocation was bound to it within 5 s, or
	// since its allocation can no longer be bound.
	eventUnbound
	// eventShed: an unbound session ended to make room for another: the table, the share of
	// its source prefix, or that of unbindable sessions, was full.
	eventShed
	// eventUnbindable: a handshake was finished whose allocation has ended or never existed. It
	// also counts as eventEstablished: its client gets ERROR 4 in the session.
	eventUnbindable

	// dropMalformed: not a record, handshake message or hello of DTLS 1.2.
	dropMalformed
	// dropForeign: a content type that no client sends.
	dropForeign
	// dropOversize: a datagram for the handshake with more than 1500 bytes.
	dropOversize
	// dropQueue: the queue for the handshake, or the share of the source's prefix, was
	// full.
	dropQueue
	// dropAlert: an alert in plain text, which proves nothing.
	dropAlert
	// dropNoSession: a message or alert from a source without a session.
	dropNoSession
	// dropUndecryptable: a record that does not decrypt with the keys of its session.
	dropUndecryptable
	// dropReplayed: a record that was received before, or is older than the replay window.
	dropReplayed
	// dropTrailing: records after the first in a datagram; in a datagram of a
	// handshake, after a ClientHello or an answered message.
	dropTrailing
	// dropUnexpected: an authentic record that is neither a message nor an alert
	// nor a Finished, such as a request to renegotiate.
	dropUnexpected
	// dropStray: a handshake message out of order or without a handshake.
	dropStray
	// dropFragments: a message in more bytes than [Config].FragmentCap, a
	// ClientHello in fragments, or fragments out of order.
	dropFragments
	// dropQuiet: a ClientHello from the source of a session, see [Config].Quiet.
	dropQuiet
	// dropSuite: a ClientHello without a supported cipher suite.
	dropSuite
	// dropCookie: an invalid or expired cookie; a new one was sent.
	dropCookie
	// dropHelloRate: a ClientHello above the limit of answers to its source prefix.
	dropHelloRate
	// dropLargeAnswer: a repeated message that is smaller than its answer.
	dropLargeAnswer
	// dropHalfOpenFull: a handshake above [Config].HalfOpen, none of which could
	// be evicted.
	dropHalfOpenFull
	// dropSessionsFull: a finished handshake above [Config].MaxSessions, all of them
	// bound, or above 7/8 of it and above the share of its project or player.
	dropSessionsFull
	// dropIdentity: a finished handshake without the id of an allocation, or one of an
	// allocation that cannot be bound, for which there was no room.
	dropIdentity
	// dropKey: a Finished that does not verify with the allocation's key.
	dropKey
	// dropAttempts: a Finished above a limit of key derivations.
	dropAttempts
	// dropUnstored: an authentic record whose number could not be reserved in the
	// session file, which can be neither written nor removed.
	dropUnstored

	// numEvents is the number of events.
	numEvents
)

var eventNames = [numEvents]string{
	"hello", "cookie_sent", "answered", "resent", "established", "timed_out", "evicted",
	"taken_over", "outnumbered", "resumed", "closed", "idle", "unbound", "shed", "unbindable",
	"drop_malformed", "drop_foreign", "drop_oversize", "drop_queue", "drop_alert",
	"drop_no_session", "drop_undecryptable", "drop_replayed", "drop_trailing",
	"drop_unexpected", "drop_stray", "drop_fragments", "drop_quiet", "drop_suite",
	"drop_cookie", "drop_hello_rate", "drop_large_answer", "drop_half_open_full", "drop_sessions_full",
	"drop_identity", "drop_key", "drop_attempts", "drop_unstored",
}

// String returns the name of the event in metrics, such as "drop_replayed".
func (e event) String() string {
	if e >= numEvents {
		return "unknown"
	}
	return eventNames[e]
}

// Stats are counts since [New], and current numbers.
type Stats struct {
	// Events are counts by event. All are there, such as "established" and "drop_cookie": steps
	// of handshakes, ends of sessions, and the reasons for which records were dropped.
	Events map[string]uint64
	// Sessions is the number of established sessions, including those that ended
	// since the last sweep.
	Sessions int
	// HalfOpen is the number of half-open handshakes, Direct the number of those
	// that were started without a cookie, whose source may be forged.
	HalfOpen, Direct int
}

// counts are [Stats] by event.
type counts struct {
	Counts                     [numEvents]uint64
	Sessions, HalfOpen, Direct int
}

// counters count events. Any goroutine may use them.
type counters [numEvents]atomic.Uint64

func (c *counters) count(e event) { c[e].Add(1) }
