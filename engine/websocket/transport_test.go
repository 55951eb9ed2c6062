package websocket

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"go.uber.org/goleak"
)

func TestStop(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("all", func(t *testing.T) { withAndWithoutTLS(t, testStop) })
	var left error
	if !testkit.Poll(testkit.WaitLimit, func() bool { left = goleak.Find(before); return left == nil }) {
		t.Error(left)
	}
}

func testStop(t *testing.T, server func(http.Handler) *httptest.Server) {
	t.Parallel()
	r := startOn(t, Config{closeTimeout: 3 * time.Second, sendBuffer: 4 << 10}, server)
	c := r.dial()
	serial := r.firstMessage(c)
	slow, _, _ := r.dialRaw("")
	io.WriteString(slow, "\x82\x81\x00\x00\x00\x00a")
	slowSerial := r.in.next(t).serial
	blocked := 0 // polls since a message was queued
	testkit.Eventually(t, "the writer of the slow connection is blocked", func() bool {
		for r.Send(slowSerial, make([]byte, 1000)) {
			blocked = 0
		}
		time.Sleep(10 * time.Millisecond)
		blocked++
		return blocked == 20
	})
	r.Send(serial, []byte("queued"))
	status := make(chan ws.StatusCode, 1)
	go func() {
		if got := read(t, c); string(got) != "queued" {
			t.Errorf("got %q", got)
		}
		_, _, err := c.Read(context.Background())
		status <- ws.CloseStatus(err)
	}()
	r.stop()
	if got := <-status; got != ws.StatusGoingAway {
		t.Errorf("status %v", got)
	}
	if s := r.Stats(); s.Open != 0 || s.Ended[endStopped.String()] != 2 || s.Dropped[dropGone.String()] == 0 {
		t.Errorf("%+v", s)
	}
	for i := range r.shards {
		if n := len(r.shards[i].conns); n != 0 {
			t.Errorf("%d connections remain", n)
		}
	}
}

// TestChurn: connections open, send and end in every way at once, and everything is counted.
func TestChurn(t *testing.T) {
	t.Parallel()
	const clients, rounds = 100, 3
	r := start(t, Config{MaxConnsPerAddress: -1, queueMessages: 16})
	ctx, cancel := context.WithCancel(t.Context())
	var echoing, playing sync.WaitGroup
	var tried uint64
	echoing.Go(func() { // The relay: it echoes, and sends to connections that may have ended.
		for {
			select {
			case <-ctx.Done():
				return
			case a := <-r.in:
				tried += 2
				r.Send(a.serial-7, []byte("from another"))
				r.Send(a.serial, a.pkt)
			}
		}
	})
	for i := range clients {
		playing.Go(func() {
			for round := range rounds {
				if err := r.connectOnce(i, (i+round)%5); err != nil {
					t.Errorf("client %d, round %d: %v", i, round, err)
				}
			}
		})
	}
	playing.Wait()
	if !testkit.Poll(testkit.WaitLimit, func() bool { return r.Stats().Open == clients*rounds/5 }) {
		t.Errorf("want only the connections that stay open: %+v", r.Stats())
	}
	cancel()
	echoing.Wait()
	r.stop()
	s := r.Stats()
	ended, dropped := uint64(0), s.Dropped[dropFull.String()]+s.Dropped[dropGone.String()]
	for _, n := range s.Ended {
		ended += n
	}
	const each = clients * rounds / 5
	if s.Open != 0 || s.Opened != clients*rounds || ended != s.Opened || s.Sent+dropped != tried ||
		s.Ended[endFinalError.String()] != each || s.Ended[endText.String()] != each || s.Ended[endStopped.String()] != each ||
		s.Ended[endPeer.String()] != each {
		t.Errorf("%d tried, %+v", tried, s)
	}
}

func (r *rig) connectOnce(i, way int) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	c, _, err := ws.Dial(ctx, r.url, nil)
	if err != nil {
		return err
	}
	ours := binary.BigEndian.AppendUint32(nil, uint32(i))
	if way == 0 {
		ours = proto.Error{Code: proto.ErrorNotFound}.Append(nil) // Its echo ends the connection.
	}
	if err := c.Write(ctx, ws.MessageBinary, ours); err != nil {
		return err
	}
	for echo := []byte(nil); !bytes.Equal(echo, ours); {
		if _, echo, err = c.Read(ctx); err != nil {
			return err
		}
	}
	switch way {
	case 1:
		return c.Close(ws.StatusNormalClosure, "")
	case 2:
		c.Write(ctx, ws.MessageText, ours)
	case 3:
		return c.CloseNow()
	case 4: // It stays open until Run ends.
		go func() {
			for err == nil {
				_, _, err = c.Read(context.Background())
			}
		}()
		return nil
	}
	for err == nil {
		_, _, err = c.Read(ctx)
	}
	if want := []ws.StatusCode{ws.StatusNormalClosure, 0, ws.StatusUnsupportedData}[way]; ws.CloseStatus(err) != want {
		return err
	}
	return nil
}

func TestSendAllocations(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	r := start(t, Config{PingInterval: time.Hour}) // This client answers no pings.
	conn, reader, _ := r.dialRaw("")
	conn.(*net.TCPConn).SetReadBuffer(1 << 20) // This client is not slow.
	conn.SetReadDeadline(time.Time{})
	io.WriteString(conn, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(t).serial
	go io.Copy(io.Discard, reader)
	pkt := make([]byte, 1000)
	var sent uint64
	send := func() {
		for range 3 {
			if !r.Send(serial, pkt) {
				t.Fatal("a message was not queued")
			}
		}
		sent += 3
		for r.counts.sent.Load() != sent {
			time.Sleep(50 * time.Microsecond)
		}
	}
	for range 10 {
		send() // The ring grows.
	}
	if n := testing.AllocsPerRun(200, send); n != 0 {
		t.Errorf("%v allocations for three messages", n)
	}
	if n := testing.AllocsPerRun(200, func() { r.Send(serial+1, pkt) }); n != 0 {
		t.Errorf("%v allocations for drops", n)
	}
	conn.Close()
	testkit.Eventually(t, "the connection has ended", func() bool { return r.Stats().Open == 0 })
}

func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	add := func(group, name string) {
		if name == "" || seen[group+name] {
			t.Errorf("%s has %q twice, or a counter without a name", group, name)
		}
		seen[group+name] = true
	}
	for i := range numRefusals {
		add("refused ", i.String())
	}
	for i := range numDrops {
		add("dropped ", i.String())
	}
	for i := range numEnds {
		add("ended ", i.String())
	}
}

type matchRig struct {
	*enginetest.Relay
	*Transport
	srv *httptest.Server
}

func newMatchRig(t *testing.T, server func(http.Handler) *httptest.Server) *matchRig {
	t.Helper()
	return newMatchRigWith(t, server, Config{}, engine.Config{})
}

func newMatchRigWith(t *testing.T, server func(http.Handler) *httptest.Server, cfg Config, relay engine.Config) *matchRig {
	t.Helper()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := &matchRig{Transport: tr, srv: server(tr)}
	t.Cleanup(g.srv.Close)
	relay.Sockets.Workers, relay.Transports = 2, []engine.Transport{tr}
	g.Relay = enginetest.Start(t, relay)
	<-tr.Running()
	return g
}

func (g *matchRig) dialAndBind(t *testing.T, cred enginetest.Credentials) *ws.Conn {
	t.Helper()
	c, _, err := ws.Dial(context.Background(), g.srv.URL, &ws.DialOptions{HTTPClient: g.srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	write(t, c, enginetest.SignedBind(cred, 0))
	if got := read(t, c); !bytes.Equal(got, proto.BindReceived{}.Append(nil)) {
		t.Fatalf("the answer to BIND is %x", got)
	}
	return c
}

func TestMatch(t *testing.T) { withAndWithoutTLS(t, testMatch) }

func testMatch(t *testing.T, server func(http.Handler) *httptest.Server) {
	t.Parallel()
	g := newMatchRig(t, server)
	res := g.Host("host", 4)
	joiner, web := g.Joiner("over udp", res.ID), g.Joiner("over ws", res.ID)
	host := g.dialAndBind(t, g.Credentials(res))

	udp := enginetest.Play(t, enginetest.UTP2, g.Credentials(joiner))
	udp.Connect()
	testkit.Eventually(t, "the player has joined", udp.HasPeers(1))
	udp.Send([16]byte(res.ID), "up")
	up := proto.Relay{From: joiner.ID, To: res.ID, Payload: []byte("up")}.Append(nil)
	if got := read(t, host); !bytes.Equal(got, up) {
		t.Errorf("the host got %x", got)
	}
	write(t, host, proto.Relay{From: res.ID, To: joiner.ID, Payload: []byte("down")}.Append(nil))
	testkit.Eventually(t, "the player receives from the host", udp.HasReceived([16]byte(res.ID), "down"))

	player := g.dialAndBind(t, g.Credentials(web))
	connect := proto.ConnectRequest{ID: web.ID, ConnectionData: web.HostConnectionData[:]}.Append(nil)
	write(t, player, connect)
	if got, err := proto.ParseAccepted(read(t, player)); err != nil {
		t.Fatal(got, err)
	}
	// maxOutgoing limits what is sent to WebSocket clients, not what a host sends.
	for _, size := range []int{proto.DefaultMaxContent, defaultMaxOutgoing - proto.RelayOverhead} {
		pkt := proto.Relay{From: res.ID, To: web.ID, Payload: make([]byte, size)}.Append(nil)
		write(t, host, pkt)
		if size == proto.DefaultMaxContent {
			continue
		}
		if got := read(t, player); !bytes.Equal(got, pkt) {
			t.Errorf("the player got %d bytes", len(got))
		}
	}
	if got := g.Relay.Stats().Drops["receiver_size"]; got != 1 {
		t.Errorf("%d messages were too large", got)
	}

	write(t, host, proto.Close{ID: res.ID}.Append(nil))
	testkit.Eventually(t, "the host has ended", func() bool { return g.Relay.Stats().Outcomes["closed"] == 1 })
	write(t, player, connect)
	gone, err := proto.ParseError(read(t, player))
	if err != nil || gone.Code != proto.ErrorNotFound {
		t.Fatal(gone, err)
	}
	expectClose(t, player, ws.StatusNormalClosure)
}
