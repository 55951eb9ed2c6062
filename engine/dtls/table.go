package dtls

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// table finds sessions by source and by serial. Readers do not lock: they follow
// chains of atomic pointers. A removed session keeps its pointers, so that a reader
// that has reached it can continue. A session is inserted before the one that it
// replaces is removed, so readers always find one of them.
type table struct {
	secret   uint64
	shift    int
	sources  []atomic.Pointer[session]
	serials  []atomic.Pointer[session]
	sessions atomic.Int64

	mu             sync.Mutex // held by writers only; guards what follows
	max            int
	maxPerIdentity int
	next           uint64
	ids            map[proto.AllocationID][]*session
}

func newTable(maxSessions, maxPerIdentity int) *table {
	size := bits.Len(uint(maxSessions*2 - 1))
	t := &table{
		secret: random64(), shift: 64 - size,
		sources: make([]atomic.Pointer[session], 1<<size),
		serials: make([]atomic.Pointer[session], 1<<size),
		max:     maxSessions, maxPerIdentity: maxPerIdentity,
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

// source returns the session of a source, or nil.
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

// serial returns the session with a serial, or nil.
func (t *table) serial(serial uint64) *session {
	for s := t.atSerial(serial).Load(); s != nil; s = s.bySerial.Load() {
		if s.serial == serial && !s.ended.Load() {
			return s
		}
	}
	return nil
}

// replaced counts the sessions that a new one ended: at its source, and of its
// identity.
type replaced struct{ source, identity int }

// add assigns a serial to a session and publishes it. It ends the session at the
// same source, and the oldest of the same identity if there are too many. It
// reports false if the table is full.
//
// A session at the same source and of the same allocation as the previous one keeps
// its serial and so the binding, since real clients send no BIND in a new session.
//
// add calls store after it has assigned the serial and before other goroutines can
// find the session.
func (t *table) add(s *session, store func()) (r replaced, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.source(s.from)
	if old == nil && int(t.sessions.Load()) >= t.max {
		return r, false
	}
	switch {
	case old != nil && old.id == s.id:
		s.serial = old.serial
	case s.serial == 0:
		s.serial = t.next
		t.next++
	}
	store()
	t.publish(s)
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

// skipSerial makes later serials larger than one that is in use.
func (t *table) skipSerial(serial uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = max(t.next, serial+1)
}

// restore publishes a session that has a serial. It reports false if the table is
// full or has another session of the source.
func (t *table) restore(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source(s.from) != nil || int(t.sessions.Load()) >= t.max {
		return false
	}
	t.publish(s)
	return true
}

func (t *table) publish(s *session) {
	at := t.atSerial(s.serial)
	s.bySerial.Store(at.Load())
	at.Store(s)
	at = t.atSource(s.from)
	s.bySource.Store(at.Load())
	at.Store(s)
	t.ids[s.id] = append(t.ids[s.id], s)
	t.sessions.Add(1)
}

// evictionCandidate returns a session other than s that has ended, or else the one
// that was silent for longest.
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

// remove removes a session if it is in the table. The caller holds the lock.
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

// release frees what a removed session holds: its place in the session file and in
// the counts.
func (t *table) release(s *session) {
	if s.stored != nil {
		s.stored.release()
	}
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
	}
}

// sweep removes the sessions that have ended or received nothing since a time of
// [Records].clock. It returns the number of those that had not ended.
func (t *table) sweep(since int64) (idle int) {
	for i := range t.sources {
		for s := t.sources[i].Load(); s != nil; s = s.bySource.Load() {
			ended := s.ended.Load()
			if !ended && s.lastReceived.Load() >= since {
				continue
			}
			if !ended {
				idle++
			}
			t.mu.Lock()
			t.remove(s)
			t.mu.Unlock()
		}
	}
	return idle
}
