package redisstore

import (
	"math/rand/v2"
	"sync"
	"time"
)

// probeEvery is the longest time between two looks whether the store is back,
// and half of it the shortest: processes that lost it together must not come
// back together.
const probeEvery = 400 * time.Millisecond

// verdict is what became of a call.
type verdict uint8

const (
	answered verdict = iota
	unanswered
	// abandoned: the caller left first, which says nothing about the store.
	abandoned
)

// breaker refuses calls while the store does not answer. It is open after so
// many calls in a row that failed; from then on one call at a time is let
// through, at intervals, and the first that succeeds closes it.
type breaker struct {
	failures int // in a row, that open it

	mu      sync.Mutex // guards the following fields
	row     int        // calls that failed since the last one that did not
	open    bool
	probing bool      // a call was let through and is under way
	next    time.Time // when the next one is
	opened  uint64
	closed  uint64
	refused uint64
}

// ticket is the leave for one call.
type ticket struct{ probe bool }

// enter asks for leave. It reports false when the call has to be refused.
func (b *breaker) enter(now time.Time) (ticket, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return ticket{}, true
	}
	if b.probing || now.Before(b.next) {
		b.refused++
		return ticket{}, false
	}
	b.probing = true
	return ticket{probe: true}, true
}

// leave tells what became of the call. It returns whether the breaker is open
// now and whether that is new.
func (b *breaker) leave(t ticket, v verdict, now time.Time) (open, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.open
	switch {
	case t.probe:
		b.probing = false
		b.settle(v, now)
	case b.open: // It was under way when the breaker opened.
	case v == answered:
		b.row = 0
	case v == unanswered:
		if b.row++; b.row >= b.failures {
			b.open, b.opened = true, b.opened+1
			b.next = now.Add(jitter(probeEvery))
		}
	}
	return b.open, b.open != was
}

// settle ends a probe.
func (b *breaker) settle(v verdict, now time.Time) {
	switch v {
	case answered:
		b.open, b.row, b.closed = false, 0, b.closed+1
	case unanswered:
		b.next = now.Add(jitter(probeEvery))
	}
}

// jitter returns between a half and the whole of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// stats returns whether the breaker is open, and how often it opened, closed
// and refused a call.
func (b *breaker) stats() (open bool, opened, closed, refused uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.opened, b.closed, b.refused
}
