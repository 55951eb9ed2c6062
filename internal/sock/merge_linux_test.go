//go:build linux && !sockportable

package sock

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// mergeable returns a group that merges, or says why there is none.
func mergeable(t testing.TB, addr string) *Group {
	t.Helper()
	g := listenOn(t, addr)
	if !g.Capabilities().GSO {
		t.Skip("this kernel cannot merge datagrams, or must not")
	}
	return g
}

// TestMergedOnTheWire sends random mixtures to several receivers and expects
// each datagram whole and in the order of its destination.
func TestMergedOnTheWire(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		t.Run(addr, func(t *testing.T) {
			g := mergeable(t, addr)
			c := g.Conns()[0]
			b := c.NewSendBatch(200)
			clients, to := receivers(t, 4, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), g.Addr().Port()))
			rng := rand.New(rand.NewPCG(1, 2))
			var total SendResult
			for range 50 {
				want := fillBatch(b, to, rng)
				res := c.Send(b)
				if res.Failed != 0 {
					t.Fatalf("%+v", res)
				}
				total.Sent += res.Sent
				total.Messages += res.Messages
				for i, pkts := range want {
					for _, pkt := range pkts {
						if got := read(t, clients[i]); !bytes.Equal(got, pkt) {
							t.Fatalf("got %d bytes %x, want %d bytes %x", len(got), first(got), len(pkt), first(pkt))
						}
					}
				}
			}
			if total.Messages*4 > total.Sent*3 {
				t.Errorf("%d datagrams left in %d messages", total.Sent, total.Messages)
			}
		})
	}
}

func first(b []byte) []byte { return b[:min(len(b), 8)] }

func receivers(t *testing.T, n int, from netip.AddrPort) (clients []*net.UDPConn, to []endpoint.Endpoint) {
	for range n {
		client := dial(t, netip.AddrPort{}, from)
		clients = append(clients, client)
		to = append(to, endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0))
	}
	return clients, to
}

// fillBatch adds datagrams of mostly one size and returns them by destination.
func fillBatch(b *SendBatch, to []endpoint.Endpoint, rng *rand.Rand) [][][]byte {
	want := make([][][]byte, len(to))
	sizes := []int{150, 150, 150, 150, 150, 149, 151, 1, 0, 1400}
	for range 1 + rng.IntN(120) {
		i := rng.IntN(len(to))
		pkt := make([]byte, sizes[rng.IntN(len(sizes))])
		for k := range pkt {
			pkt[k] = byte(rng.Uint32())
		}
		b.Add(to[i], pkt)
		want[i] = append(want[i], pkt)
	}
	return want
}

// TestRunRules states what may leave together.
func TestRunRules(t *testing.T) {
	c := mergeable(t, "127.0.0.1:0").Conns()[0]
	a := endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:9"), 0, 0)
	o := endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:10"), 0, 0)
	many := make([]int, maxRun+1)
	for i := range many {
		many[i] = 10
	}
	for _, tt := range []struct {
		name  string
		sizes []int // to a; negative: to o
		want  []int // datagrams per message
	}{
		{"equal", []int{5, 5, 5}, []int{3}},
		{"the last is shorter", []int{5, 5, 3}, []int{3}},
		{"after a shorter one a new run begins", []int{5, 3, 5, 5}, []int{2, 2}},
		{"a longer one begins a new run", []int{5, 6, 6}, []int{1, 2}},
		{"interleaved destinations", []int{5, -7, 5, -7, 5}, []int{3, 2}},
		{"empty datagrams stay alone", []int{0, 0, 5, 5, 0}, []int{1, 1, 2, 1}},
		{"as many as the kernel takes", many, []int{maxRun, 1}},
		{"as large as a packet", []int{20_000, 20_000, 20_000, 20_000}, []int{3, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := c.NewSendBatch(len(tt.sizes))
			for _, n := range tt.sizes {
				to := a
				if n < 0 {
					to, n = o, -n
				}
				b.Add(to, make([]byte, n))
			}
			b.seal()
			var got []int
			for i := range b.n {
				got = append(got, b.count(i))
			}
			if !slices.Equal(got, tt.want) || b.Len() != len(tt.sizes) {
				t.Errorf("messages of %v datagrams, want %v; Len %d", got, tt.want, b.Len())
			}
			b.Reset()
			if b.Len() != 0 || b.hdrs[0].hdr.Iovlen != 1 || b.hdrs[0].hdr.Controllen != 0 {
				t.Error("Reset leaves a run behind")
			}
		})
	}
}

// TestMergeRefused: a run that the kernel refuses leaves one by one, in order,
// and the socket learns from it, but not from a bad destination.
func TestMergeRefused(t *testing.T) {
	for _, tt := range []struct {
		errno   syscall.Errno
		alone   syscall.Errno // 0: the datagrams leave
		limit   uint32        // afterwards
		sent    int
		segment int
	}{
		{syscall.EIO, 0, 0, 3, 150},
		{syscall.EINVAL, 0, 149, 3, 150},
		{syscall.EMSGSIZE, 0, 149, 3, 150},
		{syscall.EINVAL, 0, 0, 3, minSegment},
		{syscall.EINVAL, syscall.EINVAL, maxRunBytes, 0, 150},
		{syscall.EPERM, 0, maxRunBytes, 0, 150},
	} {
		c := mergeable(t, "127.0.0.1:0").Conns()[0]
		b := c.NewSendBatch(4)
		var taken []*byte
		c.kernel = sendScript{c.sock, func(b *SendBatch, first, end int) (int, syscall.Errno) {
			h := b.hdrs[first].hdr
			if h.Iovlen > 1 {
				return 0, tt.errno
			}
			if tt.alone != 0 && first == 0 {
				return 0, tt.alone
			}
			taken = append(taken, h.Iov.Base)
			return 1, 0
		}}
		slab := make([]byte, 3*tt.segment)
		var want []*byte
		for i := range 3 {
			pkt := slab[i*tt.segment:][:tt.segment]
			b.Add(endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:9"), 0, 0), pkt)
			if i < tt.sent {
				want = append(want, &pkt[0])
			}
		}
		b.Add(endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:10"), 0, 0), slab)
		want = append(want, &slab[0])
		res := c.Send(b)
		if res.Sent != tt.sent+1 || res.Failed != 3-tt.sent || !slices.Equal(taken, want) {
			t.Errorf("%v: %+v, %d taken", tt.errno, res, len(taken))
		}
		if got := c.segments.Load(); got != tt.limit {
			t.Errorf("%v: limit %d, want %d", tt.errno, got, tt.limit)
		}
	}
}

func TestCorruptingKernels(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.44-fc-v669": false, "7.0.0": true, "7.0.12-rc1": true, "7.1.4": true, "7.1.5-arch": false, "7.2": false,
		"5.10.0": false, "": false, "7": true, "17.0.1": false,
	} {
		if got := corrupts(release); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}

// TestMergeAllocs: a batch that merges allocates nothing.
func TestMergeAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	g := mergeable(t, "0.0.0.0:0")
	c := g.Conns()[0]
	_, to := receivers(t, 2, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), g.Addr().Port()))
	b := c.NewSendBatch(64)
	pkt := make([]byte, 150)
	if n := testing.AllocsPerRun(100, func() {
		for i := range 64 {
			b.Add(to[i%2], pkt)
		}
		c.Send(b)
	}); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}
