package store

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// TestForgottenTenantsLeaveNothing: a tenant that once had a code must not
// take memory for ever, for callers can name as many as they have credentials.
func TestForgottenTenantsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	for n := range 50 {
		tenant := alloc.Tenant{Project: fmt.Sprint(n)}
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

// len returns the number of entries, by the cells themselves.
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

// TestMemoryAgainstMaps does the same at random to a store and to plain maps,
// with few hosts and codes so that they meet, and compares all that is there.
func TestMemoryAgainstMaps(t *testing.T) {
	t.Parallel()
	const hosts, codes, steps = 3000, 4000, 60_000
	random := rand.New(rand.NewPCG(1, 2))
	m := NewMemory()
	byHost := make(map[proto.AllocationID]codeKey)
	byCode := make(map[codeKey]proto.AllocationID)
	smallest, _ := alloc.PackCode("666666")
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
		if got := m.Restore(key.tenant, alloc.UnpackCode(key.code), host); got == (has || taken) {
			t.Fatalf("Restore = %v; the host has a code: %v, the code is taken: %v", got, has, taken)
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
