package alloc_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// handClock is a clock that a test moves. Its methods may be called from
// several goroutines.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// allocateAll allocates until the service refuses, and returns the ids.
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
	relay, clock := newFakeRelay(), new(handClock)
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Now = clock.Now })
	ids := allocateAll(t, s, alice)
	if len(ids) != 20 {
		t.Fatalf("%d reserved and not bound, want 20", len(ids))
	}
	if n := len(relay.hosts); n != 20 {
		t.Errorf("the relay was asked %d times, want 20", n)
	}
	// Nobody else is the worse for it.
	for _, c := range []alloc.Caller{bob, mallory} {
		if n := len(allocateAll(t, s, c)); n != 20 {
			t.Errorf("%+v: %d", c, n)
		}
	}
	for _, c := range []alloc.Caller{backend, nobody} {
		if n := len(allocateAll(t, s, c)); n != 200 {
			t.Errorf("%+v: %d, want no bound", c, n)
		}
	}
	s.OnBind(ids[0])
	s.OnBind(ids[0])
	s.OnBind(proto.AllocationID{1})
	relay.end(s, ids[1])
	relay.end(s, ids[0]) // which was bound, and counts no more
	if n := len(allocateAll(t, s, alice)); n != 2 {
		t.Errorf("one bound, one ended: %d more, want 2", n)
	}
	clock.advance(10*time.Second - 1)
	if n := len(allocateAll(t, s, alice)); n != 0 {
		t.Errorf("before the bind time-out: %d more", n)
	}
	clock.advance(1)
	if n := len(allocateAll(t, s, alice)); n != 20 {
		t.Errorf("after it: %d more, want 20", n)
	}
}

// TestOutstandingJoinsCount: a joiner's reservation counts like a host's; one that the
// relay or the store refused does not count.
func TestOutstandingJoinsCount(t *testing.T) {
	t.Parallel()
	relay := newFakeRelay()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.MaxOutstanding = 3 })
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	join := func() error { _, err := s.Join(t.Context(), bob, code); return err }
	relay.joinErr = alloc.ErrFull
	for range 5 {
		if err := join(); !errors.Is(err, alloc.ErrFull) {
			t.Fatal(err)
		}
	}
	relay.joinErr = nil
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

func TestOutstandingUnlimited(t *testing.T) {
	t.Parallel()
	s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) { c.Unlimited = true })
	ids := allocateAll(t, s, alice)
	if len(ids) != 200 {
		t.Errorf("%d allocations, want no bound", len(ids))
	}
	s.OnBind(ids[0])
	s.OnEnd(ids[0])
}

// TestOutstandingAtOnce: of many calls at once no more than the bound succeed.
func TestOutstandingAtOnce(t *testing.T) {
	t.Parallel()
	s := newTestService(t, newFakeRelay(), nil)
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

// TestSetMaxOutstanding: a new limit applies from the next call on, and earlier
// reservations count.
func TestSetMaxOutstanding(t *testing.T) {
	t.Parallel()
	s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) { c.MaxOutstanding = 3 })
	for _, c := range []struct{ most, more int }{{3, 3}, {5, 2}, {1, 0}, {6, 1}} {
		s.SetMaxOutstanding(c.most)
		if n := len(allocateAll(t, s, alice)); n != c.more {
			t.Errorf("%d are permitted: %d more, want %d", c.most, n, c.more)
		}
	}
	free := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) { c.Unlimited = true })
	free.SetMaxOutstanding(1)
	if n := len(allocateAll(t, free, alice)); n != 200 {
		t.Errorf("%d allocations without a bound", n)
	}
}
