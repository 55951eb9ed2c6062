package alloc_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestKeepBeforeTheAnswer: a code that was answered has been kept, the same one each time,
// and it was in the store by then.
func TestKeepBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	codes, kept := alloc.NewMemoryStore(), make(map[proto.AllocationID]string)
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) {
		c.Store = codes
		c.KeepCode = func(ctx context.Context, host proto.AllocationID, code string) error {
			if got, err := codes.HostOf(ctx, testTenant, code); err != nil || got != host {
				t.Errorf("kept %s before it was stored: %v, %v", code, got, err)
			}
			if before, again := kept[host]; again && before != code {
				t.Errorf("kept %s after %s", code, before)
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
		s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) {
			c.Store = codes
			c.KeepCode = func(context.Context, proto.AllocationID, string) error { return fails }
		})
		host := mustAllocate(t, s, alice)
		code, err := s.JoinCode(t.Context(), alice, host)
		if !errors.Is(err, tt.want) || code != "" {
			t.Errorf("Keep fails with %v: code %q, error %v", tt.fails, code, err)
		}
		fails = nil
		mustCode(t, s, alice, host)
		wantCodes(t, codes, 1)
	}
}

// TestKeepAfterFailedPut: a code that was stored although PutCode failed is kept before any
// call answers with it.
func TestKeepAfterFailedPut(t *testing.T) {
	t.Parallel()
	var kept []string
	faulty := &faultyStore{Store: alloc.NewMemoryStore(), put: errors.New("broken"), stores: true}
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) {
		c.Store = faulty
		c.KeepCode = func(_ context.Context, _ proto.AllocationID, code string) error {
			kept = append(kept, code)
			return nil
		}
	})
	host := mustAllocate(t, s, alice)
	if code, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, faulty.put) || len(kept) != 0 {
		t.Errorf("got %q, %v, kept %q", code, err, kept)
	}
	if code := mustCode(t, s, alice, host); len(kept) != 1 || kept[0] != code {
		t.Errorf("answered %s, kept %q", code, kept)
	}
}

// lateStore removes codes late, as a store that does not answer for a moment.
type lateStore struct {
	faultyStore
	hosts []proto.AllocationID
}

func (l *lateStore) Forget(host proto.AllocationID) { l.hosts = append(l.hosts, host) }

func (l *lateStore) forgetNow() {
	for _, host := range l.hosts {
		l.Store.Forget(host)
	}
}

// TestTwoProcesses: two processes with one store, as in a fleet. The first one stores a code
// and does not hear so, or cannot have it kept; the client asks the second one. What that
// answers stays the host's code, and the relay keeps it.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, fail := range map[string]struct{ put, keep error }{
		"no reply of the store": {put: broken}, "no reply of the relay": {keep: alloc.ErrUnavailable},
	} {
		relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
		kept := make(map[proto.AllocationID]string)
		late := &lateStore{faultyStore: faultyStore{Store: codes, put: fail.put, stores: true}}
		first := newTestService(t, relay, func(c *alloc.ServiceConfig) {
			c.Store = late
			c.KeepCode = func(context.Context, proto.AllocationID, string) error { return fail.keep }
		})
		second := newTestService(t, relay, func(c *alloc.ServiceConfig) {
			c.Store = codes
			c.KeepCode = func(_ context.Context, host proto.AllocationID, code string) error { kept[host] = code; return nil }
		})
		host := mustAllocate(t, first, alice)
		if _, err := first.JoinCode(t.Context(), alice, host); err == nil {
			t.Errorf("%s: no error", name)
		}
		code := mustCode(t, second, alice, host)
		late.forgetNow()
		if got, err := codes.HostOf(t.Context(), testTenant, code); err != nil || got != host || kept[host] != code {
			t.Errorf("%s: answered %s, which leads to %v, %v; kept %q", name, code, got, err, kept[host])
		}
	}
}

// TestNobodyIsToldAnUnkeptCode: a code that one call has stored and not kept is no other
// call's answer before that has kept it.
func TestNobodyIsToldAnUnkeptCode(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	keeping, fail := make(chan struct{}), make(chan struct{})
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) {
		c.KeepCode = func(context.Context, proto.AllocationID, string) error {
			switch calls.Add(1) {
			case 1:
				close(keeping)
				<-fail
				return errors.New("broken")
			case 2:
				return alloc.ErrUnavailable
			}
			return nil
		}
	})
	host := mustAllocate(t, s, alice)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("whose code was not kept: %v", err)
		}
	})
	<-keeping
	if code, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("got %q, %v although KeepCode failed", code, err)
	}
	mustCode(t, s, alice, host)
	close(fail)
	wg.Wait()
	if n := calls.Load(); n != 3 {
		t.Errorf("KeepCode was called %d times, want 3", n)
	}
}

// TestJoinWhileTheHostIsAway: after a restart the relay does not know yet
// whether a host comes back, and its code waits with it.
func TestJoinWhileTheHostIsAway(t *testing.T) {
	t.Parallel()
	relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	relay.Fail(alloc.ErrUnavailable)
	if _, err := s.Join(t.Context(), bob, code); !errors.Is(err, alloc.ErrUnavailable) || errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("join of a host that is away: %v", err)
	}
	if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("code of a host that is away: %v", err)
	}
	wantCodes(t, codes, 1)
	relay.Fail(nil)
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
	clock := new(testkit.Clock)
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Now = clock.Now })
	host := mustAllocate(t, s, alice)
	first := mustCode(t, s, alice, host)
	for range 300 * 1000 / 50 { // 5 minutes at 1,000 a second, 50 at once
		for range 50 {
			if _, err := s.Join(t.Context(), bob, "WWWWWWWWWWWW"); !errors.Is(err, alloc.ErrCodeNotFound) {
				t.Fatal(err)
			}
		}
		clock.Advance(50 * time.Millisecond)
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
	clock.Advance(24 * time.Hour)
	if code := mustCode(t, s, alice, mustAllocate(t, s, alice)); len(code) != joincode.Len(3, 10) {
		t.Errorf("a day later the code is %s", code)
	}
}
