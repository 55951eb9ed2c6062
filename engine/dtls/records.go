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
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
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

// Driver implements [engine.Records].
func (r *Records) Driver() driver.Records { return r.layer }

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
	connected map[uint64]endpoint.Endpoint // see privateapi.DTLS; nil after Begin
}

var _ driver.Records = (*layer)(nil)

func newLayer(c Config) (*layer, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &layer{conf: c, start: time.Now(), table: newTable(c.MaxSessions, c.perIdentity)}
	r.limits.secret = r.table.secret
	if c.Sessions != nil {
		r.file = c.Sessions
	}
	r.loadDormant()
	r.pool.New = func() any { return new(scratch) }
	for range c.workers {
		r.workers = append(r.workers, newWorker(r, nil))
	}
	return r, nil
}

// Open implements [driver.Records]. Records after the first one are dropped, since real
// clients send one per datagram.
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

// openRecord decrypts in place. The event is eventEstablished, or the reason of the drop.
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

func (r *layer) alert(s *session, body []byte) {
	if len(body) != 2 || body[0] != alertFatal && body[1] != alertCloseNotify {
		r.counters.count(dropUnexpected)
		return
	}
	if s.ended.CompareAndSwap(false, true) {
		r.counters.count(eventClosed)
	}
}

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

func (r *layer) HasRoom(o driver.Owner) bool { return r.table.hasRoom(o) }

func (r *layer) Alive(from endpoint.Endpoint) bool { return r.table.source(from) != nil }

// Seal implements [driver.Records]. It does not allocate if dst has capacity for the
// message and [driver.RecordOverhead] bytes; msg must not overlap that capacity.
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

func isNotFound(msg []byte) bool {
	m, err := proto.ParseError(msg)
	return err == nil && m.Code == proto.ErrorNotFound
}

func (r *layer) Source(serial uint64) (endpoint.Endpoint, bool) {
	s := r.table.serial(serial)
	if s == nil {
		return endpoint.Endpoint{}, false
	}
	return s.from, true
}

// MaxMessage is the most that any real client accepts: UTP 1.5.0 up to 1,509 in a record, UTP 2.x up to its
// maxMessageSize.
func (r *layer) MaxMessage() int { return proto.RelayOverhead + proto.MaxContent }

func (r *layer) SafeMessage() int { return privateapi.SafeMessage }

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

func (r *layer) now() int64 { return int64(time.Since(r.start)) }

// maxTick is the largest error of the clock of sessions, but for the first: while there is none, the clock
// advances with each sweep.
const maxTick = 250 * time.Millisecond

const sweepTicks = 4

func (r *layer) Begin(relay driver.RecordsRelay) {
	r.relay.Store(&relay)
	r.dropEnded(relay)
	r.reviveConnected(relay)
}

// Run fails if it is called a second time.
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

// control advances the clock by a few ticks at a time at most, so that a suspended process
// does not end all sessions.
func (r *layer) control(ctx context.Context, relay driver.RecordsRelay) {
	tick := min(maxTick, r.conf.Idle/8)
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
		next := tick
		if r.table.sessions.Load() == 0 {
			n |= sweepTicks - 1
			next *= sweepTicks
		}
		select {
		case <-ctx.Done():
			return
		case <-periodic.Next(next):
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

// event is a step of a handshake, the end of a session, or the reason of a drop.
type event uint8

// Those up to eventUnbindable are steps and ends, the rest are drops.
const (
	eventHello event = iota
	// eventCookieSent: a HelloVerifyRequest.
	eventCookieSent
	// eventAnswered: a ServerHello; the handshake is half open.
	eventAnswered
	eventResent
	eventEstablished
	eventTimedOut
	// eventEvicted: another client had validated its address, and a limit of half-open
	// handshakes was reached.
	eventEvicted
	// eventTakenOver: another session was established at its source.
	eventTakenOver
	// eventSessionLimit: more than perIdentity.
	eventSessionLimit
	eventResumed
	// eventClosed: an authentic close_notify or fatal alert.
	eventClosed
	// eventIdle: after [Config].Idle.
	eventIdle
	// eventUnbound: no allocation was bound within 5 s, or its allocation can no longer be bound.
	eventUnbound
	// eventShed: the table or a share of it was full.
	eventShed
	// eventUnbindable: also counts as eventEstablished; its client gets ERROR 4 in the session.
	eventUnbindable

	dropMalformed
	// dropForeign: a content type that no client sends.
	dropForeign
	dropOversize
	// dropQueue: the queue, or the share of the source's prefix, was full.
	dropQueue
	// dropAlert: an alert in plain text, which proves nothing.
	dropAlert
	// dropNoSession: a message or alert.
	dropNoSession
	dropUndecryptable
	// dropReplayed: also one that is older than the replay window.
	dropReplayed
	// dropTrailing: after the first record; of a handshake, after a ClientHello or an answer.
	dropTrailing
	// dropUnexpected: authentic, and neither a message nor an alert nor a Finished.
	dropUnexpected
	// dropStray: a handshake message out of order or without a handshake.
	dropStray
	// dropFragments: too large, out of order, or of a ClientHello.
	dropFragments
	dropQuiet
	dropSuite
	// dropCookie: invalid or expired; a new one was sent.
	dropCookie
	// dropHelloRate: above the limit of answers to its source prefix.
	dropHelloRate
	// dropLargeAnswer: a repeated message that is smaller than its answer.
	dropLargeAnswer
	// dropHalfOpenFull: none could be evicted.
	dropHalfOpenFull
	// dropSessionsFull: all are bound, or above 7/8 the share of the project or player is used up.
	dropSessionsFull
	// dropIdentity: no id of an allocation, or one that cannot be bound without room for it.
	dropIdentity
	// dropKey: a Finished that does not verify with the allocation's key.
	dropKey
	// dropAttempts: a Finished above a limit of key derivations.
	dropAttempts
	// dropUnstored: its number could not be reserved in the session file, which can be neither
	// written nor removed.
	dropUnstored

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

func (e event) String() string { return eventNames[e] }

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

type counts struct {
	Counts                     [numEvents]uint64
	Sessions, HalfOpen, Direct int
}

type counters [numEvents]atomic.Uint64

func (c *counters) count(e event) { c[e].Add(1) }
