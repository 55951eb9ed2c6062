package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestDatagramsKeepTheirBounds(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, atJoiner := linked(t, f)
	for _, n := range []int{0, 1, 1200, proto.DefaultMaxContent} {
		sent := bytes.Repeat([]byte{byte(n)}, n)
		if got, err := atHost.Write(sent); got != n || err != nil {
			t.Fatalf("Write of %d: %d, %v", n, got, err)
		}
		if got := read(t, atJoiner); got != string(sent) {
			t.Errorf("%d bytes arrive as %d", n, len(got))
		}
	}
	if n, err := atHost.Write(make([]byte, proto.DefaultMaxContent+1)); n != 0 || err != ErrTooLarge {
		t.Errorf("Write above the limit: %d, %v", n, err)
	}
	if _, err := atHost.Write([]byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	short := make([]byte, 3)
	if n, err := atJoiner.Read(short); n != 3 || err != nil || string(short) != "abc" {
		t.Errorf("Read into 3 bytes: %d, %v, %q", n, err, short)
	}
}

// TestTry: looks that never wait see what waiting calls would return.
func TestTry(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	if p, err := s.TryAccept(); p != nil || err != nil {
		t.Fatalf("no peer was accepted: %v, %v", p, err)
	}
	for _, text := range []string{"", "abcdef"} {
		feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: []byte(text)})
	}
	p, err := s.TryAccept()
	if err != nil || p == nil || p.ID() != joinerID {
		t.Fatalf("TryAccept: %v, %v", p, err)
	}
	if again, err := s.TryAccept(); again != nil || err != nil {
		t.Errorf("accepted twice: %v, %v", again, err)
	}
	b := make([]byte, 3)
	for _, want := range []struct {
		n   int
		ok  bool
		err error
	}{{0, true, nil}, {3, true, nil}, {0, false, nil}} {
		if n, ok, err := p.TryRead(b); n != want.n || ok != want.ok || err != want.err {
			t.Errorf("TryRead: %d, %v, %v, want %+v", n, ok, err, want)
		}
	}
	feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: []byte("bye")})
	feed(s, 0, proto.Disconnect{From: joinerID, To: hostID})
	if n, ok, err := p.TryRead(b); n != 3 || !ok || err != nil {
		t.Errorf("the last words: %d, %v, %v", n, ok, err)
	}
	if _, ok, err := p.TryRead(b); ok || err != io.EOF {
		t.Errorf("after the last words: %v, %v", ok, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if p, err := s.TryAccept(); p != nil || err != net.ErrClosed {
		t.Errorf("TryAccept after Close: %v, %v", p, err)
	}
}

func TestAcceptLearnsEachPeerOnce(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	for _, from := range []proto.AllocationID{joinerID, otherID, joinerID} {
		feed(s, 0, proto.Relay{From: from, To: hostID, Payload: from[:]})
	}
	for _, want := range []proto.AllocationID{joinerID, otherID} {
		p, err := s.Accept(within(t))
		if err != nil || p.ID() != want {
			t.Fatalf("Accept: %v, %v", p, err)
		}
		if got := read(t, p); got != string(want[:]) {
			t.Errorf("read %x", got)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Accept(ctx); err != context.Canceled {
		t.Errorf("third Accept: %v", err)
	}
	if p, ok := s.Peer(joinerID); !ok || p.ID() != joinerID {
		t.Error("Peer does not know the joiner")
	}
}

func TestQueueDropsTheNewest(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{ReceiveQueue: 3})
	for i := range uint32(5) {
		feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: numbered(i)})
	}
	p, err := s.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(3) {
		if got := read(t, p); got != string(numbered(i)) {
			t.Errorf("datagram %d is %x", i, got)
		}
	}
	if st := s.Stats(); st.QueueDropped != 2 || st.Received != 3 || st.ReceivedBytes != 12 {
		t.Errorf("stats are %+v", st)
	}
}

func TestFullTable(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{MaxPeers: 2})
	from := func(id proto.AllocationID, now int64) {
		feed(s, now, proto.Relay{From: id, To: hostID, Payload: []byte("x")})
	}
	from(joinerID, 0)
	old, err := s.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	from(otherID, ms(1))
	third := proto.AllocationID{0: 9}
	from(third, int64(evictAfter)-1)
	if st := s.Stats(); st.PeersRefused != 1 || st.Peers != 2 {
		t.Fatalf("stats are %+v", st)
	}
	from(third, int64(evictAfter))
	if st := s.Stats(); st.PeersEvicted != 1 || st.Peers != 2 {
		t.Fatalf("stats are %+v", st)
	}
	if got := read(t, old); got != "x" {
		t.Errorf("read %q", got)
	}
	if _, err := old.Read(nil); err != io.EOF {
		t.Errorf("Read of an evicted peer: %v", err)
	}
	if _, err := old.Write(nil); err != ErrPeerLeft {
		t.Errorf("Write to an evicted peer: %v", err)
	}
}

func TestReadDeadline(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, atJoiner := linked(t, f)
	buf := make([]byte, 10)
	_ = atHost.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
	for range 2 {
		_, err := atHost.Read(buf)
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Fatalf("Read: %v", err)
		}
	}
	if _, err := atJoiner.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "datagram is there", func() bool { return atHost.s.Stats().Received == 2 })
	if _, err := atHost.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read after the deadline with a datagram waiting: %v", err)
	}
	_ = atHost.SetDeadline(time.Time{})
	if n, err := atHost.Read(buf); err != nil || string(buf[:n]) != "late" {
		t.Errorf("Read without a deadline: %q, %v", buf[:n], err)
	}
}

func TestDeadlineWakesAReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := idleHost(t, Config{PingPeriod: time.Hour})
		feed(s, 0, proto.Relay{From: joinerID, To: hostID})
		atHost, _ := s.Peer(joinerID)
		buf := make([]byte, 1)
		if _, err := atHost.Read(buf); err != nil {
			t.Fatal(err)
		}
		for _, wake := range []func(){
			func() { _ = atHost.SetReadDeadline(time.Now()) }, // earlier than it was
			func() { time.Sleep(time.Hour) },                  // it passes
		} {
			_ = atHost.SetReadDeadline(time.Now().Add(time.Hour))
			var reading sync.WaitGroup
			reading.Go(func() {
				if _, err := atHost.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("Read: %v", err)
				}
			})
			synctest.Wait() // Read waits.
			wake()
			reading.Wait()
		}
	})
}

func TestWriteDeadline(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, _ := linked(t, f)
	_ = atHost.SetWriteDeadline(time.Now().Add(-time.Second))
	if _, err := atHost.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write: %v", err)
	}
	_ = atHost.SetDeadline(time.Now().Add(time.Hour))
	if _, err := atHost.Write([]byte("x")); err != nil {
		t.Errorf("Write before the deadline: %v", err)
	}
}

func TestPeerAfterClose(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, _ := linked(t, f)
	for range 2 {
		if err := atHost.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := atHost.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read: %v", err)
	}
	if _, err := atHost.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write: %v", err)
	}
}

func TestCloseWakesWaitingCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := idleHost(t, Config{PingPeriod: time.Hour})
		feed(host, 0, proto.Relay{From: joinerID, To: hostID})
		atHost, err := host.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := atHost.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := atHost.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read that waited: %v", err)
			}
		})
		waiting.Go(func() {
			if _, err := host.Accept(context.Background()); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept that waited: %v", err)
			}
		})
		synctest.Wait() // Both wait.
		if err := host.Close(); err != nil {
			t.Fatal(err)
		}
		waiting.Wait()
	})
}

func TestCallsAfterTheSessionClosed(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, _ := linked(t, f)
	host := atHost.s
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := atHost.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read: %v", err)
	}
	if _, err := atHost.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write: %v", err)
	}
	if _, err := host.Accept(within(t)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if _, err := host.PacketConn().WriteTo(nil, Addr{joinerID}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("WriteTo: %v", err)
	}
	if err := host.Roam(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Roam: %v", err)
	}
	if err := atHost.Close(); err != nil {
		t.Errorf("Close of a peer: %v", err)
	}
}

func TestWriteBeforeBind(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere)})
	if _, err := s.PacketConn().WriteTo([]byte("x"), Addr{joinerID}); err != ErrNotBound {
		t.Errorf("WriteTo: %v", err)
	}
}

// TestUnsentDatagramsAreLost is a machine without a network.
func TestUnsentDatagramsAreLost(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	feed(s, 0, proto.Relay{From: joinerID, To: hostID})
	p, _ := s.Peer(joinerID)
	_ = s.transport.socket.Load().Close()
	if n, err := p.Write([]byte("abc")); n != 3 || err != nil {
		t.Errorf("Write: %d, %v", n, err)
	}
	if st := s.Stats(); st.Unsent != 1 || st.Sent != 0 {
		t.Errorf("stats are %+v", st)
	}
}
