package websocket

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// game is a relay with both ways in.
type game struct {
	*enginetest.Relay
	*Transport
	srv *httptest.Server
}

func newGame(t *testing.T, server func(http.Handler) *httptest.Server) *game {
	t.Helper()
	tr, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := &game{Transport: tr, srv: server(tr)}
	t.Cleanup(g.srv.Close)
	g.Relay = enginetest.Start(t, engine.Config{Workers: 2, Transports: []engine.Transport{tr}})
	testkit.Eventually(t, "the transport runs", func() bool { return !tr.door.locked() })
	return g
}

// player opens a WebSocket and binds an allocation.
func (g *game) player(t *testing.T, cred enginetest.Credentials) *ws.Conn {
	t.Helper()
	c, _, err := ws.Dial(context.Background(), g.srv.URL, &ws.DialOptions{HTTPClient: g.srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	write(t, c, enginetest.SignedBind(cred, 0))
	if got := read(t, c); !bytes.Equal(got, proto.BindReceived{}.Append(nil)) {
		t.Fatalf("the BIND earned %x", got)
	}
	return c
}

// TestMatch: a host on WebSocket, one player there and one over UDP are in one
// match of a real relay.
func TestMatch(t *testing.T) { onBoth(t, testMatch) }

func testMatch(t *testing.T, server func(http.Handler) *httptest.Server) {
	g := newGame(t, server)
	res := g.Host("host", 4)
	joiner, web := g.Joiner("over udp", res.ID), g.Joiner("over ws", res.ID)
	host := g.player(t, g.Credentials(res))

	udp := enginetest.Play(t, enginetest.UTP2, g.Credentials(joiner))
	udp.Connect()
	testkit.Eventually(t, "the player has joined", udp.HasPeers(1))
	udp.Send([16]byte(res.ID), "up")
	up := proto.Relay{From: joiner.ID, To: res.ID, Payload: []byte("up")}.Append(nil)
	if got := read(t, host); !bytes.Equal(got, up) {
		t.Errorf("the host got %x", got)
	}
	write(t, host, proto.Relay{From: res.ID, To: joiner.ID, Payload: []byte("down")}.Append(nil))
	testkit.Eventually(t, "the player hears the host", udp.HasReceived([16]byte(res.ID), "down"))

	player := g.player(t, g.Credentials(web))
	connect := proto.ConnectRequest{ID: web.ID, ConnectionData: web.HostConnectionData[:]}.Append(nil)
	write(t, player, connect)
	if got, err := proto.ParseAccepted(read(t, player)); err != nil {
		t.Fatal(got, err)
	}
	// A UDP host may send more than a native client takes, so the size
	// counts towards WebSocket only.
	for _, size := range []int{proto.DefaultMaxContent, DefaultMaxOutgoing - proto.RelayOverhead} {
		pkt := proto.Relay{From: res.ID, To: web.ID, Payload: make([]byte, size)}.Append(nil)
		write(t, host, pkt)
		if size == proto.DefaultMaxContent {
			continue
		}
		if got := read(t, player); !bytes.Equal(got, pkt) {
			t.Errorf("the player got %d bytes", len(got))
		}
	}
	if got := g.Relay.Stats().Outcomes[engine.DropReceiverSize]; got != 1 {
		t.Errorf("%d messages were too large", got)
	}

	write(t, host, proto.Close{ID: res.ID}.Append(nil))
	testkit.Eventually(t, "the host has ended", func() bool { return g.Relay.Stats().Outcomes[engine.OutClosed] == 1 })
	write(t, player, connect)
	gone, err := proto.ParseError(read(t, player))
	if err != nil || gone.Code != proto.ErrorNotFound {
		t.Fatal(gone, err)
	}
	closedWith(t, player, ws.StatusNormalClosure)
}
