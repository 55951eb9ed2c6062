package alloc

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/test/testkit"

	"github.com/ferryrelay/ferry/proto"
)

// TestForgottenTenantsLeaveNothing: a tenant without codes takes no memory, since
// a caller may name as many tenants as it has credentials.
func TestForgottenTenantsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := newMemoryStore()
	for n := range 50 {
		tenant := Tenant{Project: fmt.Sprint(n)}
		if ok, err := m.PutCode(t.Context(), tenant, "6789BC", proto.AllocationID{byte(n + 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if len(m.counts) != 50 || m.byHost.len() != 50 || m.byCode.len() != 50 {
		t.Fatalf("%d tenants, %d hosts, %d codes, want 50", len(m.counts), m.byHost.len(), m.byCode.len())
	}
	for n := range 50 {
		m.Forget(proto.AllocationID{byte(n + 1)})
	}
	if len(m.counts) != 0 || m.byHost.len() != 0 || m.byCode.len() != 0 {
		t.Errorf("%d tenants, %d hosts, %d codes left", len(m.counts), m.byHost.len(), m.byCode.len())
	}
}

func (x *index) len() int {
	var n int
	for i := range x.pages {
		for _, cell := range x.pages[i].cells {
			if cell != 0 {
				n++
			}
		}
	}
	return n
}

// TestMemoryStoreAgainstMaps applies the same random calls to a store and to plain
// maps, with so few hosts and codes that they collide, and compares the contents.
func TestMemoryStoreAgainstMaps(t *testing.T) {
	t.Parallel()
	const hosts, codes, steps = 3000, 4000, 60_000
	random := rand.New(rand.NewPCG(1, 2))
	m := newMemoryStore()
	byHost := make(map[proto.AllocationID]codeKey)
	byCode := make(map[codeKey]proto.AllocationID)
	smallest, _ := joincode.Pack("666666")
	for range steps {
		host := proto.AllocationID{byte(random.IntN(hosts)), byte(random.IntN(hosts) >> 8)}
		key := codeKey{uint64(random.IntN(2)), smallest + uint64(random.IntN(codes))}
		if random.IntN(3) == 0 {
			m.Forget(host)
			delete(byCode, byHost[host])
			delete(byHost, host)
			continue
		}
		_, has := byHost[host]
		_, taken := byCode[key]
		m.mu.Lock()
		got := m.insert(key, host)
		m.mu.Unlock()
		if got == (has || taken) {
			t.Fatalf("insert = %v; the host has a code: %v, the code is taken: %v", got, has, taken)
		}
		if !has && !taken {
			byHost[host], byCode[key] = key, host
		}
	}
	if m.byHost.len() != len(byHost) || m.byCode.len() != len(byCode) || len(byHost) == 0 {
		t.Fatalf("%d hosts and %d codes, want %d", m.byHost.len(), m.byCode.len(), len(byHost))
	}
	for host, key := range byHost {
		h, c := m.findHost(host), m.findCode(key)
		if h < 0 || h != c || m.slab.at(h).codeKey != key || m.slab.at(h).host != host {
			t.Fatalf("%v: entry %d by host, %d by code", host, h, c)
		}
	}
	if m.slab.used > 2*len(byHost)+chunkLen {
		t.Errorf("%d entries were used for %d codes", m.slab.used, len(byHost))
	}
}

// maxBytesPerCode is the limit of heap bytes per code in a store of a million codes.
const maxBytesPerCode = 100

func TestMillionCodes(t *testing.T) {
	if testkit.RaceEnabled || testing.Short() {
		t.Skip("a million codes take seconds, and much longer under the race detector, which has a heap of its own")
	}
	const n = 1_000_000
	tenant := Tenant{Project: "game", Environment: "production"}
	smallest, _ := joincode.Pack("66666666")
	code := func(i int) string { return joincode.Unpack(smallest + uint64(i)*7919) }
	host := func(i int) (id proto.AllocationID) {
		source := rand.NewPCG(uint64(i), 1) // ids are random, as those of a relay
		binary.LittleEndian.PutUint64(id[:], source.Uint64())
		binary.LittleEndian.PutUint64(id[8:], source.Uint64())
		return id
	}
	before := heapAlloc()
	m := newMemoryStore()
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

func heapAlloc() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
