package client

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestDisconnectReachesTheOtherSide(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, atJoiner := linked(t, f)
	if _, err := atHost.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := atHost.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, atJoiner); got != "last words" {
		t.Errorf("read %q", got)
	}
	if _, err := atJoiner.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read after the end: %v", err)
	}
	if _, err := atJoiner.Write([]byte("x")); err != ErrPeerLeft {
		t.Errorf("Write after the end: %v", err)
	}
	testkit.Eventually(t, "host forgets", func() bool { return atHost.s.Stats().Peers == 0 })

	again, err := atJoiner.s.Connect(within(t))
	if err != nil || again == atJoiner {
		t.Fatalf("Connect again: %v, %v", again, err)
	}
	if _, err := again.Write([]byte("back")); err != nil {
		t.Fatal(err)
	}
	p, err := atHost.s.Accept(within(t))
	if err != nil || p == atHost {
		t.Fatalf("Accept again: %v, %v", p, err)
	}
	if got := read(t, p); got != "back" {
		t.Errorf("read %q", got)
	}
}

func TestDisconnectIsRepeatedUntilItsEcho(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{RetryPeriod: 400 * time.Millisecond, PingPeriod: time.Hour})
	feed(s, 0, proto.Relay{From: joinerID, To: hostID})
	p, _ := s.Peer(joinerID)
	_ = p.Close()
	p.leave.start(0)
	want := proto.Disconnect{From: hostID, To: joinerID}
	for _, at := range []int{0, 100, 300} {
		if got := drain(t, s, ms(at)-1); got != nil {
			t.Errorf("%v just before %d ms", got, at)
		}
		if got := drain(t, s, ms(at)); len(got) != 1 || got[0] != proto.Message(want) {
			t.Errorf("%v at %d ms", got, at)
		}
	}
	feed(s, ms(310), proto.Relay{From: joinerID, To: hostID})
	if st := s.Stats(); st.LatePeers != 1 || st.Peers != 1 {
		t.Errorf("before the echo: %+v", st)
	}
	feed(s, ms(320), want)
	feed(s, ms(330), proto.Relay{From: joinerID, To: hostID})
	if fresh, ok := s.Peer(joinerID); !ok || fresh == p {
		t.Error("no new peer after the echo")
	}
	feed(s, ms(340), want)
	if _, ok := s.Peer(joinerID); !ok {
		t.Error("an old echo ended the new link")
	}
	if got := drain(t, s, ms(5000)); got != nil {
		t.Errorf("still sends %v", got)
	}
}

func TestDisconnectGivesUp(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{PingPeriod: time.Hour})
	feed(s, 0, proto.Relay{From: joinerID, To: hostID})
	p, _ := s.Peer(joinerID)
	_ = p.Close()
	sent := 0
	for now := int64(0); now < ms(10000); now += ms(100) {
		sent += len(drain(t, s, now))
	}
	if st := s.Stats(); sent != maxDisconnects || st.Peers != 0 {
		t.Errorf("%d DISCONNECTs, %d peers", sent, st.Peers)
	}
}

// TestNewLinkWaitsForTheEndOfTheOld is Connect right after Disconnect.
func TestNewLinkWaitsForTheEndOfTheOld(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	_, atJoiner := linkedAs(t, f, brisk)
	lost := 0
	f.lose(func(m proto.Message) bool {
		_, ok := m.(proto.Disconnect)
		if ok {
			lost++
		}
		return ok && lost <= 2
	})
	_ = atJoiner.Close()
	again, err := atJoiner.s.Connect(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n := f.count(proto.TypeDisconnect); n < 3 {
		t.Errorf("%d DISCONNECTs before the new link", n)
	}
}

func TestCloseSaysGoodbye(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	atHost, atJoiner := linked(t, f)
	for range 2 {
		if err := atJoiner.s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	testkit.Eventually(t, "every CLOSE", func() bool { return f.count(proto.TypeClose) == closes })
	if _, err := atHost.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("host reads %v", err)
	}
	f.with(func() {
		if !f.places[joinerID].closed {
			t.Error("relay does not know that the joiner left")
		}
	})
}

func TestRunLeavesWithItsContext(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	s, err := New(brisk(hostTicket(f.addr)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	if err := s.Bind(within(t)); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-result; err != context.Canceled {
		t.Errorf("Run: %v", err)
	}
	testkit.Eventually(t, "every CLOSE", func() bool { return f.count(proto.TypeClose) == closes })
	if err := s.Err(); err != net.ErrClosed {
		t.Errorf("ended with %v", err)
	}
	if err := s.Run(context.Background()); err != errRunning {
		t.Errorf("second Run: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	s := idle(t, Config{Ticket: hostTicket(nowhere)})
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := s.Run(context.Background()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestRunReturnsTheReason(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	f.with(func() { f.places[hostID].closed = true })
	s, err := New(brisk(hostTicket(f.addr)))
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- s.Run(context.Background()) }()
	want := EndedError{proto.ErrorNotFound}
	if err := s.Bind(within(t)); err != want {
		t.Errorf("Bind: %v", err)
	}
	if err := <-result; err != want {
		t.Errorf("Run: %v", err)
	}
}

func TestRunNoticesALostSocket(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	cfg := brisk(hostTicket(f.addr))
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Conn = conn
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := s.Run(within(t)); err == nil {
		t.Error("Run over a closed socket returned nil")
	}
}

func TestRequestWaitsWhileDisconnectIsRepeated(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{PingPeriod: time.Hour})
	if _, _, err := s.connect.begin(); err != nil {
		t.Fatal(err)
	}
	feed(s, 0, proto.Accepted{From: hostID, To: joinerID})
	drain(t, s, 0)
	p, _ := s.Peer(hostID)
	_ = p.Close()
	p.leave.start(0)
	if _, _, err := s.connect.begin(); err != nil {
		t.Fatal(err)
	}
	s.connect.start(0) // On the clock of this test, however long it took so far.
	end := proto.Disconnect{From: joinerID, To: hostID}
	if got := drain(t, s, ms(1)); len(got) != 1 || got[0] != proto.Message(end) {
		t.Errorf("before the echo it sends %v", got)
	}
	feed(s, ms(2), end)
	got := drain(t, s, ms(100))
	if len(got) != 1 || len(got[0].Append(nil)) != 276 {
		t.Errorf("after the echo it sends %v", got)
	}
}

// TestNothingFollowsTheGoodbye: a PING behind CLOSE would earn ERROR 3, the BIND
// after that ERROR 4, and a session that was closed would have failed.
func TestNothingFollowsTheGoodbye(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{PingPeriod: 200 * time.Millisecond})
	if got := drain(t, s, ms(250)); len(got) != 1 {
		t.Fatalf("%v at 250 ms, want a PING", got)
	}
	if _, ok := s.peers.beginLeaving(); !ok {
		t.Fatal("no CLOSE")
	}
	feed(s, ms(500), proto.Error{Code: proto.ErrorMismatch, ID: hostID})
	if got := drain(t, s, ms(5000)); got != nil {
		t.Errorf("%v after the CLOSE", got)
	}
	feed(s, ms(5000), proto.Error{Code: proto.ErrorNotFound, ID: hostID})
	if err := s.Err(); err != nil {
		t.Errorf("ended while it left: %v", err)
	}
	if s.end(net.ErrClosed); s.Err() != net.ErrClosed {
		t.Errorf("ended with %v", s.Err())
	}
}
