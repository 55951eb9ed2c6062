package sock

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type fate struct {
	refuse   bool          // for ever, with errno, which may be 0
	errno    syscall.Errno // of the refusal or of the retries
	failures int           // calls that fail before the entry is taken
}

// script is a kernel that behaves as sendmmsg does: it stops at the first
// entry it cannot take, and returns the errno only if that is the first of the call.
type script struct {
	rng   *rand.Rand
	fates []fate
	taken []*byte
	calls int
}

func (s *script) send(b *SendBatch, first, end int) (int, syscall.Errno) {
	s.calls++
	for i := first; i < end; i++ {
		f := &s.fates[i]
		if i > first && (f.refuse || f.failures > 0 || s.rng.IntN(8) == 0) {
			return i - first, 0
		}
		if f.refuse {
			return 0, f.errno
		}
		if f.failures > 0 {
			f.failures--
			return 0, f.errno
		}
		s.taken = append(s.taken, entryBase(b, i))
	}
	return end - first, 0
}

type (
	recvScript struct {
		kernel
		call func(*RecvBatch) (int, syscall.Errno)
	}
	sendScript struct {
		kernel
		call func(*SendBatch, int, int) (int, syscall.Errno)
	}
)

func (s recvScript) recv(b *RecvBatch) (int, syscall.Errno) { return s.call(b) }

func (s sendScript) send(b *SendBatch, first, end int) (int, syscall.Errno) {
	return s.call(b, first, end)
}

var refusals = []syscall.Errno{
	0, syscall.EAGAIN, syscall.EINTR, syscall.EIO, syscall.EPERM, syscall.EBADF, syscall.EACCES,
	syscall.EINVAL, syscall.ENOMEM, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENOBUFS,
	syscall.EMSGSIZE, syscall.ECONNREFUSED, syscall.ENETDOWN,
}

var long = flag.Bool("long", false, "five times as many random scripts")

func scripts() uint64 {
	switch {
	case testkit.RaceEnabled:
		return 2_000
	case *long:
		return 100_000
	}
	return 20_000
}

func randomFate(rng *rand.Rand) fate {
	switch rng.IntN(6) {
	case 0:
		return fate{refuse: true, errno: refusals[rng.IntN(len(refusals))]}
	case 1:
		return fate{errno: syscall.EINTR, failures: 1 + rng.IntN(maxInterrupts)}
	case 2:
		once := []syscall.Errno{0, syscall.EAGAIN, syscall.ECONNREFUSED}
		return fate{errno: once[rng.IntN(len(once))], failures: 1}
	}
	return fate{}
}

// listenUnmerged returns a socket on which a message is one datagram.
func listenUnmerged(t *testing.T) *Conn {
	t.Helper()
	return listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), DisableGSO: true}, 1).Conns()[0]
}

// TestSendScripts runs random kernels and expects that every entry that is not
// refused for good leaves exactly once, in order.
func TestSendScripts(t *testing.T) {
	c := listenUnmerged(t)
	b := c.NewSendBatch(64)
	to := endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:9"), 0, 0)
	wrong := endpoint.Serial(endpoint.KindSession, 1)
	payload := make([]byte, 64*64)
	for seed := range scripts() {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := &script{rng: rng}
		var want []*byte
		var res SendResult
		for i := range 1 + rng.IntN(64) {
			pkt := payload[i*64:][:1+rng.IntN(64)]
			if rng.IntN(20) == 0 {
				b.Add(wrong, pkt)
				res.Failed++
				continue
			}
			f := randomFate(rng)
			s.fates = append(s.fates, f)
			b.Add(to, pkt)
			if f.refuse {
				res.addFailed(1, f.errno)
				continue
			}
			want = append(want, &pkt[0])
			res.Sent++
			res.Bytes += len(pkt)
			res.Messages++
		}
		c.kernel = sendScript{c.sock, s.send}
		if got := c.Send(b); got != res || !slices.Equal(s.taken, want) || b.Len() != 0 {
			t.Fatalf("seed %d: %+v, want %+v; %d taken, want %d; %d left in the batch",
				seed, got, res, len(s.taken), len(want), b.Len())
		}
		if limit := len(s.fates) * (maxInterrupts + 2); s.calls > limit {
			t.Fatalf("seed %d: %d calls, limit %d", seed, s.calls, limit)
		}
	}
}

func TestSendFixedScripts(t *testing.T) {
	type step struct {
		n     int
		errno syscall.Errno
	}
	for _, tt := range []struct {
		name    string
		entries int
		steps   []step
		want    SendResult // Bytes is the number of entries sent
		stats   Stats
	}{
		{"all", 3, []step{{3, 0}}, SendResult{Sent: 3, Bytes: 3, Messages: 3, Failed: 0}, Stats{}},
		{"partial", 3, []step{{1, 0}, {2, 0}}, SendResult{Sent: 3, Bytes: 3, Messages: 3, Failed: 0}, Stats{}},
		{"refused in the middle", 5, []step{{2, 0}, {0, syscall.EPERM}, {2, 0}}, SendResult{Sent: 4, Bytes: 4, Messages: 4, Failed: 1},
			Stats{SendErrors: 1}},
		{"no progress once", 2, []step{{0, 0}, {2, 0}}, SendResult{Sent: 2, Bytes: 2, Messages: 2, Failed: 0}, Stats{SendRetries: 1}},
		{"no progress twice", 2, []step{{0, 0}, {0, 0}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 1},
			Stats{SendErrors: 1, SendRetries: 1}},
		{"interrupted", 1, []step{{0, syscall.EINTR}, {0, syscall.EINTR}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 0},
			Stats{SendRetries: 2}},
		{"full buffer passes", 1, []step{{0, syscall.EAGAIN}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 0},
			Stats{SendRetries: 1}},
		{"full buffer stays", 2, []step{{0, syscall.EAGAIN}, {0, syscall.EAGAIN}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 1},
			Stats{SendErrors: 1, SendRetries: 1}},
		{"device queue full", 2, []step{{0, syscall.ENOBUFS}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 1},
			Stats{SendErrors: 1}},
		{"error of an earlier datagram", 2, []step{{0, syscall.ECONNREFUSED}, {2, 0}}, SendResult{Sent: 2, Bytes: 2, Messages: 2, Failed: 0},
			Stats{SendRetries: 1}},
		{"one of the network down, one of a peer", 3, []step{{0, syscall.ENETUNREACH}, {0, syscall.EHOSTUNREACH}, {1, 0}},
			SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 2, Down: 1}, Stats{SendErrors: 2}},
		{"link down", 2, []step{{0, syscall.ENETDOWN}, {0, syscall.ENETDOWN}}, SendResult{Failed: 2, Down: 2}, Stats{SendErrors: 2}},
		{"all refused", 2, []step{{0, syscall.EIO}, {0, syscall.EBADF}}, SendResult{Sent: 0, Bytes: 0, Messages: 0, Failed: 2},
			Stats{SendErrors: 2}},
		{"more than asked", 2, []step{{9, 0}}, SendResult{Sent: 2, Bytes: 2, Messages: 2, Failed: 0}, Stats{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := listenUnmerged(t)
			steps := tt.steps
			c.kernel = sendScript{c.sock, func(*SendBatch, int, int) (int, syscall.Errno) {
				if len(steps) == 0 {
					t.Fatal("one call too many")
				}
				s := steps[0]
				steps = steps[1:]
				return s.n, s.errno
			}}
			b := c.NewSendBatch(tt.entries)
			for range tt.entries {
				b.Add(endpoint.UDP(netip.MustParseAddrPort("127.0.0.1:9"), 0, 0), []byte{1})
			}
			if got := c.Send(b); got != tt.want || len(steps) != 0 {
				t.Errorf("%+v, want %+v; %d steps left", got, tt.want, len(steps))
			}
			if got := c.Stats(); got != tt.stats {
				t.Errorf("stats %+v, want %+v", got, tt.stats)
			}
		})
	}
}

// source is a kernel that hands out numbered datagrams, some of them empty or
// too long, between errors, and ends with StopReceiving.
type source struct {
	fault   string // of the caller
	rng     *rand.Rand
	conn    *Conn
	calls   int    // left
	made    uint32 // datagrams with a number
	sizes   []int  // of all datagrams
	failed  uint64 // calls that are errors
	signals int    // consecutive
	streak  int    // consecutive errors
	pauses  int    // since the last call
}

var sourceAddr = netip.MustParseAddrPort("10.1.2.3:4567")

// recv also checks that the caller has paused if errors repeat, and only then.
func (s *source) recv(b *RecvBatch) (int, syscall.Errno) {
	if paused := s.streak > 1; (s.pauses == 1) != paused || s.pauses > 1 {
		s.fault = fmt.Sprintf("%d pauses after %d consecutive errors", s.pauses, s.streak)
	}
	s.pauses = 0
	if s.calls--; s.calls < 0 {
		s.conn.gate.mark(gateRecvStopped) // as StopReceiving, without leaving the script
		s.conn.leave()
		return fill(b, sourceAddr, [][]byte{nil}), 0
	}
	if s.rng.IntN(3) == 0 {
		s.streak, s.signals = 0, 0
		return fill(b, sourceAddr, s.datagrams(1+s.rng.IntN(4))), 0
	}
	errno := refusals[s.rng.IntN(len(refusals))]
	switch {
	case errno == syscall.EAGAIN:
		s.streak, s.signals = 0, 0
	case errno == syscall.EINTR && s.signals < maxInterrupts:
		s.signals++
		if s.streak > 1 {
			s.pauses = 1 // A signal neither adds a pause nor ends the streak.
		}
	default:
		s.streak++
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
// datagram once and in order, never gives up before StopReceiving, counts the errors and
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
		b.errors = errorStreak{}
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
	if _, err := c.Recv(b); err != nil || b.errors.failures != 0 {
		t.Errorf("a time-out does not end a streak of errors: %d, %v", b.errors.failures, err)
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
