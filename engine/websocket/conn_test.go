package websocket

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestSizes: the largest messages pass in both directions, larger ones end the
// connection of who sends them.
func TestSizes(t *testing.T) {
	r := start(t, Config{})
	c := r.dial()
	c.SetReadLimit(DefaultMaxOutgoing)
	big := bytes.Repeat([]byte{7}, MaxMessage+1)
	write(t, c, big[:MaxMessage])
	a := r.in.next(t)
	if a.serial != 1 || !bytes.Equal(a.pkt, big[:MaxMessage]) {
		t.Fatalf("serial %d, %d bytes", a.serial, len(a.pkt))
	}
	write(t, c, nil)
	if a := r.in.next(t); len(a.pkt) != 0 {
		t.Errorf("%d bytes of an empty message", len(a.pkt))
	}
	if r.MaxMessage() != DefaultMaxOutgoing || !r.Send(1, big[:DefaultMaxOutgoing]) {
		t.Error("the largest message was not taken")
	}
	if got := read(t, c); !bytes.Equal(got, big[:DefaultMaxOutgoing]) {
		t.Errorf("got %d bytes", len(got))
	}
	write(t, c, big)
	closedWith(t, c, ws.StatusMessageTooBig)
	r.endedAs(EndLarge)
	s := r.Stats()
	want := Stats{
		Opened: 1, Received: 2, ReceivedBytes: MaxMessage, Sent: 1, SentBytes: DefaultMaxOutgoing,
		Ended: [NumEnds]uint64{EndLarge: 1},
	}
	if s != want {
		t.Errorf("%+v", s)
	}
	if r.Send(1, nil) || r.Stats().Dropped[DropGone] != 1 {
		t.Error("a message was taken for a connection that has ended")
	}
}

// TestText: text is refused, since no client sends it.
func TestText(t *testing.T) {
	r := start(t, Config{})
	c := r.dial()
	if err := c.Write(t.Context(), ws.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	closedWith(t, c, ws.StatusUnsupportedData)
	r.endedAs(EndText)
	if len(r.in) != 0 {
		t.Error("it was delivered")
	}
}

// TestFraming: fragments are put together, and faults end the connection.
func TestFraming(t *testing.T) {
	zeroMask := "\x00\x00\x00\x00"
	for _, test := range []struct {
		name, bytes string
		want        End
		status      ws.StatusCode // 0: none need come
	}{
		{"unmasked", "\x82\x01a", EndProtocol, ws.StatusProtocolError},
		{"reserved bit", "\xc2\x81" + zeroMask + "a", EndProtocol, ws.StatusProtocolError},
		{"unknown opcode", "\x83\x81" + zeroMask + "a", EndProtocol, ws.StatusProtocolError},
		{"stray continuation", "\x80\x81" + zeroMask + "a", EndProtocol, ws.StatusProtocolError},
		{"negative length", "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" + zeroMask, EndProtocol, ws.StatusProtocolError},
		{"endless length", "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + zeroMask + strings.Repeat("a", 2000), EndLarge, ws.StatusMessageTooBig},
		{"large in parts", "\x02\xfe\x05\x00" + zeroMask + strings.Repeat("a", 0x500) + "\x80\xfe\x05\x00" + zeroMask + strings.Repeat("a", 0x500), EndLarge, ws.StatusMessageTooBig},
		{"goodbye", "\x88\x82" + zeroMask + "\x03\xe8", EndPeer, ws.StatusNormalClosure},
		{"nothing more", "", EndLost, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := start(t, Config{})
			conn, reader, _ := r.raw("")
			io.WriteString(conn, "\x02\x81"+zeroMask+"a\x80\x81"+zeroMask+"b")
			if a := r.in.next(t); string(a.pkt) != "ab" {
				t.Errorf("two fragments became %q", a.pkt)
			}
			io.WriteString(conn, test.bytes)
			if test.status != 0 {
				var frame [4]byte
				io.ReadFull(reader, frame[:])
				if got := ws.StatusCode(binary.BigEndian.Uint16(frame[2:])); frame[0] != 0x88 || got != test.status {
					t.Errorf("the answer is %x, want status %d", frame, test.status)
				}
			}
			conn.Close()
			r.endedAs(test.want)
		})
	}
}

// TestLast: ERROR 1 and 4 end the connection, after all that was queued before;
// other ERRORs do not.
func TestLast(t *testing.T) {
	for _, code := range []proto.ErrorCode{proto.ErrorTimeout, proto.ErrorNotFound} {
		r := start(t, Config{QueueMessages: 3})
		c := r.dial()
		serial := r.hello(c)
		last := proto.Error{Code: code}.Append(nil)
		other := proto.Error{Code: proto.ErrorMismatch}.Append(nil)
		if !r.Send(serial, other) || !r.Send(serial, []byte("data")) || !r.Send(serial, last) {
			t.Fatal("not taken")
		}
		if r.Send(serial, other) {
			t.Error("a message was taken after the last")
		}
		for _, want := range [][]byte{other, []byte("data"), last} {
			if got := read(t, c); !bytes.Equal(got, want) {
				t.Errorf("got %x, want %x", got, want)
			}
		}
		closedWith(t, c, ws.StatusNormalClosure)
		r.endedAs(EndLast)
	}
}

// TestPing: who answers pings stays, who does not is cut off; a client's ping is
// answered.
func TestPing(t *testing.T) {
	r := start(t, Config{PingInterval: 20 * time.Millisecond, PongTimeout: 4 * time.Second, BindTimeout: time.Hour})
	awake := r.dial()
	if err := awake.Ping(awake.CloseRead(context.Background())); err != nil {
		t.Fatal(err)
	}
	r.dial() // Nobody reads here, so nobody answers.
	testkit.Eventually(t, "the silent one is cut off", func() bool { return r.Stats().Ended[EndPing] == 1 })
	pings := r.Stats().Pings
	testkit.Eventually(t, "the other is pinged on", func() bool { return r.Stats().Pings > pings+3 })
	if s := r.Stats(); s.Open != 1 || s.Ended[EndPing] != 1 {
		t.Errorf("%+v", s)
	}
}

// TestUnbound: a connection that earns nothing but ERRORs is closed.
func TestUnbound(t *testing.T) {
	r := start(t, Config{BindTimeout: 3 * time.Second})
	bound, stranger := r.dial(), r.dial()
	r.Send(r.hello(bound), []byte("BIND_RECEIVED"))
	r.Send(r.hello(stranger), proto.Error{Code: proto.ErrorMismatch}.Append(nil))
	read(t, stranger)
	closedWith(t, stranger, ws.StatusPolicyViolation)
	if got := read(t, bound); string(got) != "BIND_RECEIVED" {
		t.Errorf("got %q", got)
	}
	testkit.Eventually(t, "only the stranger has left", func() bool { s := r.Stats(); return s.Ended[EndUnbound] == 1 && s.Open == 1 })
}

// TestUnproven: before the relay has answered, only so much is delivered.
func TestUnproven(t *testing.T) {
	r := start(t, Config{})
	c := r.dial()
	for range unprovenMessages + 5 {
		write(t, c, nil)
	}
	testkit.Eventually(t, "five are dropped", func() bool { return r.Stats().Dropped[DropUnproven] == 5 })
	if len(r.in) != unprovenMessages {
		t.Errorf("%d messages were delivered", len(r.in))
	}
	r.Send(1, nil)
	read(t, c)
	write(t, c, nil)
	testkit.Eventually(t, "one more is delivered", func() bool { return len(r.in) == unprovenMessages+1 })
}

// TestBusy: what the relay has no room for is dropped and counted.
func TestBusy(t *testing.T) {
	r := start(t, Config{})
	c := r.dial()
	r.Send(r.hello(c), nil)
	read(t, c)
	for range cap(r.in) + 3 {
		write(t, c, nil)
	}
	testkit.Eventually(t, "three are dropped", func() bool { return r.Stats().Dropped[DropBusy] == 3 })
}

// TestIdle: a connection to which nothing is sent any more is closed.
func TestIdle(t *testing.T) {
	r := start(t, Config{PingInterval: 10 * time.Millisecond, IdleTimeout: 3 * time.Second, BindTimeout: time.Hour})
	c := r.dial()
	r.Send(r.hello(c), []byte("a"))
	read(t, c)
	closedWith(t, c, ws.StatusNormalClosure)
	r.endedAs(EndIdle)
}

// TestSlowReader: a client that reads nothing loses messages, then its
// connection, and nobody else notices.
func TestSlowReader(t *testing.T) { onBoth(t, testSlowReader) }

func testSlowReader(t *testing.T, server func(http.Handler) *httptest.Server) {
	// On a slow machine the queue has to be full before the writer gives up.
	r := startOn(t, Config{WriteTimeout: 2 * time.Second, SendBuffer: 4 << 10}, server)
	slow, _, _ := r.raw("")
	io.WriteString(slow, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(t).serial
	good := r.dial()
	goodSerial := r.hello(good)
	const rounds = 200
	flood := make([]byte, 1000)
	var full bool
	for i := range rounds {
		for range 50 {
			if !r.Send(serial, flood) {
				full = true
			}
		}
		if !r.Send(goodSerial, []byte{byte(i)}) {
			t.Fatalf("message %d is refused", i)
		}
		if got := read(t, good); got[0] != byte(i) {
			t.Fatalf("message %d is %x", i, got)
		}
	}
	if !full || r.Stats().Dropped[DropFull] == 0 {
		t.Error("no queue overflowed")
	}
	testkit.Eventually(t, "the slow one is cut off", func() bool { return r.Stats().Ended[EndSlow] == 1 })
	if s := r.Stats(); s.Open != 1 {
		t.Errorf("%+v", s)
	}
}

// TestStuckReader: one that takes a little now and then is cut off as well.
func TestStuckReader(t *testing.T) {
	r := start(t, Config{WriteTimeout: 300 * time.Millisecond, SendBuffer: 4 << 10})
	conn, reader, _ := r.raw("")
	io.WriteString(conn, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(t).serial
	flood := make([]byte, 1000)
	testkit.Eventually(t, "it is cut off", func() bool {
		for range 64 { // Much more than is read.
			r.Send(serial, flood)
		}
		reader.Discard(4000)
		return r.Stats().Ended[EndSlow] == 1
	})
}
