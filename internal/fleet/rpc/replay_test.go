package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestReplayIsIdentical(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	c := x.apiClient(t)
	k := newKey()
	status, first := x.post(t, c, pathReserveHost, keyed(k), testHostOf4)
	if status != 200 {
		t.Fatalf("%d %s", status, first)
	}
	var host reservationAnswer
	if err := json.Unmarshal([]byte(first), &host); err != nil {
		t.Fatal(err)
	}
	joiner := `{"project":"game","environment":"live","player":"` + testPlayer + `","host":"` + host.ID + `","clientAddress":""}`
	joinKey := newKey()
	_, firstJoin := x.post(t, c, pathReserveJoiner, keyed(joinKey), joiner)
	x.relay.Fail(alloc.ErrFull)
	for range 3 {
		if _, again := x.post(t, c, pathReserveHost, keyed(k), testHostOf4); again != first {
			t.Errorf("another answer:\n%s\n%s", first, again)
		}
		if _, again := x.post(t, c, pathReserveJoiner, keyed(joinKey), joiner); again != firstJoin {
			t.Errorf("another answer:\n%s\n%s", firstJoin, again)
		}
	}
	// A refusal is remembered as well: what was refused is not made later.
	full := newKey()
	_, refused := x.post(t, c, pathReserveHost, keyed(full), testHostOf4)
	x.relay.Fail(nil)
	if _, again := x.post(t, c, pathReserveHost, keyed(full), testHostOf4); again != refused || errorNameOf(t, again) != "full" {
		t.Errorf("at first %s, then %s", refused, again)
	}
	if made, live := x.relay.Count(); made != 2 || live != 2 {
		t.Errorf("%d made, %d live, want 2", made, live)
	}
	for path, body := range map[string]string{
		pathReserveHost:   testHostOf4[:len(testHostOf4)-1] + " }",
		pathReserveJoiner: joiner,
	} {
		if status, body := x.post(t, c, path, keyed(k), body); status != 409 || errorNameOf(t, body) != "key-reused" {
			t.Errorf("the key with another call: %d %s", status, body)
		}
	}
	if st := x.server.Stats(); st.Repeated != 7 || st.Remembered != 3 {
		t.Errorf("counts %+v", st)
	}
}

func TestConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	release, entered := make(chan struct{}), make(chan struct{}, 100)
	x.relay.Before = func(context.Context) {
		entered <- struct{}{}
		<-release
	}
	start(t, x.server.Run)
	x.startDialer(t)
	const callers = 20
	k, c := newKey(), x.apiClient(t)
	answers := make([]string, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() { _, answers[i] = x.post(t, c, pathReserveHost, keyed(k), testHostOf4) })
	}
	<-entered
	testkit.Within(t, testTimeout, "the others have come", func() bool { return x.server.Stats().Repeated == callers-1 })
	close(release)
	all.Wait()
	for i, a := range answers {
		if a != answers[0] || len(a) < 500 {
			t.Errorf("answer %d: %s", i, a)
		}
	}
	if made, _ := x.relay.Count(); made != 1 || len(entered) != 0 {
		t.Errorf("%d made, %d more entered", made, len(entered))
	}
}

// done settles an attempt that has made a reservation with that id.
func done(t *testing.T, m *attemptTable, k key, id byte) (a *attempt, end bool) {
	t.Helper()
	a, isNew, err := m.begin(k, [32]byte{1})
	if err != nil || !isNew {
		t.Fatalf("key %v: new %v, %v", k, isNew, err)
	}
	return a, m.finish(k, a, outcome{res: &alloc.Reservation{ID: proto.AllocationID{id}}}, false)
}

func TestAttemptsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newAttemptTable(8)
		done(t, m, key{1}, 1)
		time.Sleep(time.Second)
		done(t, m, key{2}, 2)
		time.Sleep(retainFor - time.Second - 1)
		if _, isNew, _ := m.begin(key{1}, [32]byte{1}); isNew {
			t.Error("forgotten before its time")
		}
		time.Sleep(time.Nanosecond)
		m.sweep()
		if _, remembered, forgot := m.sizes(); remembered != 1 || len(m.byKey) != 1 || forgot != 0 {
			t.Errorf("%d remembered, %d by key, %d forgotten", remembered, len(m.byKey), forgot)
		}
		if a, _ := done(t, m, key{1}, 3); a.id != (proto.AllocationID{3}) {
			t.Error("the second reservation of a forgotten key is the first one")
		}
	})
}

// TestAttemptsAreBounded checks that a full table drops and counts its oldest outcome,
// and never an attempt in progress.
func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	m := newAttemptTable(4)
	running, _, err := m.begin(key{0xFF}, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if i%2 == 0 {
			done(t, m, key{byte(i)}, byte(i+1))
		} else {
			m.cancel(key{byte(i)})
		}
		if len(m.byKey) > 5 {
			t.Fatalf("%d are remembered", len(m.byKey))
		}
	}
	if _, remembered, forgot := m.sizes(); remembered != 4 || forgot != 96 {
		t.Errorf("%d remembered, %d forgotten", remembered, forgot)
	}
	if again, isNew, _ := m.begin(key{0xFF}, [32]byte{1}); again != running || isNew {
		t.Error("an attempt in progress was dropped")
	}
	for i := range maxRunning - 1 {
		if _, isNew, err := m.begin(key{1, byte(i), byte(i >> 8)}, [32]byte{1}); !isNew || err != nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
	}
	_, _, err = m.begin(key{2}, [32]byte{1})
	if r, ok := errors.AsType[refusal](err); !ok || r.name != "busy" {
		t.Errorf("one too many: %v", err)
	}
}

func isRefused(o outcome) bool {
	r, ok := errors.AsType[refusal](o.err)
	return ok && o.res == nil && (r.name == "cancelled" || r.name == "unavailable")
}

func oneAttempt(t *testing.T) (*attemptTable, *attempt, outcome) {
	t.Helper()
	m := newAttemptTable(8)
	a, isNew, err := m.begin(key{1}, [32]byte{1})
	if err != nil || !isNew {
		t.Fatal(isNew, err)
	}
	return m, a, outcome{res: &alloc.Reservation{ID: proto.AllocationID{7}}}
}

func TestAttemptsAreCancelled(t *testing.T) {
	t.Parallel()
	m := newAttemptTable(8)
	if _, end := m.cancel(key{1}); end {
		t.Error("before it came: there is something to end")
	}
	if _, _, err := m.begin(key{1}, [32]byte{1}); !isRefused(outcome{err: err}) {
		t.Errorf("before it came: %v", err)
	}

	m, a, res := oneAttempt(t)
	if _, end := m.cancel(key{1}); end {
		t.Error("in progress: a reservation must be ended")
	}
	if !m.finish(key{1}, a, res, false) || !isRefused(m.outcome(a)) {
		t.Errorf("in progress: not ended, or returned: %+v", m.outcome(a))
	}
	if id, end := m.cancel(key{1}); !end || id != res.res.ID {
		t.Error("in progress, cancelled again before its end: not ended")
	}
	m.markEnded(key{1})
	if _, end := m.cancel(key{1}); end {
		t.Error("cancelled again after its end: ended twice")
	}

	m, a, _ = oneAttempt(t)
	m.cancel(key{1})
	if m.finish(key{1}, a, outcome{err: alloc.ErrFull}, false) || !isRefused(m.outcome(a)) {
		t.Error("in progress, then failed: a reservation must be ended")
	}

	m, a, res = oneAttempt(t)
	if m.finish(key{1}, a, res, false) || m.outcome(a).res == nil || m.abandon(a).res == nil {
		t.Error("in time: it is ended")
	}
	if id, end := m.cancel(key{1}); !end || id != res.res.ID || !isRefused(m.outcome(a)) {
		t.Error("cancelled when done: not ended, or returned")
	}
	if running, _, _ := m.sizes(); running != 0 {
		t.Errorf("%d are in progress", running)
	}
}

func TestLateAttempts(t *testing.T) {
	t.Parallel()
	m, a, res := oneAttempt(t)
	if !m.finish(key{1}, a, res, true) || !isRefused(m.outcome(a)) {
		t.Error("too late: it is not ended, or given away")
	}
	if _, end := m.cancel(key{1}); !end {
		t.Error("late, and cancelled before its end: not ended")
	}

	m, a, res = oneAttempt(t)
	if !isRefused(m.abandon(a)) || !m.finish(key{1}, a, res, false) || !isRefused(m.outcome(a)) || !isRefused(m.abandon(a)) {
		t.Error("a caller got the error of the deadline: not ended, or returned")
	}
}
