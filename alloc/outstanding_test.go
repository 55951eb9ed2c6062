package alloc

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// TestOutstandingKeepsItsBound: however many players reserve, no more than the
// fixed number is remembered, and it is the oldest that is forgiven.
func TestOutstandingKeepsItsBound(t *testing.T) {
	t.Parallel()
	const known, reserved = 64, 1000
	o := newOutstandingLimit(1, time.Second, known)
	player := func(n int) (p PlayerHash) { binary.BigEndian.PutUint32(p[:], uint32(n+1)); return p }
	id := func(n int) (id proto.AllocationID) { binary.BigEndian.PutUint32(id[:], uint32(n+1)); return id }
	for n := range reserved {
		if !o.acquire(player(n), 0) {
			t.Fatalf("reservation %d was refused", n)
		}
		o.confirm(player(n), id(n), 0)
		if len(o.playerByID) > known || len(o.countByPlayer) > known || o.n > known {
			t.Fatalf("%d reservations of %d players are remembered", len(o.playerByID), len(o.countByPlayer))
		}
	}
	if o.acquire(player(reserved-1), 0) {
		t.Error("the last one was forgiven")
	}
	if !o.acquire(player(0), 0) {
		t.Error("the first one is remembered beyond the bound")
	}
	o.cancel(player(0))
	if !o.acquire(player(1), time.Second) { // all others lapse
		t.Error("refused after the time-out")
	}
	o.cancel(player(1))
	if len(o.playerByID) != 0 || len(o.countByPlayer) != 0 || o.n != 0 {
		t.Errorf("%d reservations of %d players are left", len(o.playerByID), len(o.countByPlayer))
	}
}
