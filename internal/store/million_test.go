package store

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// maxBytesPerCode is what a code may take in a full store.
const maxBytesPerCode = 100

// TestMillionCodes fills a store with a million codes, measures the heap they
// take and a collection, and looks all of them up again.
func TestMillionCodes(t *testing.T) {
	if testkit.RaceEnabled || testing.Short() {
		t.Skip("a million codes take seconds, and much longer under the race detector, which has a heap of its own")
	}
	const n = 1_000_000
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	smallest, _ := alloc.PackCode("66666666")
	code := func(i int) string { return alloc.UnpackCode(smallest + uint64(i)*7919) }
	host := func(i int) (id proto.AllocationID) {
		source := rand.NewPCG(uint64(i), 1) // ids are random, as those of a relay
		binary.LittleEndian.PutUint64(id[:], source.Uint64())
		binary.LittleEndian.PutUint64(id[8:], source.Uint64())
		return id
	}
	before := heapAlloc()
	m := NewMemory()
	var slowest time.Duration
	for i := range n {
		start := time.Now()
		if ok, err := m.PutCode(t.Context(), tenant, code(i), host(i)); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
		slowest = max(slowest, time.Since(start))
	}
	each := float64(heapAlloc()-before) / n
	start := time.Now()
	runtime.GC()
	t.Logf("%.1f B of heap for each code; a collection takes %v, the slowest call took %v", each, time.Since(start), slowest)
	if each > maxBytesPerCode {
		t.Errorf("%.1f B of heap for each code, want %d at the most", each, maxBytesPerCode)
	}
	for i := range n {
		if got, err := m.HostOf(t.Context(), tenant, code(i)); err != nil || got != host(i) {
			t.Fatalf("HostOf %s: %v, %v", code(i), got, err)
		}
		m.Forget(host(i))
	}
	if got := m.byCode.len() + m.byHost.len() + len(m.counts); got != 0 {
		t.Errorf("%d cells and tenants are left of an empty store", got)
	}
	runtime.KeepAlive(m)
}

// heapAlloc returns the bytes of live objects, after a collection.
func heapAlloc() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
