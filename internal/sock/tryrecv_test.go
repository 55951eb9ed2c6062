package sock

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

func TestTryRecv(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	rx := c.NewRecvBatch()
	if n, err := c.TryRecv(rx); n != 0 || err != nil {
		t.Fatalf("empty socket: %d, %v", n, err)
	}
	client := dial(t, netip.AddrPort{}, g.Addr())
	write(t, client, []byte("one"))
	write(t, client, []byte("two"))
	var got []string
	for end := time.Now().Add(patience); len(got) < 2 && time.Now().Before(end); {
		n, err := c.TryRecv(rx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			from, pkt, _ := rx.At(i)
			if from.AddrPort() != client.LocalAddr().(*net.UDPAddr).AddrPort() {
				t.Errorf("from %v", from)
			}
			got = append(got, string(pkt))
		}
	}
	if len(got) != 2 || got[0] != "one" || got[1] != "two" {
		t.Errorf("got %q", got)
	}
}

func TestTryRecvAfterWake(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	g.StopReceiving()
	c := g.Conns()[0]
	if _, err := c.TryRecv(c.NewRecvBatch()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Wake: %v", err)
	}
}

func TestTryRecvAllocs(t *testing.T) {
	if testkit.RaceEnabled || listenOn(t, "127.0.0.1:0").Capabilities().Path != "mmsg" {
		t.Skip("the race detector and the portable build allocate")
	}
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	rx := c.NewRecvBatch()
	if n := testing.AllocsPerRun(100, func() { _, _ = c.TryRecv(rx) }); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
}
