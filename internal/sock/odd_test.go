package sock

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestOddDatagrams: empty datagrams are datagrams, which count against the
// batch and end nothing, and a truncated one, which is told, costs its
// neighbours nothing. With one socket per batch size, through the real kernel.
func TestOddDatagrams(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		for _, held := range []bool{false, true} {
			t.Run(addr+map[bool]string{true: "/held"}[held], func(t *testing.T) {
				if addr[0] == '[' {
					needV6(t)
				}
				testOdd(t, Config{Addr: netip.MustParseAddrPort(addr), Batch: 8, HoldProcessor: held})
			})
		}
	}
}

func testOdd(t *testing.T, cfg Config) {
	g := listen(t, cfg, 1)
	c := g.Conns()[0]
	to := g.Addr()
	if cfg.Addr.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
	}
	client := dial(t, netip.AddrPort{}, to)
	rng := rand.New(rand.NewPCG(3, 4))
	sizes := []int{0, 0, 0, 1, 38, SlotSize, SlotSize + 1, 9000}
	rx := c.NewRecvBatch()
	for round := range 30 {
		var want [][]byte
		for range 1 + rng.IntN(20) {
			size := sizes[rng.IntN(len(sizes))]
			if round == 0 {
				size = 0
			}
			want = append(want, bytes.Repeat([]byte{byte(rng.Uint32())}, size))
			write(t, client, want[len(want)-1])
		}
		for len(want) > 0 {
			n := recvSome(t, c, rx)
			if n > min(cfg.Batch, len(want)) {
				t.Fatalf("round %d: %d datagrams in a batch of %d, %d to come", round, n, cfg.Batch, len(want))
			}
			for i, pkt := range want[:n] {
				from, got, truncated := rx.At(i)
				if truncated != (len(pkt) > SlotSize) || !bytes.Equal(got, pkt[:min(len(pkt), SlotSize)]) || from.IsZero() {
					t.Fatalf("round %d: %d bytes arrive as %d from %v, truncated %v", round, len(pkt), len(got), from, truncated)
				}
			}
			want = want[n:]
		}
	}
	if s := c.Stats(); s.RecvErrors != 0 || s.KernelDrops != 0 {
		t.Errorf("%+v", s)
	}
}
