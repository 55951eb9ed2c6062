package dtls

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/evict"
	"github.com/ferryrelay/ferry/proto"
)

// table is read without a lock, by chains of atomic pointers. A removed session keeps its
// pointers, so that a reader that has reached it can continue. A session is inserted before
// the one that it replaces is removed, so readers always find one of them.
type table struct {
	secret   uint64
	shift    int
	sources  []atomic.Pointer[session]
	serials  []atomic.Pointer[session]
	sessions atomic.Int64

	mu             sync.Mutex // held by writers only; guards what follows
	max            int
	maxUnbound     int // of one prefix
	maxUnbindable  int
	maxPerIdentity int
	next           uint64
	ids            map[proto.AllocationID][]*session
	shares         shares
	// unbound has the sessions to which no allocation is bound, by source prefix:
	// those to which one was bound before in the lower class. Only they are evicted, and
	// unbindable ones, which are a set of their own, before all others.
	unbound    evict.Set[endpoint.Endpoint, *session]
	unbindable evict.Set[endpoint.Endpoint, *session]
}

const (
	// bindTimeout ends a session to which no allocation was ever bound. Real clients
	// send BIND at once, and repeat it every second.
	bindTimeout = 5 * time.Second
	// roamTimeout is bindTimeout for a client whose allocation is bound to another
	// session: it binds after ERROR 3, the answer to its next message, or after three
	// PING periods of 3 s without an answer.
	roamTimeout = 15 * time.Second
	// unboundShare is the part of the table that the unbound sessions of one prefix
	// may take. Bound ones do not count: very many players may be behind one address.
	unboundShare = 4
	// unbindableShare is the part of the table that unbindable sessions may take.
	unbindableShare = 16
	// refusedTimeout is bindTimeout for an unbindable session to which ERROR 4 was sent:
	// if it was lost, the client repeats its BIND after a second.
	refusedTimeout = 2 * time.Second
)

// Values of session.bindBy that are no time.
const (
	boundBefore = 0  // an allocation was bound to the session, perhaps still is
	resumed     = -1 // of the previous process; no allocation was bound in this one
)

func newTable(maxSessions, maxPerIdentity int) *table {
	size := bits.Len(uint(maxSessions*2 - 1))
	t := &table{
		secret: random64(), shift: 64 - size,
		sources: make([]atomic.Pointer[session], 1<<size),
		serials: make([]atomic.Pointer[session], 1<<size),
		max:     maxSessions, maxUnbound: max(1, maxSessions/unboundShare), maxUnbindable: max(1, maxSessions/unbindableShare),
		maxPerIdentity: maxPerIdentity,
		// Serials begin at a random number, so that a serial of the previous process,
		// for example in a log, does not name a session of this one.
		next: random64()>>16 | 1, // not 0, which means no session
		ids:  make(map[proto.AllocationID][]*session),
	}
	return t
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (t *table) atSource(from endpoint.Endpoint) *atomic.Pointer[session] {
	x := endpoint.Mix64(endpoint.Mix64(from.Hi^t.secret) ^ from.Lo)
	return &t.sources[endpoint.Mix64(x^from.Tail)>>t.shift]
}

func (t *table) atSerial(serial uint64) *atomic.Pointer[session] {
	return &t.serials[serial&uint64(len(t.serials)-1)]
}

func (t *table) source(from endpoint.Endpoint) *session {
	if t.sessions.Load() == 0 {
		return nil
	}
	for s := t.atSource(from).Load(); s != nil; s = s.bySource.Load() {
		if s.from == from && !s.ended.Load() {
			return s
		}
	}
	return nil
}

func (t *table) serial(serial uint64) *session {
	for s := t.atSerial(serial).Load(); s != nil; s = s.bySerial.Load() {
		if s.serial == serial && !s.ended.Load() {
			return s
		}
	}
	return nil
}

type replaced struct{ source, identity, shed int }

// add assigns a serial to a session and publishes it. It ends the session at the same source,
// the oldest of the same identity if there are too many, and the least valuable unbound one
// if the table or the share of the prefix is full; an unbindable session ends only unbindable
// ones and those of its allocation. It reports false if the table is full of bound sessions.
//
// A session at the same source and of the same allocation as the previous one keeps
// its serial and so the binding, since real clients send no BIND in a new session.
//
// add calls store before other goroutines can find the session, unless it is unbindable.
// now is a time of [Records].clock.
func (t *table) add(s *session, relay driver.RecordsRelay, now int64, store func()) (r replaced, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.source(s.from)
	if old != nil && s.unbindable && !old.unbindable && old.id != s.id {
		return r, false
	}
	if !t.isWithinShare(s, relay) {
		return r, false
	}
	if r.shed, ok = t.makeRoom(s, old, relay); !ok {
		return r, false
	}
	by := now + int64(t.timeToBind(s.id))
	switch {
	case old != nil && old.id == s.id:
		s.serial = old.serial
		if before := old.bindBy.Load(); before <= 0 {
			by = before
		}
	case s.serial == 0:
		s.serial = t.next
		t.next++
	default:
		by = resumed
	}
	if s.unbindable {
		by = now + int64(bindTimeout)
	}
	s.bindBy.Store(by)
	if !s.unbindable {
		store()
	}
	t.publish(s, relay)
	if old != nil {
		t.remove(old)
		r.source++
	}
	if own := t.ids[s.id]; len(own) > t.maxPerIdentity {
		out := evictionCandidate(own, s)
		if !out.ended.Load() {
			r.identity++
		}
		t.remove(out)
	}
	return r, true
}

func (t *table) skipSerial(serial uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = max(t.next, serial+1)
}

// restore publishes a session that has a serial. It reports false if the table is full.
func (t *table) restore(s *session, relay driver.RecordsRelay) (shed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source(s.from) != nil {
		return 0, false
	}
	if shed, ok = t.makeRoom(s, nil, relay); ok {
		s.bindBy.Store(resumed)
		t.publish(s, relay)
	}
	return shed, ok
}

func (t *table) publish(s *session, relay driver.RecordsRelay) {
	at := t.atSerial(s.serial)
	s.bySerial.Store(at.Load())
	at.Store(s)
	at = t.atSource(s.from)
	s.bySource.Store(at.Load())
	at.Store(s)
	relay.SessionBegan(s.from)
	t.ids[s.id] = append(t.ids[s.id], s)
	t.sessions.Add(1)
	t.countShare(s, relay)
	t.addUnbound(s)
	t.noteBinding(s, relay)
}

// isWithinShare reports whether the owner of a new session may have it. A session of the
// previous process always may, and so may a client that roams.
func (t *table) isWithinShare(s *session, relay driver.RecordsRelay) bool {
	if s.unbindable || s.serial != 0 || len(t.ids[s.id]) > 0 {
		return true
	}
	o, known := relay.OwnerOf(s.id)
	return !known || t.shares.allow(o, t.max)
}

// countShare counts the allocation of a session for its owner, which may not be known before
// an allocation has come back after a restart.
func (t *table) countShare(s *session, relay driver.RecordsRelay) {
	if s.unbindable {
		return
	}
	if o, known := relay.OwnerOf(s.id); known {
		t.shares.add(s.id, o)
	}
}

func (t *table) hasRoom(o driver.Owner) bool {
	if int(t.sessions.Load()) < t.max*sharedAbove/8 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := int(t.sessions.Load()) - t.unbound.Len() - t.unbindable.Len()
	return kept < t.max && t.shares.allow(o, t.max)
}

func (t *table) timeToBind(id proto.AllocationID) time.Duration {
	for _, s := range t.ids[id] {
		if s.bound.Load() {
			return roamTimeout
		}
	}
	return bindTimeout
}

// makeRoom ends unbound sessions until there is room for s, which replaces old if not nil.
func (t *table) makeRoom(s, old *session, relay driver.RecordsRelay) (shed int, ok bool) {
	prefix := s.from.Network()
	for s.unbindable && t.unbindable.Len() >= t.maxUnbindable {
		shed += t.shed(t.firstUnbindable(prefix), relay)
	}
	for !s.unbindable && t.unbound.Count(prefix) >= t.maxUnbound {
		shed += t.shed(t.unbound.FirstOf(prefix).Value, relay)
	}
	for old == nil && int(t.sessions.Load()) >= t.max {
		first := t.unbindable.First()
		if first == nil && !s.unbindable {
			first = t.unbound.First()
		}
		if first == nil {
			return shed, false
		}
		shed += t.shed(first.Value, relay)
	}
	return shed, true
}

// firstUnbindable returns the oldest of the prefix that has most with the new one.
func (t *table) firstUnbindable(prefix endpoint.Endpoint) *session {
	first := t.unbindable.First()
	if n := t.unbindable.Count(prefix); n > 0 && n >= t.unbindable.Count(first.Value.from.Network()) {
		first = t.unbindable.FirstOf(prefix)
	}
	return first.Value
}

// shed removes a session from the unbound ones, and ends it unless an allocation was bound
// to it lately. It returns the number of ended sessions.
func (t *table) shed(s *session, relay driver.RecordsRelay) int {
	if !s.ended.Load() && t.noteBinding(s, relay) {
		return 0
	}
	t.remove(s)
	return 1
}

func (t *table) noteBinding(s *session, relay driver.RecordsRelay) (bound bool) {
	bound = relay.IsBound(s.serial)
	if bound == s.bound.Load() || s.ended.Load() {
		return bound
	}
	s.bound.Store(bound)
	if bound {
		t.countShare(s, relay)
		s.bindBy.Store(boundBefore)
		t.removeUnbound(s)
	} else {
		t.addUnbound(s)
	}
	return bound
}

func (t *table) unboundSet(s *session) *evict.Set[endpoint.Endpoint, *session] {
	if s.unbindable {
		return &t.unbindable
	}
	return &t.unbound
}

func (t *table) addUnbound(s *session) {
	class := evict.High
	if s.bindBy.Load() == boundBefore {
		class = evict.Low
	}
	s.unbound = t.unboundSet(s).Add(s.from.Network(), class, s)
}

func (t *table) removeUnbound(s *session) {
	if s.unbound != nil {
		t.unboundSet(s).Remove(s.unbound)
		s.unbound = nil
	}
}

// evictionCandidate returns one that has ended, or else was silent for longest, but not s.
func evictionCandidate(own []*session, s *session) *session {
	var out *session
	for _, x := range own {
		switch {
		case x == s:
		case x.ended.Load():
			return x
		case out == nil || x.lastReceived.Load() < out.lastReceived.Load():
			out = x
		}
	}
	return out
}

// The caller of remove holds the lock.
func (t *table) remove(s *session) {
	s.ended.Store(true)
	for at := t.atSerial(s.serial); at.Load() != nil; at = &at.Load().bySerial {
		if at.Load() == s {
			at.Store(s.bySerial.Load())
			break
		}
	}
	for at := t.atSource(s.from); at.Load() != nil; at = &at.Load().bySource {
		if at.Load() == s {
			at.Store(s.bySource.Load())
			t.release(s)
			break
		}
	}
}

// release frees the place of a removed session in the session file and in the counts.
func (t *table) release(s *session) {
	if s.stored != nil {
		s.stored.release()
	}
	t.removeUnbound(s)
	t.sessions.Add(-1)
	own := t.ids[s.id]
	kept := own[:0]
	for _, x := range own {
		if x != s {
			kept = append(kept, x)
		}
	}
	clear(own[len(kept):])
	if t.ids[s.id] = kept; len(kept) == 0 {
		delete(t.ids, s.id)
		t.shares.remove(s.id)
	}
}

// sweep returns the numbers of idle and of unbound sessions that it removed. now and since
// are times of [Records].clock.
func (t *table) sweep(relay driver.RecordsRelay, now, since int64) (idle, unbound int) {
	for i := range t.sources {
		for s := t.sources[i].Load(); s != nil; s = s.bySource.Load() {
			switch {
			case s.ended.Load():
			case s.lastReceived.Load() < since:
				idle++
			case relay.IsBound(s.serial) != s.bound.Load():
				t.mu.Lock()
				t.noteBinding(s, relay)
				t.mu.Unlock()
				continue
			case s.bound.Load() || s.mayBindLater(relay, now):
				continue
			default:
				unbound++
			}
			t.mu.Lock()
			t.remove(s)
			t.mu.Unlock()
		}
	}
	return idle, unbound
}

func (s *session) mayBindLater(relay driver.RecordsRelay, now int64) bool {
	switch by := s.bindBy.Load(); by {
	case boundBefore:
		return true // Its client may still have to receive ERROR 3 or 4 in it.
	case resumed:
		return relay.MayBind(s.id)
	default:
		return now < by
	}
}
