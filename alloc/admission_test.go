package alloc_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestAdmit: Admit is called for each reservation that the other rules
// permit, and a refused one costs neither a place nor a count.
func TestAdmit(t *testing.T) {
	relay := alloctest.NewRelay()
	var asked []alloc.AdmissionRequest
	var events []alloc.ReservationEvent
	var refuse error
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "eu"}}, MaxOutstanding: 3,
		Admit: func(_ context.Context, a alloc.AdmissionRequest) error {
			asked = append(asked, a)
			return refuse
		},
		OnReserve: func(e alloc.ReservationEvent) { events = append(events, e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	anna := alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: "anna"}
	for _, refuse = range []error{
		alloc.RefusedError{Reason: "banned"}, alloc.ErrProjectQuota, alloc.ErrProjectInactive, alloc.ErrUnavailable,
	} {
		if _, err := service.Allocate(t.Context(), anna, 4, ""); !errors.Is(err, refuse) {
			t.Errorf("%v, want %v", err, refuse)
		}
	}
	if len(relay.Hosts) != 0 || len(events) != 0 {
		t.Errorf("%d hosts although all were refused, %d events", len(relay.Hosts), len(events))
	}
	refuse, asked = nil, nil
	host, err := service.Allocate(t.Context(), anna, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := service.JoinCode(t.Context(), anna, host.ID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := service.Join(t.Context(), anna, code)
	if err != nil {
		t.Fatal(err)
	}
	wantHost := alloc.AdmissionRequest{Caller: anna, Role: alloc.RoleHost, MaxConnections: 4, Region: "eu"}
	wantJoiner := alloc.AdmissionRequest{Caller: anna, Role: alloc.RoleJoiner, Host: host.ID}
	if !reflect.DeepEqual(asked, []alloc.AdmissionRequest{wantHost, wantJoiner}) {
		t.Errorf("asked %+v", asked)
	}
	if !reflect.DeepEqual(events, []alloc.ReservationEvent{{Request: wantHost, ID: host.ID}, {Request: wantJoiner, ID: joiner.ID}}) {
		t.Errorf("events %+v", events)
	}
	asked = nil
	for _, do := range []func() error{
		func() error { _, err := service.Allocate(t.Context(), anna, 101, ""); return err },
		func() error { _, err := service.Allocate(t.Context(), anna, 4, "moon"); return err },
		func() error { _, err := service.Join(t.Context(), anna, "666666"); return err },
		func() error { _, err := service.JoinCode(t.Context(), anna, proto.AllocationID{}); return err },
	} {
		if do() == nil || len(asked) != 0 {
			t.Errorf("asked about what the rules refuse: %+v", asked)
		}
	}
	refuse = alloc.ErrDenied
	for range 5 {
		_, _ = service.Allocate(t.Context(), anna, 4, "")
	}
	refuse = nil
	if _, err := service.Allocate(t.Context(), anna, 4, ""); err != nil {
		t.Errorf("refused ones count: %v", err)
	}
	if _, err := service.Allocate(t.Context(), anna, 4, ""); !errors.Is(err, alloc.ErrOutstanding) || len(asked) != 6 {
		t.Errorf("beyond the bound: %v, asked %d times, want 6", err, len(asked))
	}
}

func allocateAll(t *testing.T, s *alloc.Service, c alloc.Caller) []proto.AllocationID {
	t.Helper()
	var got []proto.AllocationID
	for range 200 {
		res, err := s.Allocate(t.Context(), c, 4, "")
		if err != nil {
			if !errors.Is(err, alloc.ErrOutstanding) {
				t.Fatal(err)
			}
			break
		}
		got = append(got, res.ID)
	}
	return got
}

func TestOutstandingIsBounded(t *testing.T) {
	t.Parallel()
	relay, clock := alloctest.NewRelay(), new(testkit.Clock)
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Now = clock.Now })
	ids := allocateAll(t, s, alice)
	if len(ids) != 20 {
		t.Fatalf("%d reserved and not bound, want 20", len(ids))
	}
	if n := len(relay.Hosts); n != 20 {
		t.Errorf("the relay was asked %d times, want 20", n)
	}
	for _, c := range []alloc.Caller{bob, mallory} {
		if n := len(allocateAll(t, s, c)); n != 20 {
			t.Errorf("%+v: %d", c, n)
		}
	}
	for _, c := range []alloc.Caller{backend, unnamed} {
		if n := len(allocateAll(t, s, c)); n != 200 {
			t.Errorf("%+v: %d, want no bound", c, n)
		}
	}
	s.OnBind(ids[0])
	s.OnBind(ids[0])
	s.OnBind(proto.AllocationID{1})
	relay.End(context.Background(), ids[1])
	relay.End(context.Background(), ids[0]) // which was bound, and counts no more
	if n := len(allocateAll(t, s, alice)); n != 2 {
		t.Errorf("one bound, one ended: %d more, want 2", n)
	}
	clock.Advance(10*time.Second - 1)
	if n := len(allocateAll(t, s, alice)); n != 0 {
		t.Errorf("before the bind time-out: %d more", n)
	}
	clock.Advance(1)
	if n := len(allocateAll(t, s, alice)); n != 20 {
		t.Errorf("after it: %d more, want 20", n)
	}
}

// TestOutstandingJoinsCount: a reservation that the relay or the store refused does not count.
func TestOutstandingJoinsCount(t *testing.T) {
	t.Parallel()
	relay := alloctest.NewRelay()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.MaxOutstanding = 3 })
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	join := func() error { _, err := s.Join(t.Context(), bob, code); return err }
	relay.Fail(alloc.ErrFull, "ReserveJoiner")
	for range 5 {
		if err := join(); !errors.Is(err, alloc.ErrFull) {
			t.Fatal(err)
		}
	}
	relay.Fail(nil)
	for range 5 {
		if _, err := s.Join(t.Context(), bob, "6666666"); !errors.Is(err, alloc.ErrCodeNotFound) {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := join(); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(); !errors.Is(err, alloc.ErrOutstanding) {
		t.Errorf("a fourth join: %v", err)
	}
	if n := len(allocateAll(t, s, bob)); n != 0 {
		t.Errorf("%d allocations after three joins", n)
	}
}

func unlimitedRelay() *alloctest.Relay {
	r := alloctest.NewRelay()
	r.Config.Unlimited = true
	return r
}

func TestOutstandingUnlimited(t *testing.T) {
	t.Parallel()
	s := newTestService(t, unlimitedRelay(), nil)
	ids := allocateAll(t, s, alice)
	if len(ids) != 200 {
		t.Errorf("%d allocations, want no bound", len(ids))
	}
	s.OnBind(ids[0])
	s.OnEnd(ids[0])
}

func TestOutstandingAtOnce(t *testing.T) {
	t.Parallel()
	s := newTestService(t, alloctest.NewRelay(), nil)
	var mu sync.Mutex
	granted := make(map[string]int)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			c := alloc.Caller{Tenant: testTenant, Player: fmt.Sprint("player ", g%2)}
			for range 10 {
				if _, err := s.Allocate(t.Context(), c, 1, ""); err == nil {
					mu.Lock()
					granted[c.Player]++
					mu.Unlock()
				} else if !errors.Is(err, alloc.ErrOutstanding) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if granted["player 0"] != 20 || granted["player 1"] != 20 {
		t.Errorf("granted %v, want 20 each", granted)
	}
}

func TestSetMaxOutstanding(t *testing.T) {
	t.Parallel()
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.MaxOutstanding = 3 })
	for _, c := range []struct{ most, more int }{{3, 3}, {5, 2}, {1, 0}, {6, 1}} {
		s.SetMaxOutstanding(c.most)
		if n := len(allocateAll(t, s, alice)); n != c.more {
			t.Errorf("%d are permitted: %d more, want %d", c.most, n, c.more)
		}
	}
	free := newTestService(t, unlimitedRelay(), nil)
	free.SetMaxOutstanding(1)
	if n := len(allocateAll(t, free, alice)); n != 200 {
		t.Errorf("%d allocations without a bound", n)
	}
}
