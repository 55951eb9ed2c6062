package sock

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// fate is what a scripted kernel does with one entry.
type fate struct {
	refuse bool          // for ever, with errno, which may be 0
	errno  syscall.Errno // of the refusal or of the hiccups
	hiccup int           // calls that fail before the entry is taken
}

// script is a kernel that behaves as sendmmsg does: it stops at the first
// entry it cannot take, and tells why only if that is the first of the call.
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
		if i > first && (f.refuse || f.hiccup > 0 || s.rng.IntN(8) == 0) {
			return i - first, 0
		}
		if f.refuse {
			return 0, f.errno
		}
		if f.hiccup > 0 {
			f.hiccup--
			return 0, f.errno
		}
		s.taken = append(s.taken, entryBase(b, i))
	}
	return end - first, 0
}

// recvScript and sendScript are kernels with one call replaced.
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

// scripts is how many random kernels a test tries.
func scripts() uint64 {
	if testkit.RaceEnabled {
		return 2_000
	}
	return 100_000
}

func randomFate(rng *rand.Rand) fate {
	switch rng.IntN(6) {
	case 0:
		return fate{refuse: true, errno: refusals[rng.IntN(len(refusals))]}
	case 1:
		return fate{errno: syscall.EINTR, hiccup: 1 + rng.IntN(maxInterrupts)}
	case 2:
		once := []syscall.Errno{0, syscall.EAGAIN, syscall.ECONNREFUSED}
		return fate{errno: once[rng.IntN(len(once))], hiccup: 1}
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
	wrong := endpoint.Serial(endpoint.KindWS, 1)
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
				res.fail(1, f.errno)
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

// TestSendFixedScripts states the rules one by one.
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
		{"refused in the middle", 5, []step{{2, 0}, {0, syscall.EPERM}, {2, 0}}, SendResult{Sent: 4, Bytes: 4, Messages: 4, Failed: 1}, Stats{SendErrors: 1}},
		{"no progress once", 2, []step{{0, 0}, {2, 0}}, SendResult{Sent: 2, Bytes: 2, Messages: 2, Failed: 0}, Stats{SendRetries: 1}},
		{"no progress twice", 2, []step{{0, 0}, {0, 0}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 1}, Stats{SendErrors: 1, SendRetries: 1}},
		{"interrupted", 1, []step{{0, syscall.EINTR}, {0, syscall.EINTR}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 0}, Stats{SendRetries: 2}},
		{"full buffer passes", 1, []step{{0, syscall.EAGAIN}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 0}, Stats{SendRetries: 1}},
		{"full buffer stays", 2, []step{{0, syscall.EAGAIN}, {0, syscall.EAGAIN}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 1}, Stats{SendErrors: 1, SendRetries: 1}},
		{"device queue full", 2, []step{{0, syscall.ENOBUFS}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 1}, Stats{SendErrors: 1}},
		{"error of an earlier datagram", 2, []step{{0, syscall.ECONNREFUSED}, {2, 0}}, SendResult{Sent: 2, Bytes: 2, Messages: 2, Failed: 0}, Stats{SendRetries: 1}},
		{"one of the network down, one of a peer", 3, []step{{0, syscall.ENETUNREACH}, {0, syscall.EHOSTUNREACH}, {1, 0}}, SendResult{Sent: 1, Bytes: 1, Messages: 1, Failed: 2, Down: 1}, Stats{SendErrors: 2}},
		{"link down", 2, []step{{0, syscall.ENETDOWN}, {0, syscall.ENETDOWN}}, SendResult{Failed: 2, Down: 2}, Stats{SendErrors: 2}},
		{"all refused", 2, []step{{0, syscall.EIO}, {0, syscall.EBADF}}, SendResult{Sent: 0, Bytes: 0, Messages: 0, Failed: 2}, Stats{SendErrors: 2}},
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
