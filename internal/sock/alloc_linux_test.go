//go:build linux && !sockportable

package sock

import (
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// pair is two sockets that exchange batches within one goroutine.
type pair struct {
	a, b     *Conn
	rxA, rxB *RecvBatch
	txA, txB *SendBatch
	toB      endpoint.Endpoint
}

func newPair(t testing.TB, listenAddr, dialAddr string) *pair {
	a := listen(t, Config{Addr: netip.MustParseAddrPort(listenAddr)}, 1)
	b := listen(t, Config{Addr: netip.MustParseAddrPort(listenAddr)}, 1)
	p := &pair{a: a.Conns()[0], b: b.Conns()[0]}
	p.rxA, p.rxB = p.a.NewRecvBatch(), p.b.NewRecvBatch()
	p.txA, p.txB = p.a.NewSendBatch(DefaultBatch), p.b.NewSendBatch(DefaultBatch)
	p.toB = endpoint.UDP(netip.AddrPortFrom(netip.MustParseAddr(dialAddr), b.Addr().Port()), 0, 0)
	return p
}

// echo sends n datagrams from a to b and back, and reports whether all arrived.
func (p *pair) echo(n int, pkt []byte) bool {
	for range n {
		p.txA.Add(p.toB, pkt)
	}
	p.a.Send(p.txA)
	return relayBack(p.b, p.rxB, p.txB, n) && relayBack(p.a, p.rxA, nil, n)
}

// relayBack receives as many as it wants, and sends them back if it has a batch
// for that. Recv may come back with nothing, now and then.
func relayBack(c *Conn, rx *RecvBatch, tx *SendBatch, want int) bool {
	for idle := 0; want > 0; {
		n, err := c.Recv(rx)
		if n == 0 {
			idle++
		}
		if err != nil || idle > int(patience/recvTimeout) {
			return false
		}
		want -= n
		for i := range n {
			from, pkt, truncated := rx.At(i)
			if truncated || from.IsZero() {
				return false
			}
			if tx != nil {
				tx.Add(from, pkt)
			}
		}
		if tx != nil && c.Send(tx).Failed > 0 {
			return false
		}
	}
	return true
}

func testAllocs(t *testing.T, listenAddr, dialAddr string) {
	t.Helper()
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	p := newPair(t, listenAddr, dialAddr)
	pkt := make([]byte, 200)
	for _, n := range []int{1, 8, 64} {
		ok := true
		if allocs := testing.AllocsPerRun(100, func() { ok = ok && p.echo(n, pkt) }); allocs != 0 || !ok {
			t.Errorf("batch %d: %v allocations, all arrived: %v", n, allocs, ok)
		}
	}
}

func TestAllocsIPv4(t *testing.T) { testAllocs(t, "127.0.0.1:0", "127.0.0.1") }

func TestAllocsIPv6(t *testing.T) {
	needV6(t)
	testAllocs(t, "[::1]:0", "::1")
}

func TestAllocsWildcardIPv4(t *testing.T) { testAllocs(t, "0.0.0.0:0", "127.0.0.2") }

func TestAllocsWildcardIPv6(t *testing.T) {
	needV6(t)
	testAllocs(t, "[::]:0", "::1")
}
