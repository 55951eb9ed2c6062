package engine

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func previousRunOf(n int) statefile.PreviousRun {
	left := statefile.PreviousRun{Records: make([]statefile.FoundRecord, n), Complete: true, Settled: true}
	for i := range left.Records {
		left.Records[i].ID = clientID(i)
	}
	return left
}

func TestRecoverRate(t *testing.T) {
	for _, c := range []struct {
		records int
		window  int64
		want    int64 // per second
	}{
		{0, 0, 20_000}, {1_000_000, 0, 20_000}, {0, 60_000, 20_000}, {400_000, 60_000, 20_000},
		{1_000_000, 60_000, 50_000}, {1_600_000, 60_000, 80_000}, {3_000_000, 60_000, 100_000},
		{16_000_000, 60_000, 100_000}, {16_000_000, 3_600_000, 20_000}, {100_000, 10_000, 30_000},
	} {
		r := recoverRate(c.records, c.window)
		if got := 1_000_000 / r.IntervalMicros; got < c.want || got > c.want*105/100 || r.Burst*10 != c.want {
			t.Errorf("%d in %d ms: %d a second, want %d; burst %d", c.records, c.window, got, c.want, r.Burst)
		}
	}
}

// TestRecoverInTime: all clients of a restarted relay, with -long three million, get their ERROR 3 in time.
func TestRecoverInTime(t *testing.T) {
	n, most := 300_000, 17*time.Second
	if testkit.RaceEnabled {
		n, most = 60_000, 5*time.Second
	} else if *long {
		n, most = 3_000_000, 33*time.Second
	}
	r := newRig(t, Config{})
	r.shared.rules.recoverUntil = r.now + r.shared.rules.recoverFor
	r.control.recover(previousRunOf(n))
	waiting := make([]uint32, n)
	for i := range waiting {
		waiting[i] = uint32(i)
	}
	const perMilli = 300 // datagrams of clients that are not bound
	begin, w := r.now, r.workers[0]
	for at := 0; len(waiting) > 0 && r.shared.recovering(r.now); r.now++ {
		for range min(perMilli, len(waiting)) {
			at = (at + 1) % len(waiting)
			client := int(waiting[at])
			var none table.Entry
			if w.takeMismatch(r.now, udpN(client), clientID(client), &none, false) {
				waiting[at] = waiting[len(waiting)-1]
				if waiting = waiting[:len(waiting)-1]; len(waiting) == 0 {
					break
				}
			}
		}
	}
	if took := time.Duration(r.now-begin) * time.Millisecond; len(waiting) > 0 || took > most {
		t.Errorf("after %v %d of %d clients had no ERROR 3, want none after %v", took, len(waiting), n, most)
	}
}

// TestRecoverOneAllocation: a flood in the name of one allocation leaves the others their rate.
func TestRecoverOneAllocation(t *testing.T) {
	r := newRig(t, Config{})
	r.shared.rules.recoverUntil = r.now + r.shared.rules.recoverFor
	r.control.recover(previousRunOf(2))
	sent := 0
	for range 1000 {
		r.now++
		for range 100 {
			if r.shared.budgets.takeRecover(clientID(0), r.now) {
				sent++
			}
		}
		if !r.shared.budgets.takeRecover(clientID(1), r.now) {
			t.Fatalf("at %d ms the other allocation has no rate left", r.now)
		}
	}
	if sent > 2000 {
		t.Errorf("%d ERROR 3 about one allocation in a second", sent)
	}
}

// TestLostPace: records of allocations that did not come back are removed at the pace of expiry.
func TestLostPace(t *testing.T) {
	const n = 10_000
	r := newRig(t, Config{})
	r.control.recover(previousRunOf(n))
	for i := range n / 2 {
		r.control.recovery.returned[2*i] = true
	}
	r.advance(time.Second)
	begin := r.now
	for r.control.backlog {
		r.now++
		before := len(r.ended)
		for range 20 { // However often control is woken up.
			r.control.runOnce(r.now)
		}
		if got := len(r.ended) - before; got > expiriesPerMilli {
			t.Fatalf("%d records were removed in a millisecond", got)
		}
	}
	if took := r.now - begin; len(r.ended) != n/2 || !r.control.recovery.over || took > n/2/expiriesPerMilli {
		t.Errorf("%d of %d removed after %d ms", len(r.ended), n/2, took)
	}
}
