package dtls

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// testID is the n-th allocation that the rigs know, and testKey its key. Ids
// that begin with 0xEE are unknown.
func testID(n int) proto.AllocationID {
	return proto.AllocationID{1, byte(n >> 16), byte(n >> 8), byte(n), 4: 9, 15: 7}
}

func testKey(id proto.AllocationID) (proto.Key, bool) {
	var key proto.Key
	for i := range key {
		key[i] = id[i%16] ^ byte(i*37)
	}
	return key, id[0] != 0xEE
}

func at(addr string) endpoint.Endpoint { return endpoint.UDP(netip.MustParseAddrPort(addr), 0, 0) }

// rig runs Records without a socket. What it sends is kept by endpoint.
type rig struct {
	t *testing.T
	*Records
	mu  sync.Mutex
	got map[endpoint.Endpoint][][]byte
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	if c.PSK == nil {
		c.PSK = testKey
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, Records: r, got: make(map[endpoint.Endpoint][][]byte)}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, g.keep) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g
}

func (g *rig) keep(to endpoint.Endpoint, pkt []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.got[to] = append(g.got[to], bytes.Clone(pkt))
}

// put opens a copy of a datagram and returns what was sent to its source once
// the workers have nothing to do.
func (g *rig) put(from endpoint.Endpoint, pkt []byte) [][]byte {
	g.t.Helper()
	g.Open(from, bytes.Clone(pkt))
	g.settle()
	return g.take(from)
}

func (g *rig) settle() {
	g.t.Helper()
	for _, w := range g.workers {
		g.wait("the workers", func() bool { return len(w.free) == cap(w.free) })
	}
}

func (g *rig) take(from endpoint.Endpoint) [][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.got[from]
	delete(g.got, from)
	return out
}

func (g *rig) wait(what string, done func() bool) { g.t.Helper(); testkit.Eventually(g.t, what, done) }

// wantCounts checks some counts.
func (g *rig) wantCounts(want map[Event]uint64) {
	g.t.Helper()
	got := g.Stats()
	for e, n := range want {
		if got.Counts[e] != n {
			g.t.Errorf("%v is %d, want %d", e, got.Counts[e], n)
		}
	}
}
