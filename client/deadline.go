package client

import (
	"sync"
	"time"
)

// deadline is the read deadline of a connection as a channel that is closed
// while the deadline lies in the past. Setting it again and again, which is
// what games do before each Read, allocates nothing. Its lock guards all.
type deadline struct {
	mu      sync.Mutex
	at      time.Time // zero: none
	timer   *time.Timer
	expired chan struct{}
}

func newDeadline() deadline { return deadline{expired: make(chan struct{})} }

// set makes t the deadline; zero removes it.
func (d *deadline) set(t time.Time) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := time.Duration(0)
	if !t.IsZero() {
		wait = t.Sub(now)
		// Kept on the monotonic clock, so that the timer and this word agree
		// whatever happens to the wall clock.
		t = now.Add(wait)
	}
	d.at = t
	passed := !t.IsZero() && wait <= 0
	if isClosed(d.expired) != passed {
		d.flip(passed)
	}
	switch {
	case t.IsZero() || passed:
		if d.timer != nil {
			d.timer.Stop()
		}
	case d.timer == nil:
		d.timer = time.AfterFunc(wait, d.fire)
	default:
		d.timer.Reset(wait)
	}
}

func (d *deadline) flip(passed bool) {
	if passed {
		close(d.expired)
		return
	}
	d.expired = make(chan struct{})
}

// fire is the timer's end. A timer that was stopped too late finds a deadline
// that was moved, and does nothing.
func (d *deadline) fire() {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && !now.Before(d.at) && !isClosed(d.expired) {
		close(d.expired)
	}
}

// stop gives the timer back; the deadline is of no use to anybody any more.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}

// passed returns the channel that is closed when the deadline passes.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired
}

// isClosed reports whether c, on which nothing is ever sent, is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// signal leaves a token in a channel of capacity one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
