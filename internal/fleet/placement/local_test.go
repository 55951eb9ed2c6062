package placement

import (
	"context"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func newTestAnnouncer(t *testing.T) *Announcer {
	t.Helper()
	s := newFakeStore()
	return NewAnnouncer(AnnouncerConfig{Registry: s, Directory: s, Node: func() Node { return Node{} }})
}

func newTestLocal(t *testing.T) (*Local, *fakeEngine, *Announcer) {
	t.Helper()
	e, a := newFakeEngine(0), newTestAnnouncer(t)
	e.onReserve, e.onEnd = a.HostReserved, a.HostEnded
	return NewLocal(e, a), e, a
}

func wantHeld(t *testing.T, a *Announcer, hosts, ends int) {
	t.Helper()
	if st := a.Stats(); st.Hosts != hosts || st.Ends != ends {
		t.Errorf("%d hosts and %d ends are announced, want %d and %d", st.Hosts, st.Ends, hosts, ends)
	}
}

func reserve(t *testing.T, l *Local) (alloc.Reservation, error) {
	return l.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 4})
}

func TestLocal(t *testing.T) {
	t.Parallel()
	l, e, a := newTestLocal(t)
	first, err := reserve(t, l)
	wantErr(t, "ReserveHost", err, nil)
	_, err = reserve(t, l)
	wantErr(t, "another", err, nil)
	wantHeld(t, a, 2, 0)
	wantErr(t, "KeepCode", l.KeepCode(t.Context(), first.ID, "6789BC"), nil)
	got := a.hosts.find(first.ID)
	if got == nil || got.entry().Code != "6789BC" || got.entry().Tenant != testTenant.Hash() || e.kept[first.ID] != "6789BC" {
		t.Errorf("the announcer holds %+v", got)
	}
	wantErr(t, "KeepCode of an unknown id", l.KeepCode(t.Context(), hostID(99), "6789BC"), alloc.ErrNotFound)
	_, err = l.ReserveJoiner(t.Context(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: first.ID})
	wantErr(t, "a joiner", err, nil)
	wantHeld(t, a, 2, 0)
	wantErr(t, "End", l.End(t.Context(), first.ID), nil)
	wantHeld(t, a, 1, 1)
	_, err = l.Describe(t.Context(), first.ID)
	wantErr(t, "Describe", err, alloc.ErrNotFound)
	for _, refusal := range []error{alloc.ErrFull, alloc.ErrDraining, alloc.ErrMaxConnections} {
		e.set(refusal, false)
		_, err = reserve(t, l)
		wantErr(t, "the engine refuses", err, refusal)
	}
	wantHeld(t, a, 1, 1)
}

// earlyEngine ends what it reserves before it says so.
type earlyEngine struct{ *fakeEngine }

func (e earlyEngine) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	res, err := e.fakeEngine.ReserveHost(ctx, r)
	if err == nil {
		err = e.End(ctx, res.ID)
	}
	return res, err
}

func TestLocalEndsEarly(t *testing.T) {
	t.Parallel()
	l, e, a := newTestLocal(t)
	l.Relay = earlyEngine{e}
	_, err := reserve(t, l)
	wantErr(t, "ReserveHost", err, nil)
	wantHeld(t, a, 0, 1)
}

// nearbyEngine reports the end of an unknown host while it reserves.
type nearbyEngine struct{ *fakeEngine }

func (e nearbyEngine) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	e.onEnd(hostID(99))
	return e.fakeEngine.ReserveHost(ctx, r)
}

func TestLocalAnotherEnds(t *testing.T) {
	t.Parallel()
	l, e, a := newTestLocal(t)
	l.Relay = nearbyEngine{e}
	_, err := reserve(t, l)
	wantErr(t, "ReserveHost", err, nil)
	wantHeld(t, a, 1, 0)
}

// hastyEngine ends each other host at once: before or while its caller gets the
// reservation.
type hastyEngine struct {
	*fakeEngine
	ends *sync.WaitGroup
}

func (e hastyEngine) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	res, err := e.fakeEngine.ReserveHost(ctx, r)
	if err != nil {
		return res, err
	}
	switch res.ID[15] % 4 {
	case 0:
		err = e.End(ctx, res.ID)
	case 2:
		e.ends.Go(func() { _ = e.End(ctx, res.ID) })
	}
	return res, err
}

// TestLocalAtOnce: whatever the order of reservations and ends, those are
// announced in the end that live.
func TestLocalAtOnce(t *testing.T) {
	t.Parallel()
	l, e, a := newTestLocal(t)
	var ends, callers sync.WaitGroup
	l.Relay = hastyEngine{e, &ends}
	for range 8 {
		callers.Go(func() {
			for range 200 {
				_, err := reserve(t, l)
				wantErr(t, "ReserveHost", err, nil)
			}
		})
	}
	callers.Wait()
	ends.Wait()
	if _, live := e.count(); live != 800 {
		t.Fatalf("%d hosts live", live)
	}
	wantHeld(t, a, 800, 800)
	e.mu.Lock()
	defer e.mu.Unlock()
	live := make(map[proto.AllocationID]bool)
	for id := range e.live {
		live[id] = true
		if a.hosts.find(id) == nil {
			t.Errorf("host %v lives and is not announced", id)
		}
	}
	for _, gone := range a.ends {
		if live[gone.Host] {
			t.Errorf("host %v lives, and its end is announced", gone.Host)
		}
	}
}
