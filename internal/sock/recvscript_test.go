package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// source is a kernel that hands out numbered datagrams, some of them empty or
// too long, between errors, and ends by Wake.
type source struct {
	fault   string // what the caller did wrong
	rng     *rand.Rand
	conn    *Conn
	calls   int    // left
	made    uint32 // datagrams with a number
	sizes   []int  // of all datagrams
	failed  uint64 // calls that are errors
	signals int    // in a row
	row     int    // errors in a row
	pauses  int    // since the last call
}

var sourceAddr = netip.MustParseAddrPort("10.1.2.3:4567")

// recv also checks that the caller has paused if errors repeat, and only then.
func (s *source) recv(b *RecvBatch) (int, syscall.Errno) {
	if paused := s.row > 1; (s.pauses == 1) != paused || s.pauses > 1 {
		s.fault = fmt.Sprintf("%d pauses after %d errors in a row", s.pauses, s.row)
	}
	s.pauses = 0
	if s.calls--; s.calls < 0 {
		s.conn.gate.mark(gateMuted) // what Wake does, without leaving the script
		s.conn.leave()
		return fill(b, sourceAddr, [][]byte{nil}), 0
	}
	if s.rng.IntN(3) == 0 {
		s.row, s.signals = 0, 0
		return fill(b, sourceAddr, s.datagrams(1+s.rng.IntN(4))), 0
	}
	errno := refusals[s.rng.IntN(len(refusals))]
	switch {
	case errno == syscall.EAGAIN:
		s.row, s.signals = 0, 0
	case errno == syscall.EINTR && s.signals < maxInterrupts:
		s.signals++
		if s.row > 1 {
			s.pauses = 1 // A signal neither adds a pause nor ends the row.
		}
	default:
		s.row++
		s.failed++
	}
	return 0, errno
}

func (s *source) datagrams(n int) [][]byte {
	pkts := make([][]byte, n)
	for i := range pkts {
		size := []int{0, 4, 100, SlotSize, SlotSize + 1}[s.rng.IntN(5)]
		pkts[i] = make([]byte, size)
		if size > 0 {
			binary.BigEndian.PutUint32(pkts[i], s.made)
			s.made++
		}
		s.sizes = append(s.sizes, size)
	}
	return pkts
}

func (s *source) sleep(d time.Duration) {
	if d < minBackOff || d > maxBackOff {
		s.fault = fmt.Sprintf("a pause of %v", d)
	}
	s.pauses++
}

// TestRecvScripts runs random kernels under the same loop: it sees every
// datagram once and in order, never gives up before Wake, counts the errors and
// pauses when they repeat.
func TestRecvScripts(t *testing.T) {
	c := listenOn(t, "127.0.0.1:0").Conns()[0]
	b := c.NewRecvBatch()
	for seed := range scripts() {
		s := &source{rng: rand.New(rand.NewPCG(seed, 2)), conn: c}
		s.calls = 1 + s.rng.IntN(40)
		before := c.Stats().RecvErrors
		c.kernel, c.sleep = recvScript{c.sock, s.recv}, s.sleep
		drainSource(t, seed, c, b, s)
		if got := c.Stats().RecvErrors - before; got != s.failed || s.fault != "" {
			t.Fatalf("seed %d: %d errors counted, %d made; %s", seed, got, s.failed, s.fault)
		}
		c.gate.state.Store(0)
		b.row = row{}
	}
}

func drainSource(t *testing.T, seed uint64, c *Conn, b *RecvBatch, s *source) {
	t.Helper()
	var seen uint32
	at := 0
	for {
		n, err := c.Recv(b)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) || s.calls >= 0 {
				t.Fatalf("seed %d: Recv: %v, %d calls to come", seed, err, s.calls)
			}
			break
		}
		for i := range n {
			from, pkt, truncated := b.At(i)
			size := s.sizes[at]
			at++
			if from.AddrPort() != sourceAddr || len(pkt) != min(size, SlotSize) || truncated != (size > SlotSize) {
				t.Fatalf("seed %d: datagram of %d bytes: %d from %v, truncated %v", seed, size, len(pkt), from, truncated)
			}
			if size == 0 {
				continue
			}
			if number := binary.BigEndian.Uint32(pkt); number != seen {
				t.Fatalf("seed %d: datagram %d, want %d", seed, number, seen)
			}
			seen++
		}
	}
	if at != len(s.sizes) {
		t.Fatalf("seed %d: %d of %d datagrams", seed, at, len(s.sizes))
	}
}

// TestRecvForever: no error of the list ends a loop, however often it comes,
// and none makes it spin: of a thousand calls all but a few are followed by the
// longest pause.
func TestRecvForever(t *testing.T) {
	for _, errno := range refusals {
		if errno == syscall.EAGAIN {
			continue // It has waited.
		}
		c := listenOn(t, "127.0.0.1:0").Conns()[0]
		b := c.NewRecvBatch()
		longest := 0
		c.sleep = func(d time.Duration) {
			if d == maxBackOff {
				longest++
			}
		}
		c.kernel = recvScript{c.sock, func(*RecvBatch) (int, syscall.Errno) { return 0, errno }}
		for range 1000 {
			if n, err := c.Recv(b); n != 0 || err != nil {
				t.Fatalf("%v: Recv = %d, %v", errno, n, err)
			}
		}
		if few := 1000 - longest; few > maxInterrupts+5 {
			t.Errorf("%v: %d calls without the longest pause", errno, few)
		}
	}
}

func TestRecvBackOff(t *testing.T) {
	c := listenOn(t, "127.0.0.1:0").Conns()[0]
	var pauses []time.Duration
	c.sleep = func(d time.Duration) { pauses = append(pauses, d) }
	c.kernel = recvScript{c.sock, func(*RecvBatch) (int, syscall.Errno) { return 0, syscall.ENOMEM }}
	b := c.NewRecvBatch()
	for range 7 {
		if n, err := c.Recv(b); n != 0 || err != nil {
			t.Fatalf("Recv = %d, %v", n, err)
		}
	}
	const ms = time.Millisecond
	if want := []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 10 * ms, 10 * ms}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	c.kernel = recvScript{c.sock, func(*RecvBatch) (int, syscall.Errno) { return 0, syscall.EAGAIN }}
	if _, err := c.Recv(b); err != nil || b.failures != 0 {
		t.Errorf("a time-out does not end a row of errors: %d, %v", b.failures, err)
	}
}

func TestRecvSlots(t *testing.T) {
	c := listenOn(t, "127.0.0.1:0").Conns()[0]
	from := netip.MustParseAddrPort("10.1.2.3:4567")
	long := make([]byte, SlotSize+1)
	pkts := [][]byte{{1, 2, 3}, {}, long, long[:SlotSize]}
	c.kernel = recvScript{c.sock, func(b *RecvBatch) (int, syscall.Errno) { return fill(b, from, pkts), 0 }}
	b := c.NewRecvBatch()
	if n, err := c.Recv(b); n != len(pkts) || err != nil {
		t.Fatalf("Recv = %d, %v", n, err)
	}
	for i, pkt := range pkts {
		ep, got, truncated := b.At(i)
		if ep != endpoint.UDP(from, 0, 0) || truncated != (len(pkt) > SlotSize) {
			t.Errorf("slot %d: from %v, truncated %v", i, ep, truncated)
		}
		if len(got) != min(len(pkt), SlotSize) || cap(got) != len(got) || !slices.Equal(got, pkt[:len(got)]) {
			t.Errorf("slot %d: %d bytes, cap %d", i, len(got), cap(got))
		}
	}
}
