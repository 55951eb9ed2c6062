package engine

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// TestExpiryPace: many allocations that are overdue at once end a few per
// millisecond, and all in the end.
func TestExpiryPace(t *testing.T) {
	s := newSim(testSealer(t), true)
	s.control.expires = expiresPerMilli
	const many = 3*expiresPerMilli - 5
	for range many {
		s.reserve(alloc.RoleHost, nil, "p", "host", 1)
	}
	s.control.pump(s.now)
	s.now += (10*time.Second + alloc.TickMillis*time.Millisecond).Milliseconds()
	s.control.expiredAt, s.control.brake.lastPump = s.now-1, s.now-1 // it did not stand still
	for left := many; left > 0; s.now++ {
		for range 3 { // However often control is woken up in a millisecond.
			s.control.pump(s.now)
		}
		want := max(0, left-expiresPerMilli)
		if n, _, _ := s.relay.table.Counts(); n != want {
			t.Fatalf("%d allocations live, want %d", n, want)
		}
		if s.control.behind != (want > 0) {
			t.Errorf("%d are left, behind is %v", want, s.control.behind)
		}
		left = want
	}
}
