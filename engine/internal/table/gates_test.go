package table

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestKeyedGates compares gates of one event with a map.
func TestKeyedGates(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	g, r := NewKeyedGates(12), Rate{IntervalMicros: 200_000, Burst: 1}
	until := map[uint64]int64{}
	var now int64
	var yes, refused int
	for range 200_000 {
		now += random.Int64N(3)
		key := endpoint.Mix64(random.Uint64N(400) + 1)
		seen := until[key] > now
		switch first := g.Take(key, r, now); {
		case first && seen:
			t.Fatalf("%x twice within its interval", key)
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

// TestKeyedGatesFullSet: a ninth key of a set waits until one of eight is idle.
func TestKeyedGatesFullSet(t *testing.T) {
	t.Parallel()
	g, r := NewKeyedGates(13), Rate{IntervalMicros: 200_000, Burst: 1}
	for key := range uint64(keyedWays) {
		if !g.Take(key, r, int64(key)) {
			t.Fatalf("key %d of %d is refused", key, keyedWays)
		}
	}
	if g.Take(keyedWays, r, 199) {
		t.Error("a ninth key found room in a full set")
	}
	if !g.Take(keyedWays, r, 200) {
		t.Error("an idle gate is not used again")
	}
	if g.Take(1, r, 200) {
		t.Error("the key in its place took the gate of another")
	}
}

// TestKeyedGatesBytes: each key has a quota of its own, at whatever rate others take theirs, and a
// flood of keys finds gates as long as few are in use at once.
func TestKeyedGatesBytes(t *testing.T) {
	testkit.OneGoroutine(t)
	t.Parallel()
	q, g, now := NewQuota(0, 2_000_000), NewKeyedGates(10), int64(1000)
	rnd := rand.New(rand.NewPCG(1, 2))
	taken := func(hash uint64, size int) (sum int) {
		for g.TakeBytes(hash, q, size, now) {
			sum += size
		}
		return sum
	}
	keys := make([]uint64, 64) // as many as the relay's quota of excess bytes leaves
	for i := range keys {
		keys[i] = rnd.Uint64()
		if got := taken(keys[i], 1000); got != 2_000_000 {
			t.Errorf("key %d took %d bytes at once, want 2,000,000", i, got)
		}
	}
	for i := range 500_000 { // 60 MB/s for half a second
		if i%1000 == 999 {
			now++
		}
		if !g.TakeBytes(rnd.Uint64(), q, 60, now-int64(i%2)) { // a worker's clock may be behind
			t.Fatalf("key %d of a flood is refused beside %d in use", i, len(keys))
		}
	}
	for i, key := range keys {
		if got := taken(key, 1000); got != 1_000_000 {
			t.Errorf("key %d took %d bytes after 500 ms, want 1,000,000", i, got)
		}
	}
	set, now := keys[0]>>54<<54, now+2000
	for tag := range uint64(keyedWays) {
		if !g.TakeBytes(set|tag+1, q, 1000, now) {
			t.Errorf("way %d is in use after 2 s", tag)
		}
	}
	if g.TakeBytes(set|99, q, 1000, now) || !g.TakeBytes(set|99, q, 1000, now+1) {
		t.Error("a full set has a gate, or is full for longer than its keys use it")
	}
}

func TestKeyedGatesAtOnce(t *testing.T) {
	t.Parallel()
	q, g := NewQuota(0, 2_000_000), NewKeyedGates(10)
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				if g.TakeBytes(1<<40|7, q, 1000, 1000) {
					sum.Add(1000)
				}
			}
		})
	}
	wg.Wait()
	if got := sum.Load(); got != 2_000_000 {
		t.Errorf("%d bytes were taken at once, want 2,000,000", got)
	}
}
