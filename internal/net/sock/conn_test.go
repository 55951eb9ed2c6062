package sock

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// blocked starts a receiver and waits until it is inside Recv, where only a system
// call of its own can hold it up.
func blocked(t *testing.T, c *Conn) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		b := c.NewRecvBatch()
		for {
			if _, err := c.Recv(b); err != nil {
				ended <- err
				return
			}
		}
	}()
	testkit.Eventually(t, "the receiver is inside Recv", func() bool { return c.gate.state.Load()&gateUsers > 0 })
	return ended
}

// expectClosed waits for a receiver to end. If it does not, a datagram releases
// it, so that the test fails instead of hanging.
func expectClosed(t *testing.T, g *Group, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv: %v", err)
		}
	case <-time.After(testkit.WaitLimit):
		write(t, dial(t, netip.AddrPort{}, g.Addr()), []byte("let go"))
		t.Fatalf("Recv is still blocked after %v", testkit.WaitLimit)
	}
}

func TestCloseEndsRecv(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			if addr[0] == '[' {
				needV6(t)
			}
			g := listenOn(t, addr)
			c := g.Conns()[0]
			disableTimeout(t, c)
			ended := blocked(t, c)
			closed := make(chan error, 1)
			go func() { closed <- g.Close() }()
			expectClosed(t, g, ended)
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
			if _, err := c.Recv(c.NewRecvBatch()); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Recv after Close: %v", err)
			}
			b := c.NewSendBatch(2)
			b.Add(endpoint.UDP(g.Addr(), 0, 0), []byte{1})
			if res := c.Send(b); res != (SendResult{Failed: 1}) {
				t.Errorf("Send after Close: %+v", res)
			}
			c.StopReceiving()
			if err := g.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
		})
	}
}

func TestStopReceivingKeepsSending(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	disableTimeout(t, c)
	ended := blocked(t, c)
	g.StopReceiving()
	expectClosed(t, g, ended)
	c.StopReceiving()
	client := dial(t, netip.AddrPort{}, g.Addr())
	write(t, client, []byte{1})
	if _, err := c.Recv(c.NewRecvBatch()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after StopReceiving: %v", err)
	}
	b := c.NewSendBatch(1)
	b.Add(endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0), []byte("bye"))
	if res := c.Send(b); res.Sent != 1 {
		t.Fatalf("Send after StopReceiving: %+v", res)
	}
	if got := read(t, client); string(got) != "bye" {
		t.Errorf("got %q", got)
	}
}

// TestRecvTimeout expects that Recv returns without a datagram, so that its caller can check flags.
func TestRecvTimeout(t *testing.T) {
	c := listenOn(t, "127.0.0.1:0").Conns()[0]
	if n, err := c.Recv(c.NewRecvBatch()); n != 0 || err != nil {
		t.Errorf("Recv = %d, %v", n, err)
	}
}

// TestCloseRace lets everything happen at once. The race detector and the leak
// check find the faults.
func TestCloseRace(t *testing.T) {
	for round := range 20 {
		g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 2)
		var wg sync.WaitGroup
		for _, c := range g.Conns() {
			wg.Go(func() {
				if err := serve(c); err != nil {
					t.Errorf("serve: %v", err)
				}
			})
			for range 2 {
				wg.Go(func() { sendUntilClosed(c, g.Addr()) })
			}
		}
		time.Sleep(time.Duration(round%4) * time.Millisecond)
		if round%2 == 0 {
			wg.Go(g.StopReceiving)
		}
		for range 2 {
			wg.Go(func() {
				if err := g.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		waitFor(t, &wg, "close under load")
	}
}

func sendUntilClosed(c *Conn, to netip.AddrPort) {
	b := c.NewSendBatch(4)
	for {
		for range 4 {
			b.Add(endpoint.UDP(to, 0, 0), []byte("load"))
		}
		c.Stats()
		if c.Send(b).Sent == 0 {
			return
		}
	}
}

func TestGate(t *testing.T) {
	var g gate
	if !g.enter(gateClosed) || !g.mark(gateRecvStopped) || g.mark(gateRecvStopped) {
		t.Fatal("enter or mark")
	}
	if g.leave() || g.enter(gateRecvStopped) || !g.enter(gateClosed) || g.leave() {
		t.Fatal("a gate that is closed to receivers admits senders")
	}
	if !g.mark(gateClosed) || g.mark(gateClosed) || g.mark(gateRecvStopped) || g.enter(gateClosed) {
		t.Fatal("a closed gate admits no goroutine")
	}
	if g.leave() {
		t.Fatal("left while another is inside")
	}
	if !g.leave() {
		t.Fatal("the last goroutine to leave was not reported")
	}
}

func TestGateRace(t *testing.T) {
	for range 200 {
		var g gate
		var closed, closes atomic.Int32
		var wg sync.WaitGroup
		leave := func() {
			if g.leave() {
				closed.Store(1)
				closes.Add(1)
			}
		}
		for range 4 {
			wg.Go(func() {
				for g.enter(gateClosed) {
					if closed.Load() != 0 {
						t.Error("used after it was closed")
					}
					leave()
				}
			})
			wg.Go(func() {
				if g.mark(gateClosed) {
					leave()
				}
			})
		}
		wg.Wait()
		if closes.Load() != 1 {
			t.Fatalf("closed %d times", closes.Load())
		}
	}
}

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
	for end := time.Now().Add(testkit.WaitLimit); len(got) < 2 && time.Now().Before(end); {
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

func TestTryRecvAfterStopReceiving(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	g.StopReceiving()
	c := g.Conns()[0]
	if _, err := c.TryRecv(c.NewRecvBatch()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after StopReceiving: %v", err)
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

func TestNow(t *testing.T) {
	last := Now()
	if last < 0 {
		t.Fatalf("Now() = %d", last)
	}
	for range 1000 {
		now := Now()
		if now < last {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
	if n := testing.AllocsPerRun(100, func() { last = Now() }); n != 0 {
		t.Errorf("Now allocates %v times", n)
	}
}
