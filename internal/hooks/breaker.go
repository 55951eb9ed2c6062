package hooks

import (
	"sync"
	"time"
)

// What makes a program rest, and for how long.
const (
	breakAfter = 5 // failures in a row
	breakFor   = 5 * time.Second
)

// breaker keeps calls away from a program that fails. The zero breaker lets
// everybody through.
type breaker struct {
	mu     sync.Mutex // guards the following fields
	failed int        // in a row
	until  time.Time  // of the rest
	trying bool       // one call finds out whether it is back
}

// enter reports whether a call may be made. Each one that may has to leave.
func (b *breaker) enter(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed < breakAfter {
		return true
	}
	if b.trying || now.Before(b.until) {
		return false
	}
	b.trying = true
	return true
}

// leave tells what became of a call. One that was given up tells nothing.
func (b *breaker) leave(now time.Time, good, givenUp bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying = false
	switch {
	case good:
		b.failed = 0
	case !givenUp:
		b.failed++
		b.until = now.Add(breakFor)
	}
}

func (b *breaker) resting(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed >= breakAfter && now.Before(b.until)
}
