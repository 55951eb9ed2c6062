package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// TestRecent compares it with a map: it never says yes to a key twice within its
// while, and says no to others only when four of one set are remembered.
func TestRecent(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	r := new(recentKeys)
	until := map[uint64]int64{}
	var now int64
	var yes, refused int
	for range 200_000 {
		now += random.Int64N(3)
		key := endpoint.Mix64(random.Uint64N(400) + 1)
		seen := until[key] > now
		switch first := r.add(key, now, 200); {
		case first && seen:
			t.Fatalf("%x twice within its while", key)
		case first:
			until[key] = now + 200
			yes++
		case !seen:
			refused++
		}
	}
	if yes == 0 || refused > 0 {
		t.Errorf("%d were first, %d of 400 keys were refused for others", yes, refused)
	}
}

// TestRecentFullSet: a fifth key of a set waits until one of four is forgotten.
func TestRecentFullSet(t *testing.T) {
	t.Parallel()
	r := new(recentKeys)
	for key := range uint64(recentWays) {
		if !r.add(key, 0, 200+int64(key)) {
			t.Fatalf("key %d of %d is refused", key, recentWays)
		}
	}
	if r.add(recentWays, 199, 200) {
		t.Error("a fifth key found room in a full set")
	}
	if !r.add(recentWays, 200, 200) {
		t.Error("a key that is over still takes room")
	}
	if r.add(1, 200, 200) {
		t.Error("the key in its place made another forgotten")
	}
}

// TestRecentAtOnce: of many that ask about one key at a time, one is first.
func TestRecentAtOnce(t *testing.T) {
	t.Parallel()
	r := new(recentKeys)
	for round := range int64(500) {
		var first atomic.Int32
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if r.add(endpoint.Mix64(77), round*200, 200) {
					first.Add(1)
				}
			})
		}
		all.Wait()
		if n := first.Load(); n != 1 {
			t.Fatalf("%d of 4 were first", n)
		}
	}
}
