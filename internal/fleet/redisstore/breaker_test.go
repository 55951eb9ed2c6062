package redisstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestBreaker checks that the breaker opens after consecutive failures only, sends one
// call at a time after its timeout, and closes when one of these succeeds.
func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{URL: "redis://127.0.0.1:1", Signer: &anySigner{}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		lost := errors.New("connection lost")
		succeed := func(context.Context) error { return nil }
		fail := func(context.Context) error { return lost }
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		call := func(ctx context.Context, f func(context.Context) error) { _ = s.calls.do(ctx, "test", f) }
		want := func(what string, open bool, calls, refused uint64) {
			t.Helper()
			if st := s.Stats(); st.Open != open || st.Calls != calls || st.Refused != refused {
				t.Fatalf("%s: %+v, want open %v, %d calls, %d refused", what, st, open, calls, refused)
			}
		}

		for range failuresAlone - 1 {
			call(t.Context(), fail)
		}
		call(t.Context(), succeed)
		for range failuresAlone - 2 {
			call(t.Context(), fail)
		}
		call(gone, fail) // a call that its caller cancelled does not count
		call(t.Context(), fail)
		calls := uint64(2*failuresAlone - 1 + 1)
		want("one failure fewer than open the breaker", false, calls, 0)

		early, release := make(chan struct{}), make(chan struct{})
		go call(t.Context(), func(context.Context) error {
			close(early)
			<-release
			return nil
		})
		<-early
		call(t.Context(), fail)
		calls += 2
		want("enough failures", true, calls, 0)
		close(release)
		synctest.Wait()
		want("a call from before has succeeded", true, calls, 0)

		call(t.Context(), succeed)
		time.Sleep(probeInterval/2 - 1)
		call(t.Context(), succeed)
		want("before the timeout", true, calls, 2)
		time.Sleep(probeInterval/2 + 2)
		call(t.Context(), func(context.Context) error {
			time.Sleep(time.Millisecond)
			call(t.Context(), succeed)
			return lost
		})
		calls++
		want("one call at a time, which failed", true, calls, 3)
		time.Sleep(probeInterval/2 - 1)
		call(t.Context(), succeed)
		want("before the second timeout", true, calls, 4)
		time.Sleep(probeInterval/2 + 2)
		call(gone, fail)
		call(t.Context(), succeed)
		calls += 2
		want("a success after a cancelled call", false, calls, 4)

		for range failuresAlone - 1 {
			call(t.Context(), fail)
		}
		want("a new count", false, calls+failuresAlone-1, 4)
		if st := s.Stats(); st.Opened != 1 || st.Closed != 1 {
			t.Errorf("opened %d times, closed %d times", st.Opened, st.Closed)
		}
	})
}
