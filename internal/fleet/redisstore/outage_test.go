package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func unavailable(err error) bool {
	return errors.Is(err, alloc.ErrStoreUnavailable) && errors.Is(err, alloc.ErrUnavailable)
}

// eachCall makes every call that a store has once, and returns their errors.
func eachCall(ctx context.Context, s *Store) map[string]error {
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	entries := []placement.HostEntry{{Host: hostID(1), Tenant: tenant.Hash(), Code: codeText(1), Since: time.Now()}}
	errs := make(map[string]error)
	_, errs["PutCode"] = s.Directory.PutCode(ctx, tenant, codeText(2), hostID(2))
	_, errs["HostOf"] = s.Directory.HostOf(ctx, tenant, codeText(1))
	_, errs["CodeOf"] = s.Directory.CodeOf(ctx, tenant, hostID(1))
	_, _, errs["Codes"] = s.Directory.Codes(ctx, tenant, hostID(1))
	errs["SetHome"] = s.Directory.SetHome(ctx, hostID(1), home)
	_, errs["HomeOf"] = s.Directory.HomeOf(ctx, hostID(1))
	_, errs["Renew"] = s.Directory.Renew(ctx, home, entries)
	errs["Drop"] = s.Directory.Drop(ctx, home, entries)
	_, errs["Announce"] = s.Registry.Announce(ctx, placement.Node{Relay: home.Relay, Boot: 1})
	_, errs["Nodes"] = s.Registry.Nodes(ctx)
	errs["Withdraw"] = s.Registry.Withdraw(ctx, home.Relay, 1)
	errs["Lease"] = lease(ctx, s, "scope", "holder", 1, time.Minute)
	_, errs["Used"] = s.Leases.Used(ctx, "scope")
	_, _, errs["Take"] = s.Buckets.Take(ctx, "key", 1000)
	errs["Ping"] = s.Ping(ctx)
	return errs
}

func wantUp(t *testing.T, s *Store) {
	t.Helper()
	testkit.NoProblemWithin(t, 2*time.Minute, "every call is answered", func() string {
		for name, err := range eachCall(t.Context(), s) {
			if unavailable(err) {
				return fmt.Sprint(name, ": ", err)
			}
		}
		return ""
	})
}

// TestOutage takes the store away in three ways. Every call fails, in much less
// time than callers wait, most of them without a call of the store; and all calls
// work once it is back.
func TestOutage(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]struct{ begin, end func(*redistest.Server) }{
		"paused": {(*redistest.Server).Pause, (*redistest.Server).Resume},
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			s := open(t, Config{URL: server.URL})
			wantUp(t, s)
			before := s.Stats()
			away.begin(server)
			stood := watchStalls()
			slowest := outage(t, s, 3*time.Second)
			stoodStill := stood()
			during := s.Stats()
			away.end(server)
			wantUp(t, s)
			after := s.Stats()
			asked, refused := during.Calls-before.Calls, during.Refused-before.Refused
			t.Logf("the slowest of %d calls failed after %v; the store was asked %d times", asked+refused, slowest, asked)
			// Of a call that the machine itself kept waiting, twice at the most, the
			// rest counts.
			if slowest > time.Second+2*stoodStill {
				t.Errorf("a call failed after %v, where the test stood still for %v", slowest, stoodStill)
			}
			if during.Opened == before.Opened || !during.Open || after.Open || after.Closed == before.Closed {
				t.Errorf("breaker before, during and after: %+v, %+v, %+v", before, during, after)
			}
			if asked == 0 || refused < 10*asked {
				t.Errorf("the store was asked %d times and not asked %d times", asked, refused)
			}
		})
	}
}

// watchStalls watches for how long this process gets no time from the machine.
// What it returns ends that and returns the longest time.
func watchStalls() (end func() time.Duration) {
	const pause = 5 * time.Millisecond
	quit, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for {
			begin := time.Now()
			select {
			case <-quit:
				longest <- most
				return
			case <-time.After(pause):
				most = max(most, time.Since(begin)-pause)
			}
		}
	}()
	return func() time.Duration { close(quit); return <-longest }
}

// outage makes calls from several goroutines for a while, expects that all of
// them fail, and returns how long the slowest took.
func outage(t *testing.T, s *Store, d time.Duration) time.Duration {
	t.Helper()
	var slowest atomic.Int64
	var wg sync.WaitGroup
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 4 {
			wg.Go(func() {
				start := time.Now()
				if err := s.Ping(t.Context()); !unavailable(err) {
					t.Errorf("a call without a store: %v", err)
				}
				for took := int64(time.Since(start)); ; {
					if was := slowest.Load(); took <= was || slowest.CompareAndSwap(was, took) {
						return
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Millisecond)
	}
	// While the breaker is open each call fails, in whichever way it is made.
	for name, err := range eachCall(t.Context(), s) {
		if !unavailable(err) {
			t.Errorf("%s without a store: %v", name, err)
		}
	}
	return time.Duration(slowest.Load())
}

// TestCallerCancels: a caller that leaves says nothing about the store.
func TestCallerCancels(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 * failuresAlone {
		if err := s.Ping(ctx); !unavailable(err) || !errors.Is(err, context.Canceled) {
			t.Fatalf("Ping of a caller that left: %v", err)
		}
	}
	if got := s.Stats(); got.Open || got.Opened != 0 {
		t.Errorf("%+v", got)
	}
}

// TestForgetOutlivesOutage: hosts that are forgotten while there is no store
// are forgotten when it is back; what does not fit is counted.
func TestForgetOutlivesOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL})
	wantUp(t, s)
	// A store that knows the scripts executes the commands that arrived while it stood
	// still, and the answers are lost.
	s.Directory.Forget(hostID(2))
	testkit.NoProblemWithin(t, 30*time.Second, "the code of wantUp is forgotten", func() string {
		if st := s.Stats(); st.Forgotten != 1 {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	})
	const many = 3 * batch
	put := open(t, Config{URL: server.URL, Timeout: testTimeout})
	for n := range many {
		if ok, err := put.Directory.PutCode(t.Context(), tenant, codeText(1000+n), hostID(1000+n)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	server.Pause()
	before := s.Stats()
	for n := range many {
		s.Directory.Forget(hostID(1000 + n))
	}
	for range forgetCapacity + many {
		s.Directory.Forget(proto.AllocationID{1}) // One that has no code.
	}
	if got := s.Stats(); got.Overflow == 0 {
		t.Error("nothing was counted as too much")
	}
	testkit.NoProblemWithin(t, 30*time.Second, "the outage is noticed", func() string {
		if got := s.Stats(); got.Failed == before.Failed {
			return fmt.Sprintf("%+v", got)
		}
		return ""
	})
	server.Resume()
	testkit.NoProblemWithin(t, 30*time.Second, "all codes are forgotten", func() string {
		if _, n, err := put.Directory.Codes(t.Context(), tenant, hostID(1)); n > 0 || err != nil {
			return fmt.Sprint(n, err)
		}
		return ""
	})
}

// TestRunFinishes: queued removals are sent before the end, and an unreachable
// store does not delay it.
func TestRunFinishes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := New(Config{URL: server.URL, Timeout: testTimeout, Signer: &anySigner{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const many = 2*batch + 10
	for n := range many {
		if ok, err := s.Directory.PutCode(t.Context(), tenant, codeText(n), hostID(n)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s.Directory.Forget(hostID(n))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.NoProblemWithin(t, 30*time.Second, "no code is left", func() string {
		begin, failed := time.Now(), s.Stats().Failed
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begin)
		_, left, err := s.Directory.Codes(t.Context(), tenant, hostID(1))
		if left == 0 && err == nil {
			return ""
		}
		if took < finishTimeout && s.Stats().Failed == failed {
			t.Fatalf("%d codes are left after %v, %v", left, took, err)
		}
		for n := range many { // A busy machine had no time for all of them, or for a call: it ends with the first that fails.
			s.Directory.Forget(hostID(n))
		}
		return fmt.Sprint(left, err)
	})
	server.Kill()
	s.Directory.Forget(hostID(1))
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestTakeDoesNotProbe checks that Take does not wait for an unavailable store, even when
// the breaker permits a call. The call that the player asked for does.
func TestTakeDoesNotProbe(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL})
	wantUp(t, s)
	server.Kill()
	for range failuresAlone {
		_ = s.Ping(t.Context())
	}
	testkit.Eventually(t, "the breaker to permit a call", func() bool { return s.calls.breaker.State() == gobreaker.StateHalfOpen })
	before := s.Stats()
	if _, _, err := s.Buckets.Take(t.Context(), "key", 1000); !unavailable(err) || !before.Open {
		t.Errorf("Take without a store: %v; %+v", err, before)
	}
	if got := s.Stats(); got.Calls != before.Calls {
		t.Errorf("Take asked the store: %+v, before %+v", got, before)
	}
	if err := s.Ping(t.Context()); !unavailable(err) {
		t.Errorf("Ping without a store: %v", err)
	}
	if got := s.Stats(); got.Calls != before.Calls+1 {
		t.Errorf("Ping did not probe: %+v, before %+v", got, before)
	}
}
