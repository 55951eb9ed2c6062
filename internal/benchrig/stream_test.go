package benchrig

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func openWebSocket(t *testing.T, transport string, serve func(context.Context, *websocket.Conn)) (*Rig, netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		serve(ctx, c)
	})
	server := httptest.NewUnstartedServer(handler)
	to := Server{}
	if transport == TransportWSS {
		server.StartTLS()
		to.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		server.Start()
	}
	to.Addr = netip.MustParseAddrPort(server.Listener.Addr().(*net.TCPAddr).String())
	p := Plan{Matches: 1, Players: 1, Payload: 24, Stride: 2, Sockets: 1, Batch: 16, Transport: transport}
	if err := p.Place(DefaultSources(FamilyIPv4)); err != nil {
		t.Fatal(err)
	}
	r, err := NewRig(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); cancel(); server.Close() })
	if err := handshake(t.Context(), r, 0, to, func(int, netip.AddrPort, []byte) {}); err != nil {
		t.Fatal(err)
	}
	if r.Endpoints[0].Addr.Addr() != p.Addr(0) || r.Endpoints[0].Addr.Port() == 0 {
		t.Errorf("endpoint at %v", r.Endpoints[0].Addr)
	}
	return r, to.Addr
}

// TestWebSocketMessages: a library understands what is sent, of every length, and what it sends is
// received; its pings are answered.
func TestWebSocketMessages(t *testing.T) {
	for _, transport := range []string{TransportWS, TransportWSS} {
		t.Run(transport, func(t *testing.T) {
			pinged := make(chan error, 1)
			r, addr := openWebSocket(t, transport, func(ctx context.Context, c *websocket.Conn) {
				go func() { pinged <- c.Ping(ctx) }()
				for {
					_, msg, err := c.Read(ctx)
					if err != nil || c.Write(ctx, websocket.MessageBinary, msg) != nil {
						return
					}
				}
			})
			var want, got []byte
			answered := false
			idle := func(time.Time) error {
				select {
				case err := <-pinged:
					answered = true
					return err
				default:
					return nil
				}
			}
			for size := range MaxDatagram + 1 {
				msg := bytes.Repeat([]byte{byte(size), byte(size >> 8), 0x5A}, size/3+1)[:size]
				want = append(want, msg...)
				if err := r.SendTo(0, addr, msg); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := r.Await(ctx, func() bool { return answered && len(got) >= len(want) }, idle,
				func(_ int, _ netip.AddrPort, pkt []byte) { got = append(got, pkt...) })
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d of %d bytes came back, ping answered %v: %v", len(got), len(want), answered, err)
			}
			if c := r.Connections(); c.Ended != 0 {
				t.Errorf("connections %+v", c)
			}
		})
	}
}

// TestWebSocketNotRead: a generator that does not read finds that the relay had to wait, and one
// whose relay ends the connection is told so.
func TestWebSocketNotRead(t *testing.T) {
	for _, transport := range []string{TransportWS, TransportWSS} {
		t.Run(transport, func(t *testing.T) {
			const size, messages = 1400, 15_000 // more than all buffers of the kernel hold
			r, addr := openWebSocket(t, transport, func(ctx context.Context, c *websocket.Conn) {
				_, _, err := c.Read(ctx)
				if err != nil {
					return
				}
				msg := make([]byte, size)
				for range messages {
					if c.Write(ctx, websocket.MessageBinary, msg) != nil {
						return
					}
				}
			})
			s := r.Sockets[0].Conn.(*streams)
			raw := s.conns[0].conn.stream
			if err := r.SendTo(0, addr, []byte("begin")); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the receive buffer is full", func() bool { return isBacklogged(raw) })
			ended, received := false, 0
			testkit.Eventually(t, "all has arrived", func() bool {
				for range 100 {
					if _, err := r.Poll(func(_ int, _ netip.AddrPort, pkt []byte) { received += len(pkt) }); err != nil {
						t.Fatal(err)
					}
				}
				r.TakeEnded(func(ep int) { ended = ep == 0 })
				return ended
			})
			if c := r.Connections(); c.Backlogged == 0 || c.Ended != 1 || received != messages*size {
				t.Errorf("%d bytes, connections %+v", received, c)
			}
		})
	}
}
