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

// table finds sessions by source and by serial. Readers never lock: they follow
// chains of atomic pointers, and a session that was removed keeps its own, so
// that a reader that has reached it can go on. A session is put in front of the
// one that it replaces, so at no moment is there none.
type table struct {
	secret   uint64
	shift    int
	sources  []atomic.Pointer[session]
	serials  []atomic.Pointer[session]
	sessions atomic.Int64

	mu   sync.Mutex // taken by writers only, guards what follows
	max  int
	each int // sessions of one identity
	next uint64
	ids  map[proto.AllocationID][]*session
}

func newTable(maxSessions, each int) *table {
	size := bits.Len(uint(maxSessions*2 - 1))
	t := &table{
		secret: random64(), shift: 64 - size,
		sources: make([]atomic.Pointer[session], 1<<size),
		serials: make([]atomic.Pointer[session], 1<<size),
		max:     maxSessions, each: each,
		// Serials begin at a random number, so that those of the process before
		// this one, in logs and in memory of others, mean nothing now.
		next: random64()>>16 | 1, // never 0, which is no session
		ids:  make(map[proto.AllocationID][]*session),
	}
	return t
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// mix64 is a multiplicative hash: the high bits are well mixed.
func mix64(x uint64) uint64 {
	x *= 0x9E3779B97F4A7C15
	return (x ^ x>>29) * 0xBF58476D1CE4E5B9
}

func (t *table) atSource(from endpoint.Endpoint) *atomic.Pointer[session] {
	x := mix64(mix64(from.Hi^t.secret) ^ from.Lo)
	return &t.sources[mix64(x^from.Tail)>>t.shift]
}

func (t *table) atSerial(serial uint64) *atomic.Pointer[session] {
	return &t.serials[serial&uint64(len(t.serials)-1)]
}

// source returns the living session at a source, or nil.
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

// serial returns the living session with a serial, or nil.
func (t *table) serial(serial uint64) *session {
	for s := t.atSerial(serial).Load(); s != nil; s = s.bySerial.Load() {
		if s.serial == serial && !s.ended.Load() {
			return s
		}
	}
	return nil
}

// replaced says which sessions a new one ended.
type replaced struct{ source, identity int }

// add gives a session its serial and publishes it, in place of one at the same
// source and of the oldest of its identity if there are too many. It reports
// false when the table is full.
//
// A client that authenticates again at the same source for the same allocation keeps the
// serial, and with it what the relay has bound to it: real clients that make a
// new session send no BIND in it.
//
// store runs when the serial is known and before any other goroutine sees the
// session.
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
	if mine := t.ids[s.id]; len(mine) > t.each {
		out := evictionCandidate(mine, s)
		if !out.ended.Load() {
			r.identity++
		}
		t.remove(out)
	}
	return r, true
}

// avoid lets serials begin above one that is in use already.
func (t *table) avoid(serial uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = max(t.next, serial+1)
}

// revive publishes a session that has its serial. It reports false when the table
// is full or another session lives at the source.
func (t *table) revive(s *session) bool {
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

// evictionCandidate returns a session other than s that has ended already, or else the
// one that was heard first.
func evictionCandidate(mine []*session, s *session) *session {
	var out *session
	for _, x := range mine {
		switch {
		case x == s:
		case x.ended.Load():
			return x
		case out == nil || x.heard.Load() < out.heard.Load():
			out = x
		}
	}
	return out
}

// remove takes a session out, under the lock. It does nothing when that was done
// before.
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
			t.forget(s)
			break
		}
	}
}

func (t *table) forget(s *session) {
	if s.stored != nil {
		s.stored.release()
	}
	t.sessions.Add(-1)
	mine := t.ids[s.id]
	kept := mine[:0]
	for _, x := range mine {
		if x != s {
			kept = append(kept, x)
		}
	}
	clear(mine[len(kept):])
	if t.ids[s.id] = kept; len(kept) == 0 {
		delete(t.ids, s.id)
	}
}

// sweep takes out the sessions that have ended or were not heard since a moment,
// and returns how many had not ended before.
func (t *table) sweep(since int64) (idle int) {
	for i := range t.sources {
		for s := t.sources[i].Load(); s != nil; s = s.bySource.Load() {
			ended := s.ended.Load()
			if !ended && s.heard.Load() >= since {
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
