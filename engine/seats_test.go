package engine

import (
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

// reserveSeats reserves a host for most players and returns the error.
func (r *rig) reserveSeats(most int) error {
	_, err := r.reserve(alloc.RoleHost, nil, "h", most)
	return err
}

func (r *rig) wantSeats(want int64) {
	r.t.Helper()
	if got := r.control.seats.taken.Load(); got != want {
		r.t.Errorf("%d seats are taken, want %d", got, want)
	}
}

// TestSeats: a host takes its seats when it is reserved, whoever comes, and
// gives them back at its end; joiners take none.
func TestSeats(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{MaxSeats: 10})
	host := r.host(udpN(1), 4)
	r.joiner(udpN(2), host)
	r.wantSeats(5)
	if err := r.reserveSeats(5); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("6 seats of 5: %v", err)
	}
	if err := r.reserveSeats(4); err != nil {
		t.Errorf("5 seats of 5: %v", err)
	}
	if err := r.reserveSeats(1); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("none is left: %v", err)
	}
	if _, err := r.reserve(alloc.RoleJoiner, host, "late", 0); err != nil {
		t.Errorf("a player for a host that has its seats: %v", err)
	}
	r.control.end(r.entry(host).Handle, EndOperator)
	r.wantSeats(5)
	if err := r.reserveSeats(4); err != nil {
		t.Errorf("after the end: %v", err)
	}
	r.control.seats.max = 0
	if err := r.reserveSeats(100); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// TestSeatsAfterARestart: hosts that may yet come back keep a seat for
// themselves and one for each link; all are let in, however few seats there are.
func TestSeatsAfterARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{MaxSeats: 12})
	r.restart(true) // the run before wrote no file
	r.shared.rules.recoverUntil = 0
	host, other := r.host(udpN(1), 7), r.host(udpN(3), 2)
	r.joiner(udpN(2), host)
	r.wantSeats(11)
	r.restart(true)
	r.wantSeats(0)
	if got := r.control.seats.recoverable; got != 3 {
		t.Errorf("%d seats are awaited, want 2 of the host with a link and 1 of the other", got)
	}
	if err := r.reserveSeats(9); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("10 seats of 9: %v", err)
	}
	if err := r.reserveSeats(7); err != nil {
		t.Errorf("8 seats of 9: %v", err)
	}
	r.bind(host, udpN(1), 2)
	r.wantSeats(16) // more than there are: a match does not end for it
	if got := r.control.seats.recoverable; got != 1 {
		t.Errorf("%d seats are awaited, want 1", got)
	}
	if err := r.control.endByID(idOf(other), r.now); err != nil {
		t.Error(err)
	}
	if got := r.control.seats.recoverable; got != 0 {
		t.Errorf("%d seats are awaited after the other was given up", got)
	}
}

// TestSeatsLost: who did not come back in time keeps no seat.
func TestSeatsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.restart(true)
	r.shared.rules.recoverUntil = 0
	r.host(udpN(1), 7)
	r.restart(true)
	if got := r.control.seats.recoverable; got != 1 {
		t.Fatalf("%d seats are awaited", got)
	}
	r.shared.rules.recoverUntil = 0
	r.pump()
	if got := r.control.seats.recoverable; got != 0 {
		t.Errorf("%d seats are awaited after the window", got)
	}
}
