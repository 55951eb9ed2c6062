package websocket

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	c := r.dial()
	c.SetReadLimit(defaultMaxOutgoing)
	big := bytes.Repeat([]byte{7}, maxMessage+1)
	write(t, c, big[:maxMessage])
	a := r.in.next(t)
	if a.serial != 1 || !bytes.Equal(a.pkt, big[:maxMessage]) {
		t.Fatalf("serial %d, %d bytes", a.serial, len(a.pkt))
	}
	write(t, c, nil)
	testkit.Eventually(t, "an empty message is dropped", func() bool { return r.Stats().Dropped[dropEmpty.String()] == 1 })
	if r.MaxMessage() != defaultMaxOutgoing || !r.Send(1, big[:defaultMaxOutgoing]) {
		t.Error("the largest message was not queued")
	}
	if got := read(t, c); !bytes.Equal(got, big[:defaultMaxOutgoing]) {
		t.Errorf("got %d bytes", len(got))
	}
	write(t, c, big)
	expectClose(t, c, ws.StatusMessageTooBig)
	r.waitForEnd(endLarge)
	s := r.Stats()
	if s.Open != 0 || s.Opened != 1 || s.Received != 1 || s.ReceivedBytes != maxMessage || s.Sent != 1 || s.SentBytes != defaultMaxOutgoing ||
		s.Dropped["empty"] != 1 || s.Ended["large"] != 1 {
		t.Errorf("%+v", s)
	}
	if r.Send(1, []byte("x")) || r.Stats().Dropped[dropGone.String()] != 1 {
		t.Error("a message was queued for a connection that has ended")
	}
}

func TestTextMessage(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	c := r.dial()
	if err := c.Write(t.Context(), ws.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	expectClose(t, c, ws.StatusUnsupportedData)
	r.waitForEnd(endText)
	if len(r.in) != 0 {
		t.Error("it was delivered")
	}
}

func TestFraming(t *testing.T) {
	t.Parallel()
	zeroMask := "\x00\x00\x00\x00"
	for _, test := range []struct {
		name, bytes string
		want        end
		status      ws.StatusCode // 0: no close frame is required
	}{
		{"unmasked", "\x82\x01a", endProtocol, ws.StatusProtocolError},
		{"reserved bit", "\xc2\x81" + zeroMask + "a", endProtocol, ws.StatusProtocolError},
		{"unknown opcode", "\x83\x81" + zeroMask + "a", endProtocol, ws.StatusProtocolError},
		{"stray continuation", "\x80\x81" + zeroMask + "a", endProtocol, ws.StatusProtocolError},
		{"negative length", "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" + zeroMask, endProtocol, ws.StatusProtocolError},
		{"maximum length", "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + zeroMask + strings.Repeat("a", 2000), endLarge, ws.StatusMessageTooBig},
		{"large in fragments", "\x02\xfe\x05\x00" + zeroMask + strings.Repeat("a", 0x500) + "\x80\xfe\x05\x00" + zeroMask +
			strings.Repeat("a", 0x500), endLarge, ws.StatusMessageTooBig},
		{"close", "\x88\x82" + zeroMask + "\x03\xe8", endPeer, ws.StatusNormalClosure},
		{"connection lost", "", endLost, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := start(t, Config{})
			conn, reader, _ := r.dialRaw("")
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
			r.waitForEnd(test.want)
		})
	}
}

// TestFinalError: ERROR 1 and 4 end the connection after all queued messages; other
// ERRORs do not.
func TestFinalError(t *testing.T) {
	t.Parallel()
	for _, code := range []proto.ErrorCode{proto.ErrorTimeout, proto.ErrorNotFound} {
		r := start(t, Config{queueMessages: 3})
		c := r.dial()
		serial := r.firstMessage(c)
		last := proto.Error{Code: code}.Append(nil)
		other := proto.Error{Code: proto.ErrorMismatch}.Append(nil)
		if !r.Send(serial, other) || !r.Send(serial, []byte("data")) || !r.Send(serial, last) {
			t.Fatal("a message was not queued")
		}
		if r.Send(serial, other) {
			t.Error("a message was queued after the final ERROR")
		}
		for _, want := range [][]byte{other, []byte("data"), last} {
			if got := read(t, c); !bytes.Equal(got, want) {
				t.Errorf("got %x, want %x", got, want)
			}
		}
		expectClose(t, c, ws.StatusNormalClosure)
		r.waitForEnd(endFinalError)
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	r := start(t, Config{PingInterval: 20 * time.Millisecond, pongTimeout: 4 * time.Second, bindTimeout: time.Hour})
	responsive, silent := r.dial(), r.dial()
	for _, c := range []*ws.Conn{responsive, silent} {
		r.Send(r.firstMessage(c), bindReceived)
		read(t, c)
	}
	if err := responsive.Ping(responsive.CloseRead(context.Background())); err != nil {
		t.Fatal(err)
	}
	// The other client does not read, so it answers no ping.
	testkit.Eventually(t, "the silent connection is reset", func() bool { return r.Stats().Ended[endPing.String()] == 1 })
	pings := r.Stats().Pings
	testkit.Eventually(t, "the other connection is still pinged", func() bool { return r.Stats().Pings > pings+3 })
	if s := r.Stats(); s.Open != 1 || s.Ended[endPing.String()] != 1 {
		t.Errorf("%+v", s)
	}
}

// bindReceived is the message that makes a connection a bound one.
var bindReceived = proto.BindReceived{}.Append(nil)

// TestUnbound: only BIND_RECEIVED keeps a connection open, neither ERROR nor the answer
// to a QoS probe, which any client gets without an allocation.
func TestUnbound(t *testing.T) {
	t.Parallel()
	r := start(t, Config{bindTimeout: 3 * time.Second})
	bound := r.dial()
	r.Send(r.firstMessage(bound), bindReceived)
	var unbound []*ws.Conn
	for _, answer := range [][]byte{proto.Error{Code: proto.ErrorMismatch}.Append(nil), []byte("answer to a QoS probe"), []byte("four")} {
		c := r.dial()
		r.Send(r.firstMessage(c), answer)
		unbound = append(unbound, c)
	}
	for _, c := range unbound {
		read(t, c)
		expectClose(t, c, ws.StatusPolicyViolation)
	}
	if got := read(t, bound); !bytes.Equal(got, bindReceived) {
		t.Errorf("got %q", got)
	}
	testkit.Eventually(t, "only the unbound connections have ended",
		func() bool { s := r.Stats(); return s.Ended[endUnbound.String()] == 3 && s.Open == 1 })
}

func TestUnboundLimit(t *testing.T) {
	t.Parallel()
	r := start(t, Config{bindTimeout: time.Hour})
	patient, hasty := r.dial(), r.dial()
	serial, other := r.firstMessage(patient), r.firstMessage(hasty)
	for i := range maxUnbound - 1 {
		if i == 9 { // Only BIND_RECEIVED lifts the limit.
			r.Send(other, []byte("answer to a QoS probe"))
			read(t, hasty)
		}
		write(t, patient, []byte("x"))
		write(t, hasty, []byte("x"))
		r.in.next(t)
		r.in.next(t)
	}
	r.Send(serial, bindReceived)
	read(t, patient)
	for range maxUnbound {
		write(t, patient, []byte("x"))
		r.in.next(t)
	}
	write(t, hasty, []byte("x"))
	expectClose(t, hasty, ws.StatusPolicyViolation)
	testkit.Eventually(t, "one has ended", func() bool { s := r.Stats(); return s.Ended[endFlood.String()] == 1 && s.Open == 1 })
	if len(r.in) != 0 {
		t.Error("a message above the limit was delivered")
	}
}

// TestFlood: frames without a message end a connection, before and after BIND_RECEIVED; a
// client with many messages, some of them in fragments, and a few pings goes on.
func TestFlood(t *testing.T) { withAndWithoutTLS(t, testFlood) }

func testFlood(t *testing.T, server func(http.Handler) *httptest.Server) {
	t.Parallel()
	const zeroMask = "\x00\x00\x00\x00"
	hello := "\x82\x85" + zeroMask + "hello"
	for _, bound := range []bool{false, true} {
		for name, flood := range map[string]string{
			"empty fragments": "\x02\x80" + zeroMask + strings.Repeat("\x00\x80"+zeroMask, 100),
			"pings":           strings.Repeat("\x89\x80"+zeroMask, 100),
			"pongs":           strings.Repeat("\x8a\x82"+zeroMask+"42", 100),
			"empty messages":  strings.Repeat("\x82\x80"+zeroMask, 100),
		} {
			if name == "empty messages" && !bound {
				continue // TestUnboundLimit
			}
			t.Run(fmt.Sprintf("%s/%v", name, bound), func(t *testing.T) {
				r := startOn(t, Config{bindTimeout: time.Hour, PingInterval: time.Hour}, server)
				conn, reader, _ := r.dialRaw("")
				io.WriteString(conn, hello)
				if serial := r.in.next(t).serial; bound {
					r.Send(serial, bindReceived)
					io.CopyN(io.Discard, reader, int64(2+len(bindReceived)))
				}
				go io.Copy(io.Discard, reader)
				if name == "empty fragments" {
					io.WriteString(conn, flood[:6])
					flood = flood[6:]
				}
				for sent := 0; sent < 2*maxOverhead; sent += len(flood) {
					io.WriteString(conn, flood) // It fails when the relay has read enough.
				}
				r.waitForEnd(endFlood)
			})
		}
	}
	t.Run("play", func(t *testing.T) {
		r := startOn(t, Config{bindTimeout: time.Hour, PingInterval: time.Hour}, server)
		conn, reader, _ := r.dialRaw("")
		io.WriteString(conn, hello)
		serial := r.in.next(t).serial
		r.Send(serial, bindReceived)
		io.CopyN(io.Discard, reader, int64(2+len(bindReceived))) // A PONG may come before what is queued.
		long := "\x82\xfe\x05\x78" + zeroMask + strings.Repeat("a", 1400)
		halves := "\x02\x82" + zeroMask + "he\x80\x83" + zeroMask + "llo"
		for i := range 1000 {
			io.WriteString(conn, long+hello)
			if i%2 == 0 {
				io.WriteString(conn, halves)
				r.in.next(t)
			}
			if i%50 == 0 {
				io.WriteString(conn, "\x89\x80"+zeroMask)
			}
			r.in.next(t)
			r.in.next(t)
		}
		if s := r.Stats(); s.Open != 1 || s.Received != 2501 {
			t.Errorf("%+v", s)
		}
		r.Send(serial, []byte("end"))
		want := strings.Repeat("\x8a\x00", 20) + "\x82\x03end"
		got := make([]byte, len(want))
		if io.ReadFull(reader, got); string(got) != want {
			t.Errorf("the client got %q, want %q", got, want)
		}
	})
}

func TestBusy(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	c := r.dial()
	r.Send(r.firstMessage(c), bindReceived)
	read(t, c)
	for range cap(r.in) + 3 {
		write(t, c, []byte("x"))
	}
	testkit.Eventually(t, "three are dropped", func() bool { return r.Stats().Dropped[dropBusy.String()] == 3 })
}

// TestIdle: a connection to which nothing is sent for IdleTimeout is closed, unless the relay
// answers its signs of life.
func TestIdle(t *testing.T) {
	t.Parallel()
	r := start(t, Config{PingInterval: 10 * time.Millisecond, IdleTimeout: 3 * time.Second, bindTimeout: time.Hour})
	var all [2]*ws.Conn
	var serials [2]uint64
	for i := range all {
		all[i] = r.dial()
		serials[i] = r.firstMessage(all[i])
		r.Send(serials[i], bindReceived)
		read(t, all[i])
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // The relay, where the first one has an allocation.
		defer close(ended)
		for {
			select {
			case a := <-r.in:
				if a.serial == serials[0] && len(a.pkt) == 0 {
					r.Send(a.serial, nil)
				}
			case <-stop:
				return
			}
		}
	}()
	all[0].CloseRead(context.Background())
	expectClose(t, all[1], ws.StatusNormalClosure)
	testkit.Eventually(t, "one has ended", func() bool { s := r.Stats(); return s.Ended[endIdle.String()] == 1 && s.Open == 1 })
	pings := r.Stats().Pings
	testkit.Eventually(t, "the other one is pinged for longer than IdleTimeout", func() bool { return r.Stats().Pings > pings+300 })
	if s := r.Stats(); s.Open != 1 {
		t.Errorf("%+v", s)
	}
	close(stop)
	<-ended
}

// TestSlowReader: a client that reads nothing delays no other one.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	withAndWithoutTLS(t, testSlowReader)
}

func testSlowReader(t *testing.T, server func(http.Handler) *httptest.Server) {
	t.Parallel()
	// The queue must overflow before the write times out, on a slow machine too.
	r := startOn(t, Config{writeTimeout: 2 * time.Second, sendBuffer: 4 << 10}, server)
	slow, _, _ := r.dialRaw("")
	io.WriteString(slow, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(t).serial
	good := r.dial()
	goodSerial := r.firstMessage(good)
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
			t.Fatalf("message %d was not queued", i)
		}
		if got := read(t, good); got[0] != byte(i) {
			t.Fatalf("message %d is %x", i, got)
		}
	}
	if !full || r.Stats().Dropped[dropFull.String()] == 0 {
		t.Error("no queue overflowed")
	}
	testkit.Eventually(t, "the slow connection is reset, and the other one is open", func() bool {
		s := r.Stats()
		return s.Ended[endSlow.String()] == 1 && s.Open == 1
	})
}

func TestStuckReader(t *testing.T) {
	t.Parallel()
	r := start(t, Config{writeTimeout: 300 * time.Millisecond, sendBuffer: 4 << 10})
	conn, reader, _ := r.dialRaw("")
	io.WriteString(conn, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(t).serial
	flood := make([]byte, 1000)
	testkit.Eventually(t, "the connection is reset", func() bool {
		for range 64 { // Much more than the client reads.
			r.Send(serial, flood)
		}
		reader.Discard(4000)
		return r.Stats().Ended[endSlow.String()] == 1
	})
}
