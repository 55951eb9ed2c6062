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
	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestStop: when Run's context ends all connections are told, those that do not
// listen are cut off, and nothing is left.
func TestStop(t *testing.T) { onBoth(t, testStop) }

func testStop(t *testing.T, server func(http.Handler) *httptest.Server) {
	before := goleak.IgnoreCurrent()
	r := startOn(t, Config{CloseTimeout: 3 * time.Second, SendBuffer: 4 << 10}, server)
	c := r.dial()
	serial := r.hello(c)
	slow, _, _ := r.raw("")
	io.WriteString(slow, "\x82\x81\x00\x00\x00\x00a")
	slowSerial := r.in.next(t).serial
	blocked := 0 // looks at which nothing had moved
	testkit.Eventually(t, "the writer to the slow one is blocked", func() bool {
		for r.Send(slowSerial, make([]byte, 1000)) {
			blocked = 0
		}
		time.Sleep(10 * time.Millisecond)
		blocked++
		return blocked == 20
	})
	r.Send(serial, []byte("queued"))
	told := make(chan ws.StatusCode, 1)
	go func() {
		if got := read(t, c); string(got) != "queued" {
			t.Errorf("got %q", got)
		}
		_, _, err := c.Read(context.Background())
		told <- ws.CloseStatus(err)
	}()
	r.stop()
	if got := <-told; got != ws.StatusGoingAway {
		t.Errorf("status %v", got)
	}
	if s := r.Stats(); s.Open != 0 || s.Ended[EndStopped] != 2 || s.Dropped[DropGone] == 0 {
		t.Errorf("%+v", s)
	}
	// What is left is the HTTP server's, and this test's clients'.
	for i := range r.shards {
		if n := len(r.shards[i].conns); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	}
	slow.Close()
	var left error
	if !testkit.Poll(testkit.WaitLimit, func() bool {
		left = goleak.Find(before, goleak.IgnoreAnyFunction("net/http/httptest.(*Server).goServe.func1"))
		return left == nil
	}) {
		t.Error(left)
	}
}

// TestChurn: many connections come, talk and go in every way at once, while
// others send to them. Every message and every connection is accounted for.
func TestChurn(t *testing.T) {
	const clients, rounds = 100, 3
	r := start(t, Config{MaxConnsPerAddress: -1, QueueMessages: 16})
	ctx, cancel := context.WithCancel(t.Context())
	var echoing, playing sync.WaitGroup
	var tried uint64
	echoing.Go(func() { // The relay: it echoes, and sends to those who may have gone.
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
				if err := r.visit(i, (i+round)%5); err != nil {
					t.Errorf("client %d, round %d: %v", i, round, err)
				}
			}
		})
	}
	playing.Wait()
	if !testkit.Poll(testkit.WaitLimit, func() bool { return r.Stats().Open == clients*rounds/5 }) {
		t.Errorf("more than those who stay are left: %+v", r.Stats())
	}
	cancel()
	echoing.Wait()
	r.stop()
	s := r.Stats()
	var ended, dropped uint64
	for _, n := range s.Ended {
		ended += n
	}
	for _, n := range s.Dropped[DropFull:] {
		dropped += n
	}
	const each = clients * rounds / 5
	if s.Open != 0 || s.Opened != clients*rounds || ended != s.Opened || s.Sent+dropped != tried ||
		s.Ended[EndLast] != each || s.Ended[EndText] != each || s.Ended[EndStopped] != each || s.Ended[EndPeer] != each {
		t.Errorf("%d tried, %+v", tried, s)
	}
}

// visit opens a connection, waits for an echo, and leaves in one of five ways.
func (r *rig) visit(i, way int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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
	case 4: // It stays until the relay goes.
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

// TestSendAllocations: what a worker calls allocates nothing, nor does what the
// writer does for each message.
func TestSendAllocations(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	r := start(t, Config{PingInterval: time.Hour}) // Nobody answers pings here.
	conn, reader, _ := r.raw("")
	conn.(*net.TCPConn).SetReadBuffer(1 << 20) // This one is not slow.
	conn.SetReadDeadline(time.Time{})
	io.WriteString(conn, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(t).serial
	go io.Copy(io.Discard, reader)
	pkt := make([]byte, 1000)
	var sent uint64
	send := func() {
		for range 3 {
			if !r.Send(serial, pkt) {
				t.Fatal("not taken")
			}
		}
		sent += 3
		for r.Stats().Sent != sent {
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
	testkit.Eventually(t, "it has left", func() bool { return r.Stats().Open == 0 })
}

// TestNames: every counter has a name of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	add := func(group, name string) {
		if name == "" || name == "unknown" || seen[group+name] {
			t.Errorf("%s has %q twice, or a counter without a name", group, name)
		}
		seen[group+name] = true
	}
	for i := range NumRefusals {
		add("refused ", i.String())
	}
	for i := range NumDrops {
		add("dropped ", i.String())
	}
	for i := range NumEnds {
		add("ended ", i.String())
	}
	if NumRefusals.String() != "unknown" || NumDrops.String() != "unknown" || NumEnds.String() != "unknown" {
		t.Error("what does not exist has a name")
	}
}
