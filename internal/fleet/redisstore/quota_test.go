package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func wantUsed(t *testing.T, s *Store, scope string, want int64) {
	t.Helper()
	if got, err := s.Leases.Used(t.Context(), scope); got != want || err != nil {
		t.Errorf("Used %q = %d, %v; want %d", scope, got, err, want)
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	use := func(scope, holder string, used int64, ttl time.Duration) {
		t.Helper()
		if err := lease(t.Context(), s, scope, holder, used, ttl); err != nil {
			t.Fatal(err)
		}
	}
	wantUsed(t, s, "players/game", 0)
	use("players/game", "relay 1", 10, time.Minute)
	use("players/game", "relay 2", 5, time.Minute)
	use("players/other {game}", "relay 1", maxUsed, time.Minute)
	wantUsed(t, s, "players/game", 15)
	wantUsed(t, s, "players/other {game}", maxUsed)
	use("players/game", "relay 1", 7, time.Minute) // Replaces, does not add.
	wantUsed(t, s, "players/game", 12)
	use("players/game", "relay 2", 0, time.Minute)
	wantUsed(t, s, "players/game", 7)
	// A holder that dies takes nothing with it, though others go on.
	use("players/game", "relay 3", 100, 50*time.Millisecond)
	testkit.NoProblemWithin(t, 30*time.Second, "the lease of the dead ends", func() string {
		if got, err := s.Leases.Used(t.Context(), "players/game"); got != 7 || err != nil {
			return fmt.Sprint(got, err)
		}
		return ""
	})
	use("players/game", "relay 4", 1, time.Minute) // A new holder removes them.
	wantUsed(t, s, "players/game", 8)
	if got := server.Do("HLEN " + testKeys.lease("players/game")); got != ":2" {
		t.Errorf("%s holders are left, want 2", got)
	}
	uses := make([]Use, 2*batch+1)
	for n := range uses {
		uses[n] = Use{fmt.Sprint("scope ", n), int64(n)}
	}
	if err := s.Leases.Set(t.Context(), "relay 1", time.Minute, uses); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, s, uses[2*batch].Scope, 2*batch)
}

// TestTake: of many concurrent callers in several processes, as many succeed as the
// budget allows, and the next one gets the time to wait.
func TestTake(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const processes, each, perMinute = 4, 20, 30
	var taken atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range processes {
		s := open(t, Config{URL: server.URL, Timeout: testTimeout})
		wg.Go(func() {
			for range each {
				ok, wait, err := s.Buckets.Take(t.Context(), "player {1}", perMinute)
				switch {
				case err != nil:
					t.Error(err)
				case ok != (wait == 0) || wait < 0 || wait > time.Minute/perMinute:
					t.Errorf("Take = %v, %v", ok, wait)
				case ok:
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	most := perMinute + int64(time.Since(start)*perMinute/time.Minute) + 1
	if got := taken.Load(); got < perMinute || got > most {
		t.Errorf("%d were taken, want %d to %d", got, perMinute, most)
	}
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	if ok, _, err := s.Buckets.Take(t.Context(), "player {2}", perMinute); !ok || err != nil {
		t.Error("another player:", ok, err)
	}
	if ok, wait, err := s.Buckets.Take(t.Context(), "player {3}", 0); ok || wait == 0 || err != nil {
		t.Error("a player without a budget:", ok, wait, err)
	}
	// One that is refused costs nothing: a player that tries all the time gets its share.
	testkit.NoProblemWithin(t, 30*time.Second, "a token is there again", func() string {
		if ok, wait, err := s.Buckets.Take(t.Context(), "player {1}", perMinute); !ok || err != nil {
			return fmt.Sprint(wait, err)
		}
		return ""
	})
}
