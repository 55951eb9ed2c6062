package utp

import (
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

func request(n int) []byte { return Packet{Kind: KindRequest, Token: Token(n)}.Append(nil) }

// TestFull: above MaxConnections a client is refused, and nothing is kept.
func TestFull(t *testing.T) {
	s := server(t, Config{MaxConnections: 2})
	s.Advance(0)
	for i := range 2 {
		feed(s, place(i), request(i), Packet{Kind: KindHeartbeat, Token: Token(i)}.Append(nil))
	}
	for _, c := range s.conns.slots {
		s.Admit(c.id)
	}
	sent(s)
	if o := feed(s, place(9), request(9)); o != dropFull {
		t.Errorf("outcome %v", o)
	}
	list := waiting(s)
	if len(list) != 1 || slowPacket(list[0], nil) != "disconnect 0900000000000000" {
		t.Errorf("answered %x", list)
	}
	if st := s.Stats(); st.Connections != 2 || st.Refused != 1 || st.Drops[string(dropFull)] != 1 || eventText(s) != "incoming, incoming" {
		t.Errorf("%+v", st)
	}
	// A client here takes that for the end of its attempt at once.
	c := newEndpoint(t, Config{Rand: goldenRand()})
	connect(t, c, serverAt)
	feed(s, clientAt, sent(c)...)
	feed(c, serverAt, sent(s)...)
	if got := eventText(c); got != "disconnected ClosedByRemote" {
		t.Errorf("the client sees %s", got)
	}
	feed(s, place(0), Packet{Kind: KindDisconnect, Token: 0}.Append(nil))
	if o := feed(s, place(9), request(9)); o != taken {
		t.Errorf("with room again: %v", o)
	}
}

// TestHalfOpenCaps: silence for those above, since an honest client asks again.
func TestHalfOpenCaps(t *testing.T) {
	s := server(t, Config{MaxHalfOpen: 4, MaxHalfOpenPerSource: 2})
	s.Advance(0)
	home := func(port uint16) address.Addr {
		return address.FromUDP(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port))
	}
	for i, want := range []outcome{taken, taken, dropSource, dropSource} {
		if o := feed(s, home(uint16(1000+i)), request(i)); o != want {
			t.Errorf("request %d of one source: %v", i, o)
		}
	}
	for i := range 2 {
		if o := feed(s, place(i), request(100+i)); o != taken {
			t.Errorf("request %d of other sources: %v", i, o)
		}
	}
	if got := kinds(t, sent(s)); got != "AAAA" || s.Stats().HalfOpen != 4 || s.Stats().Connections != 4 {
		t.Errorf("sent %q, %+v", got, s.Stats())
	}
	// A blind heartbeat makes no room, an admitted client does, for its source too.
	feed(s, home(1000), Packet{Kind: KindHeartbeat, Token: 0}.Append(nil))
	if o := feed(s, home(1002), request(2)); o != dropSource {
		t.Errorf("after a heartbeat: %v", o)
	}
	s.Admit(s.conns.slots[0].id)
	if o := feed(s, home(1002), request(2)); o != taken || s.Stats().HalfOpen != 4 {
		t.Errorf("%v, %+v", o, s.Stats())
	}
	// The others end in silence, and may then ask again with the same token.
	eventText(s)
	tick(s, ms(10000))
	if s.Stats().Connections != 5 {
		t.Errorf("after 10000 ms: %+v", s.Stats())
	}
	tick(s, ms(10001))
	if st := s.Stats(); st.HalfOpen != 0 || st.Connections != 1 {
		t.Errorf("after 10001 ms: %+v", st)
	}
	if got := eventText(s); got != "disconnected Timeout, disconnected Timeout, disconnected Timeout, disconnected Timeout" {
		t.Errorf("events %s", got)
	}
	if got := kinds(t, sent(s)); got != "h" { // to the one that lives
		t.Errorf("sent %q", got)
	}
	if o := feed(s, home(1001), request(1)); o != taken {
		t.Errorf("asked again: %v", o)
	}
}

// TestChurn: ten thousand connections come and go without a trace.
func TestChurn(t *testing.T) {
	s := server(t, gameObjects())
	seen := map[ConnID]bool{}
	for i := range 10000 {
		tick(s, ms(i))
		feed(s, clientAt, request(i), Packet{Kind: KindHeartbeat, Token: Token(i)}.Append(nil))
		ev, ok := s.NextEvent()
		if !ok || ev.Kind != EventIncoming || seen[ev.Conn] || ev.Conn.Index() > disconnectCopies {
			t.Fatalf("connection %d: %+v", i, ev)
		}
		seen[ev.Conn] = true
		must(t, s.Send(ev.Conn, gameObjectsReliable, []byte("hi")))
		if i%2 == 0 {
			s.Disconnect(ev.Conn)
		} else {
			feed(s, clientAt, Packet{Kind: KindDisconnect, Token: Token(i)}.Append(nil))
		}
		if err := s.Send(ev.Conn, 0, nil); err != ErrConn {
			t.Fatalf("Send after the end: %v", err)
		}
		events(s)
		sent(s)
	}
	sent(s)
	sent(s)
	if len(s.conns.slots) != 1 || len(s.conns.tokens) != 0 || len(s.conns.free) != 1 || len(s.closing.disconnects) != 0 ||
		len(s.pool.small) != 1 ||
		len(s.closing.tokens) != closedTokens {
		t.Errorf("%d slots, %d tokens, %d free, %d departures, %d spare buffers, %d closed tokens", len(s.conns.slots), len(s.conns.tokens),
			len(s.conns.free), len(s.closing.disconnects), len(s.pool.small), len(s.closing.tokens))
	}
	if c := s.Stats(); c.Connections != 0 {
		t.Errorf("%+v", c)
	}
}
