package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// TestAwaitCall: an answer that control has given, or will give since it has taken the call, is
// not lost because the relay has stopped since, as it does after a drain that is over at once,
// nor because the caller's time is over. A call that control has not taken is withdrawn.
func TestAwaitCall(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 200 {
		for _, c := range []struct {
			ctx     context.Context
			taken   bool
			stopped chan struct{}
			want    error
		}{
			{context.Background(), true, closed, nil},
			{over, true, make(chan struct{}), nil},
			{over, false, make(chan struct{}), context.Canceled},
			{context.Background(), false, closed, ErrNotRunning},
		} {
			waiting := &call{done: make(chan error)}
			if c.taken && waiting.take() {
				go func() { waiting.done <- nil }()
			}
			if err := (&Server{stopped: c.stopped}).awaitCall(c.ctx, waiting); !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if waiting.take() {
				t.Fatal("control may still take the call")
			}
		}
	}
}

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

// TestSeats: a host takes its seats when it is reserved, whether players come or not, and
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

// TestSeatsAfterARestart: hosts that may still come back keep a seat for
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

func idOf(card *mReservation) proto.AllocationID { return proto.AllocationID(card.id) }

func (r *rig) usage() []Usage {
	for _, w := range r.workers {
		w.publish()
	}
	r.control.projects.traffic = (&Server{workers: r.workers}).traffic
	return r.control.projects.usage(r.now)
}

// TestUsage: players count from their first BIND to their end, also when
// nothing else happens in between; what is relayed counts for the sender's
// tenant, and what is dropped does not.
func TestUsage(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host := r.host(udpN(1), 4)
	p := r.joiner(udpN(2), host)
	r.advance(3 * time.Second)
	for range 5 {
		r.feed(udpN(2), relayMessage(p.id, host.id, 100))
	}
	r.feed(udpN(1), relayMessage(host.id, p.id, 50))
	r.feed(udpN(3), relayMessage(p.id, host.id, 100)) // from an unknown endpoint
	reserved, err := r.reserve(alloc.RoleHost, nil, "h", 2)
	if err != nil {
		t.Fatal(err)
	}
	got := r.usage()
	want := Usage{
		Tenant: alloc.Tenant{Project: "p"}.Hash(), Allocations: 3, Hosts: 2, Players: 2,
		PlayerSeconds: 6, Datagrams: 6, Bytes: 5*138 + 88,
	}
	if len(got) != 1 || got[0] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.advance(time.Second)
	if got := r.usage()[0]; got.PlayerSeconds != 8 {
		t.Errorf("a second later: %v", got.PlayerSeconds)
	}
	r.control.end(r.entry(p).Handle, EndOperator)
	r.control.end(r.entry(reserved).Handle, EndOperator)
	r.advance(2 * time.Second)
	want.Allocations, want.Hosts, want.Players, want.PlayerSeconds = 1, 1, 1, 10
	if got := r.usage()[0]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestUsageRoams: a player that binds again, from another endpoint or not, counts once.
func TestUsageRoams(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host := r.host(udpN(1), 4)
	r.bind(host, udpN(1), 2)
	r.bind(host, udpN(7), 3)
	taken := r.host(udpN(7), 4) // and the first one is without an endpoint
	if got := r.usage()[0]; got.Players != 2 {
		t.Errorf("%d players", got.Players)
	}
	for _, card := range []*mReservation{host, taken} {
		r.control.end(r.entry(card).Handle, EndClosed)
	}
	if got := r.usage()[0]; got.Players != 0 || got.Allocations != 0 || got.Hosts != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTraffic(t *testing.T) {
	w := newTraffic()
	for row := range uint32(maxUsageRows) {
		w.add(row, int(row))
		w.add(row, 1)
	}
	if d, b := w.read(5); d != 0 || b != 0 {
		t.Errorf("before it is published: %d, %d", d, b)
	}
	w.publish()
	w.add(5, 100)
	w.publish()
	for row := range uint32(maxUsageRows) {
		datagrams, bytes := w.read(row)
		wantDatagrams, wantBytes := uint64(2), uint64(row)+1
		if row == 5 {
			wantDatagrams, wantBytes = 3, 106
		}
		if datagrams != wantDatagrams || bytes != wantBytes {
			t.Errorf("row %d: %d datagrams, %d bytes", row, datagrams, bytes)
		}
	}
	if allocs := testing.AllocsPerRun(10, func() {
		for row := range uint32(maxUsageRows) {
			w.add(row, 1)
		}
		w.publish()
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestSetLimits: another quota holds from the next datagram on.
func TestSetLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Limits: Limits{JoinerDatagrams: 10}})
	host := r.host(udpN(1), 4)
	p := r.joiner(udpN(2), host)
	r.feed(udpN(1), pingMessage(host.id))
	relayed := func(n int) (passed int) {
		for range n {
			if r.feed(udpN(2), relayMessage(p.id, host.id, 10)) == outRelayed {
				passed++
			}
		}
		return passed
	}
	if n := relayed(30); n != 10 {
		t.Errorf("%d passed, want 10", n)
	}
	kernel := new(fakePath)
	r.cfg.FastPath = kernel
	s := Server{shared: r.shared, cfg: r.cfg}
	s.SetLimits(Limits{JoinerDatagrams: -1, JoinerBytes: -1})
	if n := relayed(30); n != 30 {
		t.Errorf("%d passed without a limit", n)
	}
	if kernel.quotas[table.RoleJoiner] != (table.Quota{}) || kernel.quotas[table.RoleHost] == (table.Quota{}) {
		t.Errorf("the fast path has the limits %+v", kernel.quotas)
	}
	s.SetLimits(Limits{JoinerDatagrams: 20})
	r.advance(5 * time.Second)
	if n := relayed(60); n != 20 {
		t.Errorf("%d passed, want 20", n)
	}
}

// TestUsageAfterARestart: a player that comes back counts without a reservation in this run.
func TestUsageAfterARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.restart(true)
	host, late := r.host(udpN(1), 4), r.host(udpN(3), 4)
	p := r.joiner(udpN(2), host)
	r.restart(true)
	if allocations, players := r.projectTotals("p"); allocations != 0 || players != 0 {
		t.Errorf("none is back: %d allocations, %d players", allocations, players)
	}
	r.bind(host, udpN(1), 2)
	r.bind(p, udpN(2), 2)
	if allocations, players := r.projectTotals("p"); allocations != 2 || players != 2 {
		t.Errorf("two are back: %d allocations, %d players", allocations, players)
	}
	if got := r.usage(); len(got) != 1 || got[0].Name != (alloc.Tenant{Project: "p"}) || got[0].Hosts != 1 {
		t.Errorf("%+v", got)
	}
	if allocations, players := r.projectTotals(""); allocations != 0 || players != 0 {
		t.Errorf("of no project: %d allocations, %d players", allocations, players)
	}
	r.control.end(r.entry(p).Handle, EndClosed)
	r.bind(late, udpN(3), 2)
	if allocations, players := r.projectTotals("p"); allocations != 2 || players != 2 {
		t.Errorf("one ended, one came: %d allocations, %d players", allocations, players)
	}
}

func (r *rig) projectTotals(project string) (allocations, players int) {
	for _, u := range r.control.projects.list([]string{project}) {
		allocations += u.Allocations
		players += u.Players
	}
	return allocations, players
}
