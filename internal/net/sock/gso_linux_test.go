//go:build linux && !sockportable

package sock

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"golang.org/x/sys/unix"
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
			b.wireRuns()
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
// and lowers the limit of the socket, but a bad destination does not.
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
		if got := c.segments.bytes.Load(); got != tt.limit {
			t.Errorf("%v: limit %d, want %d", tt.errno, got, tt.limit)
		}
	}
}

// TestMergeNarrowPath: runs that the path to one destination of IPv6 does not take leave one
// by one, and no run of that size is offered for it again for a while. Shorter ones, and
// those to others, still leave merged.
func TestMergeNarrowPath(t *testing.T) {
	needV6(t)
	for _, errno := range []syscall.Errno{syscall.EMSGSIZE, syscall.EINVAL} { // Linux before 6.14 returns EINVAL
		c := mergeable(t, "[::1]:0").Conns()[0]
		b := c.NewSendBatch(8)
		narrow, wide := peer6(9), peer6(10)
		refused, merged := 0, 0
		c.kernel = sendScript{c.sock, func(b *SendBatch, first, _ int) (int, syscall.Errno) {
			run := b.hdrs[first].hdr.Iovlen > 1
			if run && b.merger.runs[first].to == narrow && b.merger.runs[first].segment > 1300 {
				refused++
				return 0, errno
			}
			if run {
				merged++
			}
			return 1, 0
		}}
		send := func(size int, to ...endpoint.Endpoint) {
			t.Helper()
			for _, to := range to {
				b.Add(to, make([]byte, size))
			}
			if res := c.Send(b); res.Sent != len(to) || res.Failed != 0 {
				t.Fatalf("%v: %+v", errno, res)
			}
		}
		check := func(what string, wantRefused, wantMerged int) {
			t.Helper()
			if refused != wantRefused || merged != wantMerged {
				t.Errorf("%v: %s: %d runs refused and %d merged, want %d and %d", errno, what, refused, merged, wantRefused, wantMerged)
			}
			refused, merged = 0, 0
		}
		send(1400, narrow, wide, narrow, wide, narrow)
		check("the first batch", 1, 1)
		send(1400, narrow, wide, narrow, wide)
		check("the second", 0, 1)
		send(1300, narrow, narrow, narrow)
		check("of a size that the path takes", 0, 1)
		for range narrowRetry / 2 {
			send(1400, narrow, narrow)
		}
		check("until the kernel is asked again", 1, 0)
		if limit := c.segments.bytes.Load(); limit != maxRunBytes {
			t.Errorf("%v: the limit of the socket is %d", errno, limit)
		}
	}
}

func peer6(port uint16) endpoint.Endpoint {
	return endpoint.UDP(netip.AddrPortFrom(netip.IPv6Loopback(), port), 0, 0)
}

// TestMergeAbovePathMTU: a run whose datagrams the path does not take, as the kernel sees it,
// arrives one by one, in fragments.
func TestMergeAbovePathMTU(t *testing.T) {
	needV6(t)
	g := mergeable(t, "[::1]:0")
	c := g.Conns()[0]
	descriptor(t, c, func(fd int) { // As if a router had said so of all destinations.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU, 1280); err != nil {
			t.Fatal(err)
		}
	})
	client := dial(t, netip.AddrPort{}, g.Addr())
	to := endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0)
	b := c.NewSendBatch(8)
	for i := range 8 {
		pkt := make([]byte, 1400)
		pkt[0] = byte(i)
		b.Add(to, pkt)
	}
	if res := c.Send(b); res.Sent != 8 || res.Messages != 8 {
		t.Errorf("%+v", res)
	}
	for i := range 8 {
		if got := read(t, client); len(got) != 1400 || got[0] != byte(i) {
			t.Fatalf("datagram %d: got %d bytes", i, len(got))
		}
	}
}

func TestCorruptingKernels(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.44-fc-v669": false, "7.0.0": true, "7.0.12-rc1": true, "7.1.4": true, "7.1.5-arch": false, "7.2": false,
		"5.10.0": false, "": false, "7": true, "17.0.1": false,
	} {
		if got := corruptsRuns(release); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}

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

// wire is a kernel for messages that may be runs: each destination, by port,
// has a fate of its own, and the device may refuse to cut runs.
type wire struct {
	rng    *rand.Rand
	fates  map[uint16]*fate
	device syscall.Errno      // why it refuses runs of segments above limit
	limit  int                // bytes
	taken  map[uint16][]*byte // datagrams by destination, in order
}

func (w *wire) send(b *SendBatch, first, end int) (int, syscall.Errno) {
	for i := first; i < end; i++ {
		if i > first && w.rng.IntN(8) == 0 {
			return i - first, 0
		}
		if errno, ok := w.take(b, i, i > first); !ok {
			return i - first, errno
		}
	}
	return end - first, 0
}

// take reports why message i is refused. An error that passes is used up only
// by the first message of a call, to which it is returned.
func (w *wire) take(b *SendBatch, i int, later bool) (syscall.Errno, bool) {
	h := &b.hdrs[i].hdr
	port := binary.BigEndian.Uint16(b.names[i*b.nameLen+2:])
	f := w.fates[port]
	if f.refuse || f.failures > 0 {
		if later {
			return 0, false
		}
		f.failures--
		return f.errno, false
	}
	if h.Iovlen > 1 && int(b.merger.runs[i].segment) > w.limit {
		return zeroIf(later, w.device), false
	}
	for _, p := range messageParts(b, i) {
		w.taken[port] = append(w.taken[port], p.Base)
	}
	return 0, true
}

// messageParts returns message i as the kernel reads it. No two datagrams of the
// batch may begin at one byte.
func messageParts(b *SendBatch, i int) []unix.Iovec {
	h := &b.hdrs[i].hdr
	if h.Iovlen == 1 {
		return []unix.Iovec{*h.Iov}
	}
	at := slices.IndexFunc(b.merger.gather, func(v unix.Iovec) bool { return v.Base == h.Iov.Base })
	return b.merger.gather[at : at+int(h.Iovlen)]
}

func zeroIf(zero bool, errno syscall.Errno) syscall.Errno {
	if zero {
		return 0
	}
	return errno
}

// TestMergedScripts: for any behaviour of the kernel, a datagram to a destination that
// is sound leaves exactly once, in order, also where the runs are refused; and
// of the others none does.
func TestMergedScripts(t *testing.T) {
	c := mergeable(t, "127.0.0.1:0").Conns()[0]
	b := c.NewSendBatch(48)
	payload := make([]byte, 48*256)
	for seed := range scripts() {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWire(rng)
		want := map[uint16][]*byte{}
		var res SendResult
		for i := range 1 + rng.IntN(48) {
			port := uint16(1 + rng.IntN(len(w.fates)))
			pkt := payload[i*256:][:[]int{64, 150, 150, 150, 200}[rng.IntN(5)]]
			b.Add(endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), 0, 0), pkt)
			if f := w.fates[port]; f.refuse {
				res.addFailed(1, f.errno)
				continue
			}
			want[port] = append(want[port], &pkt[0])
			res.Sent++
			res.Bytes += len(pkt)
		}
		c.kernel = sendScript{c.sock, w.send}
		c.segments.bytes.Store(maxRunBytes)
		got := c.Send(b)
		if got.Messages > got.Sent {
			t.Fatalf("seed %d: %+v", seed, got)
		}
		if got.Messages = 0; got != res {
			t.Fatalf("seed %d: %+v, want %+v", seed, got, res)
		}
		for port := range w.fates {
			if !slices.Equal(w.taken[port], want[port]) {
				t.Fatalf("seed %d: port %d: %d datagrams taken, want %d", seed, port, len(w.taken[port]), len(want[port]))
			}
		}
	}
}

func newWire(rng *rand.Rand) *wire {
	w := &wire{rng: rng, fates: map[uint16]*fate{}, taken: map[uint16][]*byte{}, limit: maxRunBytes}
	for port := range uint16(5) {
		f := randomFate(rng)
		w.fates[port+1] = &f
	}
	switch rng.IntN(4) {
	case 0:
		w.device, w.limit = syscall.EIO, 0
	case 1:
		w.device, w.limit = syscall.EINVAL, 149
	case 2:
		w.device, w.limit = syscall.EMSGSIZE, 63
	}
	return w
}

// TestRunShapes: the datagrams that the kernel cuts off a message, every segment bytes, are
// those that were added, for a million random shapes.
func TestRunShapes(t *testing.T) {
	shapes := 1_000_000
	if testkit.RaceEnabled {
		shapes = 20_000
	}
	c := mergeable(t, "127.0.0.1:0").Conns()[0]
	b := c.NewSendBatch(12)
	to := endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:9"), 0, 0)
	const longest = 1500
	slab := make([]byte, 12*longest)
	rng := rand.New(rand.NewPCG(5, 6))
	sizes := make([]int, 0, 12)
	for shape := range shapes {
		sizes = sizes[:0]
		usual := 1 + rng.IntN(1400)
		for range 1 + rng.IntN(12) {
			size := usual
			if rng.IntN(4) == 0 {
				size = rng.IntN(longest)
			}
			sizes = append(sizes, size)
			b.Add(to, slab[(len(sizes)-1)*longest:][:size])
		}
		b.wireRuns()
		at := 0
		for i := range b.n {
			left := 0
			for _, p := range messageParts(b, i) {
				left += int(p.Len)
			}
			if left == 0 {
				at += expectSize(t, shape, sizes, at, 0)
				continue
			}
			segment := left
			if b.count(i) > 1 {
				segment = int(b.merger.runs[i].segment)
			}
			for ; left > 0; left -= segment {
				at += expectSize(t, shape, sizes, at, min(left, segment))
			}
		}
		if at != len(sizes) || b.Len() != len(sizes) {
			t.Fatalf("shape %d: %v: cut into %d datagrams", shape, sizes, at)
		}
		b.Reset()
	}
}

func expectSize(t *testing.T, shape int, sizes []int, at, got int) int {
	if at >= len(sizes) || sizes[at] != got {
		t.Fatalf("shape %d: %v: datagram %d has %d bytes", shape, sizes, at, got)
	}
	return 1
}
