package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestConnectSurvivesLoss(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	lost := 0
	f.lose(func(m proto.Message) bool {
		_, ok := m.(proto.ConnectRequest)
		if ok {
			lost++
		}
		return ok && lost <= 4
	})
	_, joiner, peer := pair(t, f)
	if peer.ID() != hostID || peer.RemoteAddr() != (Addr{hostID}) || peer.LocalAddr() != (Addr{joinerID}) {
		t.Errorf("peer is %v, from %v to %v", peer.ID(), peer.LocalAddr(), peer.RemoteAddr())
	}
	again, err := joiner.Connect(within(t))
	if again != peer || err != nil {
		t.Errorf("second Connect: %v, %v", again, err)
	}
	if n := f.count(proto.TypeConnectRequest); n < 5 {
		t.Errorf("%d CONNECT_REQUESTs", n)
	}
}

func TestConnectWaitsForTheHost(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	host := running(t, brisk(hostTicket(f.addr)))
	joiner := running(t, brisk(joinerTicket(f.addr, joinerID)))
	var waiting sync.WaitGroup
	defer waiting.Wait()
	waiting.Go(func() {
		if _, err := joiner.Connect(within(t)); err != nil {
			t.Errorf("Connect: %v", err)
		}
	})
	testkit.Eventually(t, "joiner asks", func() bool { return f.count(proto.TypeConnectRequest) > 1 })
	if err := host.Bind(within(t)); err != nil {
		t.Error(err)
	}
}

func TestConnectVerdicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer proto.Message
		want   error
		ends   bool
	}{
		{"full", proto.Rejected{From: hostID, To: joinerID}, ErrRejected, false},
		{"foreign ticket", proto.Error{ID: joinerID, Code: proto.ErrorUnauthorized}, RefusedError{proto.ErrorUnauthorized}, false},
		{"self", proto.Error{ID: joinerID, Code: proto.ErrorSelfConnect}, RefusedError{proto.ErrorSelfConnect}, false},
		{"host ended", proto.Error{ID: joinerID, Code: proto.ErrorNotFound}, RefusedError{proto.ErrorNotFound}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFakeRelay(t)
			f.with(func() { f.refuse = c.answer })
			s := running(t, brisk(joinerTicket(f.addr, joinerID)))
			peer, err := s.Connect(within(t))
			if peer != nil || !errors.Is(err, c.want) {
				t.Errorf("Connect: %v, %v", peer, err)
			}
			if (s.Err() != nil) != c.ends {
				t.Errorf("session has ended with %v", s.Err())
			}
		})
	}
}

// TestHostEndedTwice: a CONNECT_REQUEST that was repeated is answered twice, which ends no
// session. The answer to a later BIND does.
func TestHostEndedTwice(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{})
	_, verdicts, err := s.connect.begin()
	if err != nil {
		t.Fatal(err)
	}
	now := s.now()
	drain(t, s, now)
	ended := proto.Error{ID: joinerID, Code: proto.ErrorNotFound}
	feed(s, now, ended)
	feed(s, now, ended)
	if v := <-verdicts; v.err != (RefusedError{proto.ErrorNotFound}) || s.Err() != nil {
		t.Fatalf("verdict %v, session %v", v.err, s.Err())
	}
	beginBind(s, now+1)
	drain(t, s, now+1)
	feed(s, now+2, ended)
	if want := (EndedError{proto.ErrorNotFound}); s.Err() != want {
		t.Errorf("session has ended with %v, want %v", s.Err(), want)
	}
}

// TestRejectedOfAnyLength is a relay whose REJECTED has another body.
func TestRejectedOfAnyLength(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{})
	_, verdicts, err := s.connect.begin()
	if err != nil {
		t.Fatal(err)
	}
	feedBytes(s, 0, proto.Rejected{}.Append(nil)[:proto.HeaderLen])
	if v := <-verdicts; v.err != ErrRejected {
		t.Errorf("verdict is %v", v.err)
	}
}

func TestConnectGivesUp(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	cfg := brisk(joinerTicket(f.addr, joinerID))
	cfg.ConnectTimeout = 100 * time.Millisecond
	s := running(t, cfg)
	if _, err := s.Connect(within(t)); err != ErrConnectTimeout {
		t.Errorf("Connect: %v", err)
	}
	if err := s.Err(); err != nil {
		t.Errorf("session has ended: %v", err)
	}
}

func TestConnectIsAbandoned(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Connect(ctx); err != context.Canceled {
		t.Fatalf("Connect: %v", err)
	}
	if got := drain(t, s, ms(500)); got != nil {
		t.Errorf("still sends %v", got)
	}
	feed(s, ms(500), proto.Accepted{From: hostID, To: joinerID})
	if st := s.Stats(); st.Unexpected != 1 || st.Peers != 0 {
		t.Errorf("stats are %+v", st)
	}
}

func TestConnectOnce(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{})
	if _, _, err := s.connect.begin(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(within(t)); err != errConnecting {
		t.Errorf("second Connect: %v", err)
	}
}

// TestRelayOvertakesAccepted is the host's first datagram before ACCEPTED.
func TestRelayOvertakesAccepted(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{})
	early := proto.Relay{From: hostID, To: joinerID, Payload: []byte("early")}
	feed(s, 0, early)
	if st := s.Stats(); st.Unexpected != 1 {
		t.Fatalf("a joiner that asked for nothing took it: %+v", st)
	}
	_, verdicts, err := s.connect.begin()
	if err != nil {
		t.Fatal(err)
	}
	feed(s, 0, early)
	feed(s, 0, proto.Accepted{From: hostID, To: joinerID})
	v := <-verdicts
	if v.err != nil {
		t.Fatal(v.err)
	}
	if got := read(t, v.peer); got != "early" {
		t.Errorf("read %q", got)
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	host, joiner := idleHost(t, Config{}), idleJoiner(t, Config{})
	if _, err := host.Connect(within(t)); err != ErrRole {
		t.Errorf("host connects: %v", err)
	}
	if _, err := joiner.Accept(within(t)); err != ErrRole {
		t.Errorf("joiner accepts: %v", err)
	}
}

// TestAbandonedConnectLeavesTheNextAlone is a context that ends late.
func TestAbandonedConnectLeavesTheNextAlone(t *testing.T) {
	t.Parallel()
	s := idleJoiner(t, Config{})
	_, first, err := s.connect.begin()
	if err != nil {
		t.Fatal(err)
	}
	s.connect.onVerdict(ErrRejected)
	if _, _, err := s.connect.begin(); err != nil {
		t.Fatal(err)
	}
	s.connect.abandon(first)
	if !s.connect.active {
		t.Error("the second Connect was stopped")
	}
}
