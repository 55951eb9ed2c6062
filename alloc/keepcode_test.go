package alloc_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// TestKeepBeforeTheAnswer: a code that was answered has been kept, once, and
// it was in the store by then.
func TestKeepBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	codes, kept := alloc.NewMemoryStore(), make(map[proto.AllocationID]string)
	s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) {
		c.Store = codes
		c.KeepCode = func(ctx context.Context, host proto.AllocationID, code string) error {
			if got, err := codes.HostOf(ctx, testTenant, code); err != nil || got != host {
				t.Errorf("kept %s before it was stored: %v, %v", code, got, err)
			}
			if _, again := kept[host]; again {
				t.Errorf("kept twice")
			}
			kept[host] = code
			return nil
		}
	})
	host := mustAllocate(t, s, alice)
	for range 3 {
		if code := mustCode(t, s, alice, host); kept[host] != code {
			t.Errorf("answered %s, kept %q", code, kept[host])
		}
	}
}

func TestKeepFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk full")
	for _, tt := range []struct{ fails, want error }{
		{broken, alloc.ErrUnavailable},
		{alloc.ErrUnavailable, alloc.ErrUnavailable},
		{context.DeadlineExceeded, alloc.ErrUnavailable},
		{alloc.ErrNotFound, alloc.ErrNotFound},
	} {
		codes, fails := alloc.NewMemoryStore(), tt.fails
		s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) {
			c.Store = codes
			c.KeepCode = func(context.Context, proto.AllocationID, string) error { return fails }
		})
		host := mustAllocate(t, s, alice)
		code, err := s.JoinCode(t.Context(), alice, host)
		if !errors.Is(err, tt.want) || code != "" {
			t.Errorf("Keep fails with %v: code %q, error %v", tt.fails, code, err)
		}
		wantCodes(t, codes, 0)
		fails = nil
		mustCode(t, s, alice, host)
		wantCodes(t, codes, 1)
	}
}

// TestKeepNotAfterFailedPut: a code that was stored although PutCode failed
// was not kept, so it does not become the host's code.
func TestKeepNotAfterFailedPut(t *testing.T) {
	t.Parallel()
	faulty := &faultyStore{MemoryStore: alloc.NewMemoryStore(), put: errors.New("broken"), stores: true}
	s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) {
		c.Store = faulty
		c.KeepCode = func(context.Context, proto.AllocationID, string) error {
			t.Error("kept a code that was not put")
			return nil
		}
	})
	if code, err := s.JoinCode(t.Context(), alice, mustAllocate(t, s, alice)); !errors.Is(err, faulty.put) {
		t.Errorf("code %q, error %v", code, err)
	}
	wantCodes(t, faulty.MemoryStore, 0)
}

// TestNobodyIsToldAnUnkeptCode: while one call keeps the code of a host, the
// next one for it waits, and after a failure gets a code of its own.
func TestNobodyIsToldAnUnkeptCode(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	keeping, fail := make(chan struct{}), make(chan struct{})
	s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) {
		c.KeepCode = func(context.Context, proto.AllocationID, string) error {
			if calls.Add(1) > 1 {
				return nil
			}
			close(keeping)
			<-fail
			return errors.New("broken")
		}
	})
	host, other := mustAllocate(t, s, alice), mustAllocate(t, s, alice)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("whose code was not kept: %v", err)
		}
	})
	<-keeping
	mustCode(t, s, alice, other) // another host's call does not wait
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if code, err := s.JoinCode(ctx, alice, host); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("got %q, %v although KeepCode failed", code, err)
	}
	wg.Go(func() {
		if _, err := s.JoinCode(t.Context(), alice, host); err != nil {
			t.Errorf("the waiting call: %v", err)
		}
	})
	close(fail)
	wg.Wait()
	if n := calls.Load(); n != 3 {
		t.Errorf("Keep was called %d times, want 3", n)
	}
}

// TestJoinWhileTheHostIsAway: after a restart the relay does not know yet
// whether a host comes back, and its code waits with it.
func TestJoinWhileTheHostIsAway(t *testing.T) {
	t.Parallel()
	relay, codes := newFakeRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	relay.joinErr, relay.describeErr = alloc.ErrUnavailable, alloc.ErrUnavailable
	if _, err := s.Join(t.Context(), bob, code); !errors.Is(err, alloc.ErrUnavailable) || errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("join of a host that is away: %v", err)
	}
	if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("code of a host that is away: %v", err)
	}
	wantCodes(t, codes, 1)
	relay.joinErr, relay.describeErr = nil, nil
	if _, err := s.Join(t.Context(), bob, code); err != nil {
		t.Errorf("join when it is back: %v", err)
	}
	if got := mustCode(t, s, alice, host); got != code {
		t.Errorf("its code is now %s, and was %s", got, code)
	}
}

// TestFailedJoinsLengthenNewCodes: failed joins of a tenant make its next codes longer.
// They refuse no join, affect neither older codes nor other tenants, and stop counting
// after hours.
func TestFailedJoinsLengthenNewCodes(t *testing.T) {
	t.Parallel()
	clock := new(handClock)
	s := newTestService(t, newFakeRelay(), func(c *alloc.ServiceConfig) { c.Now = clock.Now })
	host := mustAllocate(t, s, alice)
	first := mustCode(t, s, alice, host)
	for range 300 * 1000 / 50 { // 5 minutes at 1,000 a second, 50 at once
		for range 50 {
			if _, err := s.Join(t.Context(), bob, "WWWWWWWWWWWW"); !errors.Is(err, alloc.ErrCodeNotFound) {
				t.Fatal(err)
			}
		}
		clock.advance(50 * time.Millisecond)
	}
	fresh := mustCode(t, s, alice, mustAllocate(t, s, alice))
	if want := joincode.Len(2, 990); len(first) != 6 || len(fresh) != want {
		t.Errorf("codes %s before and %s while they are guessed at, want 6 and %d symbols", first, fresh, want)
	}
	if got := mustCode(t, s, alice, host); got != first {
		t.Errorf("an old code became %s", got)
	}
	if _, err := s.Join(t.Context(), bob, first); err != nil {
		t.Errorf("an honest join meanwhile: %v", err)
	}
	if code := mustCode(t, s, mallory, mustAllocate(t, s, mallory)); len(code) != 6 {
		t.Errorf("another tenant got %s", code)
	}
	clock.advance(24 * time.Hour)
	if code := mustCode(t, s, alice, mustAllocate(t, s, alice)); len(code) != joincode.Len(3, 10) {
		t.Errorf("a day later the code is %s", code)
	}
}
