package storetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

func testMove(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	put(t, s, production, "DFGHJK", host(9), true)
	move(t, s, "6789BC", host(1), host(2), true)
	move(t, s, "6789BC", host(1), host(2), true) // The answer was lost.
	wantMoved := func(to proto.AllocationID, former ...proto.AllocationID) {
		t.Helper()
		wantHost(t, s, production, "6789BC", to)
		wantCode(t, s, production, to, "6789BC")
		for _, f := range former {
			wantCode(t, s, production, f, "")
		}
		wantCount(t, s, production, 2)
	}
	wantMoved(host(2), host(1))
	move(t, s, "6789BC", host(1), host(3), false) // It leads to host 2 by now.
	wantMoved(host(2), host(1), host(3))
	s.Forget(host(1))
	forget(t, s, production, host(9)) // What was forgotten before is gone by then.
	put(t, s, production, "DFGHJK", host(9), true)
	wantMoved(host(2), host(1))
	move(t, s, "6789BC", host(2), host(3), true)
	wantMoved(host(3), host(1), host(2))
	put(t, s, production, "LMNPQR", host(1), true) // The former host may have another one.
	move(t, s, "LMNPQR", host(1), host(2), true)
	forget(t, s, production, host(3))
	wantHost(t, s, production, "6789BC", proto.AllocationID{})
	wantCount(t, s, production, 2)
}

func testMoveRefused(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	put(t, s, production, "DFGHJK", host(2), true)
	put(t, s, staging, "6789BC", host(4), true)
	if moved, err := s.MoveCode(t.Context(), production.Hash(), "6789B", host(1), host(3)); moved || !errors.Is(err, alloc.ErrCodeMalformed) {
		t.Errorf("MoveCode of a malformed code = %v, %v", moved, err)
	}
	move(t, s, "6789BC", host(3), host(5), false) // It leads to host 1.
	move(t, s, "6789BC", host(1), host(2), false) // Host 2 has a code.
	move(t, s, "6789BC", host(1), host(1), true)  // It has it.
	wantHost(t, s, production, "6789BC", host(1))
	wantCode(t, s, production, host(1), "6789BC")
	wantHost(t, s, production, "DFGHJK", host(2))
	wantCode(t, s, production, host(2), "DFGHJK")
	wantHost(t, s, staging, "6789BC", host(4))
	wantCode(t, s, production, host(5), "")
	wantCount(t, s, production, 2)
	wantCount(t, s, staging, 1)
	put(t, s, production, "LMNPQR", host(5), true) // The refused move has left nothing there.
}

func testMoveFromNowhere(t *testing.T, s alloc.Store) {
	move(t, s, "6789BC", host(1), host(2), true)
	wantHost(t, s, production, "6789BC", host(2))
	wantCode(t, s, production, host(2), "6789BC")
	wantCode(t, s, production, host(1), "")
	wantCount(t, s, production, 1)
	move(t, s, "6789BC", host(1), host(3), false)
	move(t, s, "DFGHJK", host(1), host(2), false)
	wantHost(t, s, production, "DFGHJK", proto.AllocationID{})
	wantCount(t, s, production, 1)
}

// testMoveOfEarlierRun: after a restart a host gets its code again, unless that is taken.
func testMoveOfEarlierRun(t *testing.T, s alloc.Store) {
	for range 2 {
		move(t, s, "6789BC", host(1), host(1), true)
	}
	move(t, s, "6789BC", host(2), host(2), false)
	move(t, s, "6789BD", host(1), host(1), false)
	wantHost(t, s, production, "6789BC", host(1))
	wantCode(t, s, production, host(1), "6789BC")
	wantCode(t, s, production, host(2), "")
	wantCount(t, s, production, 1)
	for _, code := range []string{"", "6789B", "AEIOUA"} {
		if moved, err := s.MoveCode(t.Context(), production.Hash(), code, host(3), host(3)); moved || !errors.Is(err, alloc.ErrCodeMalformed) {
			t.Errorf("MoveCode of %q = %v, %v", code, moved, err)
		}
	}
}

// testMoveAtOnce: of several moves from one host at once, one is done.
func testMoveAtOnce(t *testing.T, s alloc.Store) {
	const turns, moves = 5, 8
	put(t, s, production, "6789BC", host(0), true)
	from := host(0)
	for turn := range turns {
		var winner atomic.Int64
		var wg sync.WaitGroup
		for n := range moves {
			id := 1 + turn*moves + n
			wg.Go(func() {
				moved, err := s.MoveCode(t.Context(), production.Hash(), "6789BC", from, host(id))
				if err != nil {
					t.Error(err)
				}
				if moved && !winner.CompareAndSwap(0, int64(id)) {
					t.Error("two hosts got the code")
				}
			})
		}
		wg.Wait()
		to := host(int(winner.Load()))
		wantHost(t, s, production, "6789BC", to)
		wantCode(t, s, production, to, "6789BC")
		for n := range moves {
			if other := host(1 + turn*moves + n); other != to {
				wantCode(t, s, production, other, "")
			}
		}
		wantCount(t, s, production, 1)
		from = to
	}
}

// testRenewAfterMove: a Renew of the former host that its relay began before the host ended
// does not take the code back, and one of the new host keeps it, however old they are.
func testRenewAfterMove(t *testing.T, d placement.Directory) {
	now := time.Now()
	entries := func(n int, code string, age time.Duration) []placement.HostEntry {
		return []placement.HostEntry{{Host: host(n), Tenant: production.Hash(), Code: code, Since: now.Add(-age)}}
	}
	setHome(t, d, host(1), here)
	put(t, d, production, "6789BC", host(1), true) // The store does not know the age of host 1.
	for n := 1; n < 4; n++ {
		from, to := host(n), host(n+1)
		setHome(t, d, to, theirs)
		move(t, d, "6789BC", from, to, true)
		for range 2 {
			wantLost(t, d, here, entries(n, "6789BC", time.Duration(10-n)*time.Hour), from)
			wantLost(t, d, here, entries(n, "", time.Duration(10-n)*time.Hour)) // Its relay knows that it has left.
			wantLost(t, d, theirs, entries(n+1, "", time.Duration(9-n)*time.Hour))
			wantLost(t, d, theirs, entries(n+1, "6789BC", time.Duration(9-n)*time.Hour))
			wantHost(t, d, production, "6789BC", to)
			wantCode(t, d, production, to, "6789BC")
			wantCode(t, d, production, from, "")
			wantHome(t, d, from, here)
			wantCount(t, d, production, 1)
		}
		if err := d.Drop(t.Context(), here, entries(n, "6789BC", 0)); err != nil {
			t.Fatal(err)
		}
		wantHost(t, d, production, "6789BC", to)
		wantCode(t, d, production, to, "6789BC")
		if _, err := d.Renew(t.Context(), here, entries(n+1, "6789BC", time.Duration(9-n)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Drop(t.Context(), here, entries(4, "", 0)); err != nil {
		t.Fatal(err)
	}
	wantHost(t, d, production, "6789BC", proto.AllocationID{})
	wantCount(t, d, production, 0)
}

// testMoveAndHoldAtOnce: whatever calls of the former host and of its relay meet a move, the
// code leads to the new host.
func testMoveAndHoldAtOnce(t *testing.T, d placement.Directory) {
	const turns = 20
	since := time.Now().Add(-time.Hour)
	for turn := range turns {
		from, to, c := host(2*turn+1), host(2*turn+2), code(turn)
		setHome(t, d, from, here)
		setHome(t, d, to, theirs)
		put(t, d, production, c, from, true)
		entries := func(code string) []placement.HostEntry {
			return []placement.HostEntry{{Host: from, Tenant: production.Hash(), Code: code, Since: since}}
		}
		var wg sync.WaitGroup
		for _, h := range [][]placement.HostEntry{entries(c), entries(""), entries(c)} {
			wg.Go(func() {
				if _, err := d.Renew(t.Context(), here, h); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() { move(t, d, c, from, to, true) })
		wg.Wait()
		wantHost(t, d, production, c, to)
		wantCode(t, d, production, to, c)
		wantCode(t, d, production, from, "")
	}
	wantCount(t, d, production, turns)
}

func move(t *testing.T, s alloc.Store, code string, from, to proto.AllocationID, want bool) {
	t.Helper()
	if got, err := s.MoveCode(t.Context(), production.Hash(), code, from, to); err != nil || got != want {
		t.Errorf("MoveCode(%s, %v, %v) = %v, %v; want %v", code, from, to, got, err, want)
	}
}
