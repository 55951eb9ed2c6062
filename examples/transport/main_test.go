package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMatch plays the match of a host on UDP and a player on TCP.
func TestMatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // bounds a test that hangs
	defer cancel()
	var out strings.Builder
	if err := run(ctx, &out); err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(strings.Lines(out.String()))
	want := []string{
		"the host answers: \"hello over TCP\" came over UDP\n",
		"the relay has a host on udp4\n",
		"the relay has a joiner on tcp\n",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

type delivery struct {
	serial uint64
	msg    string
}

type intake chan delivery

func (in intake) Deliver(serial uint64, msg []byte) bool {
	in <- delivery{serial, string(msg)}
	return true
}

// TestTransport: sessions have serials of their own; a session that does not read loses messages and
// blocks nothing, one that sends a message that is too large ends, and all end with the transport.
func TestTransport(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr := newTransport(listener)
	in := make(intake, 10)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx, in) }()

	open := func(hello string) (net.Conn, uint64) {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write(frame([]byte(hello))); err != nil {
			t.Fatal(err)
		}
		d := <-in
		if d.msg != hello {
			t.Errorf("%q was delivered instead of %q", d.msg, hello)
		}
		return conn, d.serial
	}
	good, goodSerial := open("good")
	_, slowSerial := open(strings.Repeat("x", maxMessage))
	large, largeSerial := open("")
	if goodSerial == slowSerial || goodSerial == largeSerial || slowSerial == largeSerial {
		t.Errorf("serials %d, %d and %d", goodSerial, slowSerial, largeSerial)
	}

	if tr.Send(99, []byte("no session")) {
		t.Error("a message to no session was sent")
	}
	testkit.Eventually(t, "the queue of a session that does not read is full", func() bool {
		for range 10_000 {
			if !tr.Send(slowSerial, make([]byte, maxMessage)) {
				return true
			}
		}
		return false
	})
	if !tr.Send(goodSerial, []byte("first")) || !tr.Send(goodSerial, nil) || !tr.Send(goodSerial, []byte("last")) {
		t.Error("a message was not sent")
	}
	buf := make([]byte, maxMessage)
	for _, want := range []string{"first", "", "last"} {
		if msg, err := readFrame(good, buf); err != nil || string(msg) != want {
			t.Fatalf("%q, %v; want %q", msg, err, want)
		}
	}
	if _, err := large.Write([]byte{0xFF, 0xFF}); err != nil {
		t.Fatal(err)
	}
	if _, err := large.Read(buf); err == nil {
		t.Error("a connection with a message that is too large is open")
	}
	testkit.Eventually(t, "the session has ended", func() bool { return !tr.Send(largeSerial, nil) })

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := good.Read(buf); err == nil {
		t.Error("a connection is open after the end of the transport")
	}
}
