package client

import (
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/proto"
)

// linkedIdle returns a joiner without sockets in use, linked to its host at the time 0.
func linkedIdle(t testing.TB) (*Session, *Peer) {
	t.Helper()
	s := idleJoiner(t, Config{})
	_, verdicts, err := s.connect.begin()
	if err != nil {
		t.Fatal(err)
	}
	drain(t, s, 0)
	feed(s, 0, proto.Accepted{From: hostID, To: joinerID})
	return s, (<-verdicts).peer
}

var notConnected = proto.Error{ID: joinerID, Code: proto.ErrorNotConnected}

// asked counts the CONNECT_REQUESTs among what a session has to send at a time, and answers its
// BINDs and PINGs.
func asked(t testing.TB, s *Session, now int64) (n int) {
	t.Helper()
	for all := drain(t, s, now); len(all) > 0; all = drain(t, s, now) {
		for _, m := range all {
			switch m.(type) {
			case proto.ConnectRequest:
				n++
			case proto.Bind:
				feed(s, now, proto.BindReceived{})
			case proto.Ping:
				feed(s, now, m)
			}
		}
	}
	return n
}

// TestLostLinkIsMadeAgain: ERROR 5 makes a joiner connect again, at most once a second, and its
// peer stays the same.
func TestLostLinkIsMadeAgain(t *testing.T) {
	t.Parallel()
	s, p := linkedIdle(t)
	asked(t, s, ms(11_000))
	total := 0
	for now := 11_000; now < 14_000; now += 10 {
		feed(s, ms(now), notConnected)
		total += asked(t, s, ms(now))
	}
	if total != 3 {
		t.Errorf("%d CONNECT_REQUESTs in 3 s, want 3", total)
	}
	feed(s, ms(14_000), proto.Accepted{From: hostID, To: joinerID})
	if _, err := p.Write([]byte("hello")); err != nil {
		t.Errorf("write after the link is back: %v", err)
	}
	if _, ok, err := p.TryRead(nil); ok || err != nil {
		t.Errorf("read after the link is back: %v, %v", ok, err)
	}
	for now := 14_000; now < 25_000; now += 250 {
		if n := asked(t, s, ms(now)); n != 0 {
			t.Errorf("%d CONNECT_REQUESTs after ACCEPTED", n)
		}
	}
}

// TestLostLinkEnds: when the link cannot be made again, all calls name the reason, and Connect
// begins anew.
func TestLostLinkEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer proto.Message
		want   error
	}{
		{"silence", nil, ErrConnectTimeout},
		{"host full", proto.Rejected{From: hostID, To: joinerID}, ErrRejected},
		{"foreign", proto.Error{ID: joinerID, Code: proto.ErrorUnauthorized}, RefusedError{proto.ErrorUnauthorized}},
		{"host ended", proto.Error{ID: joinerID, Code: proto.ErrorNotFound}, RefusedError{proto.ErrorNotFound}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, p := linkedIdle(t)
			conn := s.PacketConn()
			feed(s, ms(900), proto.Relay{From: hostID, To: joinerID, Payload: []byte("last words")})
			feed(s, ms(1000), notConnected)
			if n := asked(t, s, ms(1000)); n != 1 {
				t.Fatalf("%d CONNECT_REQUESTs", n)
			}
			now := ms(1000)
			if c.answer != nil {
				feed(s, now, c.answer)
			} else {
				for ; p.state == peerOpen && now < ms(60_000); now += ms(100) {
					asked(t, s, now)
				}
				if now > ms(1000+6000) {
					t.Errorf("noticed after %d ms", now/ms(1))
				}
			}
			buf := make([]byte, 100)
			if n, err := p.Read(buf); err != nil || string(buf[:n]) != "last words" {
				t.Errorf("read %q, %v", buf[:n], err)
			}
			_, read := p.Read(buf)
			_, write := p.Write([]byte("x"))
			_, writeTo := conn.WriteTo([]byte("x"), p.RemoteAddr())
			_, _, readFrom := conn.ReadFrom(buf)
			for name, err := range map[string]error{"Read": read, "Write": write, "ReadFrom": readFrom, "WriteTo": writeTo} {
				if !errors.Is(err, ErrLinkLost) || !errors.Is(err, c.want) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := s.Err(); err != nil {
				t.Fatalf("the session has ended: %v", err)
			}
			again, verdicts, err := s.connect.begin()
			if again != nil || err != nil || asked(t, s, now+ms(2000)) != 1 {
				t.Fatalf("Connect does not begin anew: %v, %v", again, err)
			}
			feed(s, now+ms(2000), proto.Accepted{From: hostID, To: joinerID})
			if v := <-verdicts; v.err != nil || v.peer == p {
				t.Errorf("Connect: %v, %v", v.peer, v.err)
			} else if _, err := v.peer.Write([]byte("x")); err != nil {
				t.Errorf("write to the new peer: %v", err)
			}
			if _, err := conn.WriteTo([]byte("x"), p.RemoteAddr()); err != nil {
				t.Errorf("WriteTo over the new link: %v", err)
			}
		})
	}
}

// TestConnectWaitsForALostLink: Connect does not return a peer whose link is in doubt.
func TestConnectWaitsForALostLink(t *testing.T) {
	t.Parallel()
	s, p := linkedIdle(t)
	asked(t, s, ms(2000))
	feed(s, ms(2000), notConnected)
	now, verdicts, err := s.connect.begin()
	if now != nil || err != nil {
		t.Fatalf("Connect returns %v, %v at once", now, err)
	}
	if _, _, err := s.connect.begin(); err != errConnecting {
		t.Errorf("a second one: %v", err)
	}
	asked(t, s, ms(2000))
	feed(s, ms(2000), proto.Accepted{From: hostID, To: joinerID})
	if v := <-verdicts; v.peer != p || v.err != nil {
		t.Errorf("Connect: %v, %v", v.peer, v.err)
	}
}

// TestRestartedRelayIsNoLostLink: while the session binds, the time of a lost link does not count.
func TestRestartedRelayIsNoLostLink(t *testing.T) {
	t.Parallel()
	s, p := linkedIdle(t)
	feed(s, ms(100), notConnected)
	for now := 100; now <= 15_100; now += 100 {
		drain(t, s, ms(now)) // The relay has stopped.
	}
	if p.state != peerOpen {
		t.Fatalf("the peer is given up: %v", p.cause)
	}
	feed(s, ms(15_100), proto.BindReceived{})
	if n := asked(t, s, ms(15_100)); n != 1 {
		t.Errorf("%d CONNECT_REQUESTs after the BIND", n)
	}
}

// TestHostIgnoresNotConnected: ERROR 5 does not say about which of its peers it is.
func TestHostIgnoresNotConnected(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: []byte("hello")})
	feed(s, ms(500), proto.Error{ID: hostID, Code: proto.ErrorNotConnected})
	if n := len(drain(t, s, ms(500))); n != 0 || s.Stats().Peers != 1 {
		t.Errorf("%d messages, %+v", n, s.Stats())
	}
}
