package engine

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// TestExpiryPace: many allocations that are overdue at once end a few per
// millisecond, and all in the end.
func TestExpiryPace(t *testing.T) {
	s := newSim(testSealer(t), true)
	s.control.expiriesPerMilli = expiriesPerMilli
	const many = 3*expiriesPerMilli - 5
	for range many {
		s.reserve(alloc.RoleHost, nil, "p", "host", 1)
	}
	s.control.runOnce(s.now)
	s.now += (10*time.Second + table.TickMillis*time.Millisecond).Milliseconds()
	s.control.expiredAt, s.control.pause.lastRun = s.now-1, s.now-1 // it did not stand still
	for left := many; left > 0; s.now++ {
		for range 3 { // However often control is woken up in a millisecond.
			s.control.runOnce(s.now)
		}
		want := max(0, left-expiriesPerMilli)
		if n, _, _ := s.shared.table.Counts(); n != want {
			t.Fatalf("%d allocations live, want %d", n, want)
		}
		if s.control.backlog != (want > 0) {
			t.Errorf("%d are left, behind is %v", want, s.control.backlog)
		}
		left = want
	}
}

// TestLastReply: who has taken the endpoint of an allocation that ended is not
// told of that end, since clients do not look at whose it is.
func TestLastReply(t *testing.T) {
	for _, taken := range []bool{false, true} {
		s := newMatch(t, newIdentity(t))
		busy := 1 - workerOf(atJoiner1)
		unbound := signed(s.unboundJoiner(), 0, s.unboundJoiner().key)
		s.now += 10_000
		s.control.pause.lastRun = s.now - 1
		s.control.runOnce(s.now) // unbound was reserved when joiner1 was last heard
		s.control.reserve(&claims{role: alloc.RoleHost, id: proto.AllocationID{1}, match: proto.AllocationID{1}}, nil, s.now)
		s.workers[busy].epoch.enter()
		s.now += 250
		s.control.runOnce(s.now) // marks joiner1
		s.workers[busy].epoch.leave()
		s.workers[busy].epoch.enter()
		s.sent = nil
		s.control.runOnce(s.now) // ends him; his ERROR 1 waits for the busy worker
		if taken {
			w := s.workers[workerOf(atJoiner1)]
			w.handleDatagram(s.now, endpointAt(atJoiner1), unbound, false)
			c := s.control
			var cmd *command
			w.inbox.drain(func(got *command) { cmd = got })
			cmd.claims.id = proto.AllocationID{1}
			c.commit(cmd)
		}
		s.workers[busy].epoch.leave()
		s.control.runOnce(s.now)
		told := 0
		for _, x := range s.sent {
			if x.to == addrOf(endpointAt(atJoiner1)) && len(x.bytes) == proto.ErrorLen {
				told++
			}
		}
		if want := map[bool]int{false: 1}[taken]; told != want {
			t.Errorf("endpoint taken: %v; %d ERRORs, want %d", taken, told, want)
		}
	}
}
