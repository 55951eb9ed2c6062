//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

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
// by the first message of a call, to which it is told.
func (w *wire) take(b *SendBatch, i int, later bool) (syscall.Errno, bool) {
	h := &b.hdrs[i].hdr
	port := binary.BigEndian.Uint16(b.names[i*b.nameLen+2:])
	f := w.fates[port]
	if f.refuse || f.hiccup > 0 {
		if later {
			return 0, false
		}
		f.hiccup--
		return f.errno, false
	}
	if h.Iovlen > 1 && b.segment(i) > w.limit {
		return zeroIf(later, w.device), false
	}
	for _, p := range messageParts(b, i) {
		w.taken[port] = append(w.taken[port], p.Base)
	}
	return 0, true
}

// messageParts is message i as the kernel sees it. No two datagrams of the
// batch may begin at one byte.
func messageParts(b *SendBatch, i int) []unix.Iovec {
	h := &b.hdrs[i].hdr
	if h.Iovlen == 1 {
		return []unix.Iovec{*h.Iov}
	}
	at := slices.IndexFunc(b.gather, func(v unix.Iovec) bool { return v.Base == h.Iov.Base })
	return b.gather[at : at+int(h.Iovlen)]
}

func zeroIf(zero bool, errno syscall.Errno) syscall.Errno {
	if zero {
		return 0
	}
	return errno
}

// TestMergedScripts: whatever the kernel does, a datagram to a destination that
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
				res.fail(1, f.errno)
				continue
			}
			want[port] = append(want[port], &pkt[0])
			res.Sent++
			res.Bytes += len(pkt)
		}
		c.kernel = sendScript{c.sock, w.send}
		c.segments.Store(maxRunBytes)
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

// TestRunShapes: what the kernel cuts off a message, every segment bytes, is
// what was added, for a million random shapes.
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
		b.seal()
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
				segment = b.segment(i)
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
