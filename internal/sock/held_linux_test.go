//go:build linux && !sockportable

package sock

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// TestHeldReceiver: a receiver that keeps its processor gets what comes, before
// and after it has fallen idle, ends on Close, and does not stop the collector.
func TestHeldReceiver(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, before))
	defer runtime.GOMAXPROCS(before)
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), HoldProcessor: true}, 1)
	c := g.Conns()[0]
	got, ended := make(chan byte, 64), make(chan error, 1)
	go func() {
		b := c.NewRecvBatch()
		for {
			n, err := c.Recv(b)
			if err != nil {
				ended <- err
				return
			}
			for i := range n {
				_, pkt, _ := b.At(i)
				got <- pkt[0]
			}
		}
	}()
	client := dial(t, netip.AddrPort{}, g.Addr())
	for i := range byte(6) {
		time.Sleep(time.Duration(i) * heldTimeout) // at first busy, then idle
		write(t, client, []byte{i})
		select {
		case n := <-got:
			if n != i {
				t.Fatalf("got %d, want %d", n, i)
			}
		case <-time.After(patience):
			t.Fatalf("datagram %d never came", i)
		}
		runtime.GC() // It stops every goroutine, or never returns.
	}
	g.Close()
	if err := <-ended; err != net.ErrClosed {
		t.Error(err)
	}
}
