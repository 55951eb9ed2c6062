package rpc

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// through returns the cluster's relay behind a proxy, with an open connection.
func (x *testCluster) through(t *testing.T) (*proxy, placement.Relay) {
	t.Helper()
	p := newProxy(t, x.server.Addr().String())
	remote := x.dialer.Relay(placement.Node{Relay: testRelay, Control: p.addr(), Capabilities: placement.Capabilities()})
	if _, err := remote.Describe(testContext(t), proto.AllocationID{1}); !errors.Is(err, alloc.ErrNotFound) {
		t.Fatal(err)
	}
	return p, remote
}

func TestAnswerLostOnce(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	p, remote := x.through(t)
	calls := uint64(0)
	testkit.Within(t, testTimeout, "a call over a connection that breaks", func() bool {
		p.cutOpen()
		res, err := remote.ReserveHost(testContext(t), testHost())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.relay.Describe(testContext(t), res.ID); err != nil {
			t.Errorf("not the relay's reservation: %v", err)
		}
		calls++
		return x.server.Stats().Repeated > 0
	})
	if st := x.server.Stats(); st.Reserved != calls || x.dialer.Stats().Lost != 0 {
		t.Errorf("%d calls, %+v", calls, st)
	}
}

// loseOne makes calls without answers until the relay has made a reservation.
func (x *testCluster) loseOne(t *testing.T, p *proxy, remote placement.Relay) {
	t.Helper()
	p.cut.Store(true)
	testkit.Within(t, testTimeout, "the relay has reserved", func() bool {
		_, err := remote.ReserveHost(testContext(t), testHost())
		wantUnavailable(t, err)
		made, _ := x.relay.Count()
		return made > 0
	})
	if st := x.dialer.Stats(); st.Lost == 0 || st.Cancelled != 0 {
		t.Errorf("counts %+v", st)
	}
	p.cut.Store(false)
}

// allEnded reports whether reservations were made, and each has ended once and was
// counted by the relay's listener, which happens afterwards.
func (x *testCluster) allEnded() bool {
	x.relay.Lock()
	defer x.relay.Unlock()
	st := x.server.Stats()
	return x.relay.Made > 0 && x.relay.Ended == x.relay.Made && len(x.relay.Live) == 0 &&
		st.Running == 0 && st.Reserved == uint64(x.relay.Made) && st.Ended == st.Reserved
}

func TestAnswerLost(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	p, remote := x.through(t)
	x.loseOne(t, p, remote)
	testkit.Within(t, testTimeout, "no reservation is left", func() bool { _, live := x.relay.Count(); return live == 0 })
	testkit.Within(t, testTimeout, "the API knows", func() bool { st := x.dialer.Stats(); return st.Cancelled == st.Lost })
	testkit.Within(t, testTimeout, "each end is counted", x.allEnded)
}

// TestManyLost checks that reservations are ended whose callers gave up while the relay
// was busy.
func TestManyLost(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	release, entered := make(chan struct{}), make(chan struct{}, 1000)
	x.relay.Before = func(context.Context) {
		entered <- struct{}{}
		<-release
	}
	start(t, x.server.Run)
	x.startDialer(t)
	const callers = 3 * maxRelayConns                 // of which a third gets to the relay at a time
	ctx, giveUp := context.WithCancel(testContext(t)) // Nobody gives up before.
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			_, err := x.remote().ReserveHost(ctx, testHost())
			wantUnavailable(t, err)
		})
	}
	for range maxRelayConns / 2 {
		<-entered
	}
	giveUp()
	all.Wait()
	close(release)
	testkit.Within(t, testTimeout, "all cancellations have come", func() bool {
		st := x.dialer.Stats()
		return st.Cancelled == st.Lost
	})
	testkit.Within(t, testTimeout, "all reservations have ended", x.allEnded)
	if st := x.dialer.Stats(); st.Lost < maxRelayConns/2 || st.Lost > callers || st.Overflowed+st.GivenUp != 0 {
		t.Errorf("counts %+v", st)
	}
}

// TestDeadline checks that a relay that does not answer costs its caller no more than
// the deadline, and that a late reservation is ended even without a cancellation.
func TestDeadline(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	release := make(chan struct{})
	budgets := make(chan time.Duration, 10)
	x.relay.Before = func(ctx context.Context) {
		until, _ := ctx.Deadline()
		budgets <- time.Until(until)
		<-release
	}
	start(t, x.server.Run)
	x.startDialer(t)
	// A caller that only asks, as one that has died would. A busy machine may not
	// even ask its relay within 20 ms.
	for ms := 20; len(budgets) == 0 && ms < 10_000; ms *= 2 {
		header := map[string]string{headerDeadline: strconv.Itoa(ms), headerKey: newKey().String()}
		status, body := x.post(t, x.apiClient(t), pathReserveHost, header, testHostOf4)
		if status != 503 || errorNameOf(t, body) != "unavailable" {
			t.Errorf("%d %s", status, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := x.remote().ReserveHost(ctx, testHost())
	wantUnavailable(t, err)
	close(release)
	testkit.Within(t, testTimeout, "all reservations have ended", x.allEnded)
	for range len(budgets) {
		if b := <-budgets; b > maxDeadline+extraWait {
			t.Errorf("the relay was given %v", b)
		}
	}
}

// TestDeadlineTravels checks that the relay gets the rest of the caller's deadline, and
// that a call past its deadline is not sent.
func TestDeadlineTravels(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	budgets := make(chan time.Duration, 10)
	x.relay.Before = func(ctx context.Context) {
		until, _ := ctx.Deadline()
		budgets <- time.Until(until)
	}
	start(t, x.server.Run)
	x.startDialer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := x.remote().ReserveHost(ctx, testHost()); err != nil {
		t.Fatal(err)
	}
	if got := <-budgets; got > 5*time.Second+extraWait {
		t.Errorf("%v of 5 s", got)
	}
	if _, err := x.remote().ReserveHost(t.Context(), testHost()); err != nil {
		t.Fatal(err)
	}
	if got := <-budgets; got > defaultDeadline+extraWait {
		t.Errorf("without a deadline: %v", got)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := x.remote().ReserveHost(ctx, testHost())
	wantUnavailable(t, err, context.DeadlineExceeded)
	if st := x.server.Stats(); st.Reserved != 2 || x.dialer.Stats().Lost != 0 {
		t.Errorf("counts %+v, %+v", st, x.dialer.Stats())
	}
}

func TestEndFails(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	p, remote := x.through(t)
	x.relay.Fail(alloc.ErrUnavailable, "End")
	x.loseOne(t, p, remote)
	testkit.Within(t, testTimeout, "the relay has failed to end it", func() bool { return x.server.Stats().Refused["unavailable"] > 0 })
	if st := x.dialer.Stats(); st.Cancelled != 0 {
		t.Errorf("counts %+v", st)
	}
	x.relay.Fail(nil, "End")
	testkit.Within(t, testTimeout, "no reservation is left", func() bool { _, live := x.relay.Count(); return live == 0 })
}

func TestPendingIsBounded(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.server.Close()
	stop := start(t, x.dialer.Run)
	testkit.Within(t, testTimeout, "it runs", func() bool { x.dialer.mu.Lock(); defer x.dialer.mu.Unlock(); return x.dialer.running })
	l, _, err := x.dialer.acquire(relayKey{relay: testRelay, control: x.server.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	const more = 10
	for range maxPending + more {
		x.dialer.queueCancellation(l, newKey())
	}
	x.dialer.release(l)
	if st := x.dialer.Stats(); st.Lost != maxPending+more || st.Overflowed != more {
		t.Errorf("counts %+v", st)
	}
	l.pending.mu.Lock()
	l.pending.keys = slices.Clone(l.pending.keys) // A batch of the others may be on its way.
	for i := range l.pending.keys {               // The young ones stay young, however long this takes.
		since := time.Now().Add(time.Hour)
		if i < maxPending/2 {
			since = time.Now().Add(-cancelFor - time.Second)
		}
		l.pending.keys[i].since = since
	}
	l.pending.mu.Unlock()
	testkit.Within(t, testTimeout, "the old ones are given up", func() bool { return x.dialer.Stats().GivenUp == maxPending/2 })
	stop()
	if st := x.dialer.Stats(); st.GivenUp != maxPending || st.Cancelled != 0 {
		t.Errorf("counts %+v", st)
	}
}

// TestTooMany checks that a call without a free slot fails after half of its time, is
// not sent, and leaves nothing to cancel.
func TestTooMany(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	name := relayKey{relay: testRelay, control: x.server.Addr().String()}
	l, _, err := x.dialer.acquire(name)
	if err != nil {
		t.Fatal(err)
	}
	defer x.dialer.release(l)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var places []func()
	for range maxRelayConns {
		giveBack, err := l.acquireSlot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, giveBack)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = x.remote().ReserveHost(short, testHost())
	wantUnavailable(t, err)
	if st := x.dialer.Stats(); st.Lost != 0 || st.Dialed != 0 {
		t.Errorf("counts %+v", st)
	}
	result := make(chan error, 1)
	go func() {
		_, err := x.remote().ReserveHost(ctx, testHost())
		result <- err
	}()
	for _, giveBack := range places {
		giveBack()
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestSlotWait checks that a call waits for a slot for half of its time, which leaves
// the other half for the call.
func TestSlotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newRelayConn(relayKey{relay: testRelay}, nil)
		for range maxRelayConns {
			l.slots <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err := l.acquireSlot(ctx)
		wantUnavailable(t, err, errBusy)
		if waited := time.Since(begin); waited != time.Second/2 {
			t.Errorf("it waited %v of 1 s", waited)
		}
		cancel()
		_, err = l.acquireSlot(ctx)
		wantUnavailable(t, err, context.Canceled)
	})
}
