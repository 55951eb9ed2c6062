package sock

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
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
	case <-time.After(patience):
		write(t, dial(t, netip.AddrPort{}, g.Addr()), []byte("let go"))
		t.Fatalf("Recv is still blocked after %v", patience)
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
			endless(t, c)
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

// TestWakeKeepsSending expects that Wake ends receiving only.
func TestWakeKeepsSending(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	endless(t, c)
	ended := blocked(t, c)
	g.StopReceiving()
	expectClosed(t, g, ended)
	c.StopReceiving()
	client := dial(t, netip.AddrPort{}, g.Addr())
	write(t, client, []byte{1})
	if _, err := c.Recv(c.NewRecvBatch()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Wake: %v", err)
	}
	b := c.NewSendBatch(1)
	b.Add(endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0), []byte("bye"))
	if res := c.Send(b); res.Sent != 1 {
		t.Fatalf("Send after Wake: %+v", res)
	}
	if got := read(t, client); string(got) != "bye" {
		t.Errorf("got %q", got)
	}
}

// TestRecvTimeout expects that a silent socket lets its caller look at flags.
func TestRecvTimeout(t *testing.T) {
	c := listenOn(t, "127.0.0.1:0").Conns()[0]
	if n, err := c.Recv(c.NewRecvBatch()); n != 0 || err != nil {
		t.Errorf("Recv = %d, %v", n, err)
	}
}

// TestCloseRace lets everything happen at once. The race detector and the leak
// check are the judges.
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
