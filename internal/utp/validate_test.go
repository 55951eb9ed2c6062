package utp

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/proto"
)

func validating() Config {
	cfg := NetcodeForEntities()
	cfg.ValidateAddresses = true
	return cfg
}

// TestCookie: a request holds no state before its cookie has come back, and the server
// sees the client's payload only then.
func TestCookie(t *testing.T) {
	c, s := newEndpoint(t, validating()), server(t, validating())
	c.Advance(0)
	s.Advance(0)
	id := connect(t, c, serverAt)
	list := sent(c)
	if len(list) != 1 || len(list[0]) != handshakeLen {
		t.Fatalf("the first request is %x", list)
	}
	if o := feed(s, clientAt, list...); o != taken || s.Stats().Connections != 0 || eventText(s) != "" {
		t.Fatalf("%v, %+v", o, s.Stats())
	}
	answer := waiting(s)
	if kinds(t, answer) != "A" || len(answer[0]) > 3*len(list[0]) {
		t.Fatalf("answered %x", answer)
	}
	feed(c, serverAt, answer...)
	if got := eventText(c); got != "connected" {
		t.Fatalf("the client sees %s", got)
	}
	must(t, c.Send(id, EntitiesReliable, []byte("version")))
	list = sent(c)
	if got := kinds(t, list); got != "Qd" {
		t.Fatalf("sent %q", got)
	}
	list[0] = withPayload(list[0], "hello")
	feed(s, clientAt, list...)
	if got := eventText(s); got != `incoming "hello", data 2 "version"` {
		t.Errorf("the server sees %s", got)
	}
	if st := s.Stats(); st.Connections != 1 || st.HalfOpen != 1 {
		t.Errorf("%+v", st)
	}
	// Every message before the server's first has the cookie in front.
	tick(c, ms(60))
	if got := kinds(t, sent(c)); got != "Qd" {
		t.Errorf("resent %q", got)
	}
	tick(s, ms(60))
	feed(c, serverAt, sent(s)...)
	must(t, c.Send(id, EntitiesUnreliable, []byte("input")))
	if got := kinds(t, sent(c)); got != "d" {
		t.Errorf("after the server's first message: %q", got)
	}
	s.Admit(s.conns.slots[0].id)
	if st := s.Stats(); st.HalfOpen != 0 {
		t.Errorf("after Admit: %+v", st)
	}
}

// TestCookieIsBound: to the address with its port, to the token, to the time and to the server.
func TestCookieIsBound(t *testing.T) {
	relayed := address.FromAllocation(proto.AllocationID{1, 2, 3})
	for _, at := range []address.Addr{clientAt, relayed, address.FromUDP(udp("[2001:db8::1]:5"))} {
		s := server(t, validating())
		cookie := func(e *Endpoint, from address.Addr, n int) []byte {
			feed(e, from, request(n))
			m, o := parse(waiting(e)[0])
			if m.Kind != KindAccept || o != taken {
				t.Fatal(m, o)
			}
			return bytes.Clone(m.Body)
		}
		own := cookie(s, at, 5)
		other := server(t, Config{ValidateAddresses: true, Rand: newSeeded(99)})
		sibling := address.FromUDP(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 1))
		for name, c := range map[string][]byte{
			"another address": cookie(s, elsewhere, 5), "another port": cookie(s, sibling, 5), "another token": cookie(s, at, 6),
			"another server": cookie(other, at, 5), "cut off": own[:7], "none": nil,
		} {
			if feed(s, at, Packet{Kind: KindRequest, Token: 5, Body: c}.Append(nil)); s.Stats().Connections != 0 {
				t.Errorf("%v: the cookie of %s is valid", at, name)
			}
		}
		waiting(s)
		s.Advance(0)
		s.Advance(2 * cookieLife)
		if feed(s, at, Packet{Kind: KindRequest, Token: 5, Body: own}.Append(nil)); s.Stats().Connections != 0 {
			t.Errorf("%v: an old cookie is valid", at)
		}
		fresh := cookie(s, at, 5)
		s.Advance(3*cookieLife - ms(1))
		if feed(s, at, Packet{Kind: KindRequest, Token: 5, Body: fresh}.Append(nil)); s.Stats().Connections != 1 {
			t.Errorf("%v: its own cookie is not valid", at)
		}
	}
}

// TestCookieAnswersLeaveRoom: a flood of requests in one tick fills half of the queue.
func TestCookieAnswersLeaveRoom(t *testing.T) {
	cfg := validating()
	cfg.SendQueue = 100
	s := server(t, cfg)
	for i := range 1000 {
		feed(s, place(i), request(i))
	}
	if st := s.Stats(); unsent(s) > 51 || st.Drops[string(dropQueue)] < 900 {
		t.Errorf("%+v", st)
	}
}

// TestMovedPeerIsUnvalidated: a client that sends from a new address, which may be forged,
// gets three times its bytes until it has returned a cookie from there.
func TestMovedPeerIsUnvalidated(t *testing.T) {
	p := newPair(t, Config{})
	p.client, p.server = newEndpoint(t, validating()), server(t, validating())
	p.up = connect(t, p.client, serverAt)
	p.toServer()
	p.toClient()
	p.toServer()
	ev, _ := p.server.NextEvent()
	p.down = ev.Conn
	if p.server.State(p.down) != StateEstablished {
		t.Fatal(p.server.State(p.down))
	}
	eventText(p.client)
	move := Packet{Kind: KindHeartbeat, Token: p.token()}.Append(nil)
	feed(p.server, elsewhere, move)
	size := 0
	var toElsewhere [][]byte
	for range 100 {
		p.advance(ms(10))
		must(t, p.server.Send(p.down, EntitiesUnreliable, make([]byte, 100)))
		must(t, p.server.Send(p.down, EntitiesReliable, nil))
		for _, pkt := range sent(p.server) {
			toElsewhere, size = append(toElsewhere, pkt), size+len(pkt)
		}
		if p.server.conns.slots[0].pipelines[EntitiesReliable].reliable.sender.free() == 0 {
			break
		}
	}
	if size > 3*len(move) || size == 0 {
		t.Fatalf("%d bytes to an address that has sent %d", size, len(move))
	}
	feed(p.client, serverAt, toElsewhere...)
	answer := sent(p.client)
	if got := kinds(t, answer); got != "Q" {
		t.Fatalf("the client answers %q", got)
	}
	feed(p.server, place(78), answer...) // A cookie counts from its own address alone.
	if p.server.conns.slots[0].path.validated {
		t.Fatal("validated from elsewhere")
	}
	feed(p.server, elsewhere, answer...)
	must(t, p.server.Send(p.down, EntitiesUnreliable, make([]byte, 1000)))
	if list := waiting(p.server); len(list) != 1 || len(list[0]) < 1000 {
		t.Errorf("after the cookie: %q", kinds(t, list))
	}
	if at, _ := p.server.Remote(p.down); at != elsewhere {
		t.Error(at)
	}
	if got := eventText(p.client) + eventText(p.server); got != "" {
		t.Errorf("events %s", got)
	}
}

// TestForgedFloodOfUnityPeers: peers that cannot return a cookie get in at 200 forged
// requests per second with heartbeats, for the oldest unvalidated connection makes room:
// 256 places are 1.28 s, and the round trip is 300 ms. One source takes 32 places at most.
func TestForgedFloodOfUnityPeers(t *testing.T) {
	for _, sources := range []int{1, 100_000} {
		s := server(t, NetcodeForEntities())
		forged, honest, validated := 0, map[ConnID]Token{}, 0
		acks := map[int][]Token{} // by the step at which they arrive
		for step := range 3000 {  // of 10 ms
			tick(s, ms(10*step))
			for range 2 {
				n := 1<<20 + forged
				feed(s, place(n%sources+1000), Packet{Kind: KindRequest, Token: Token(n)}.Append(nil),
					Packet{Kind: KindHeartbeat, Token: Token(n)}.Append(nil))
				forged++
			}
			for _, token := range acks[step] {
				ack := reliableHeader{kind: reliableAck, newest: 0, mask: 1}
				feed(s, place(int(token)), append(ack.append(Packet{Kind: KindData, Token: token, Pipeline: EntitiesReliable}.Append(nil), false), 0))
			}
			if n := step + 1; step%20 == 0 {
				feed(s, place(n), Packet{Kind: KindRequest, Token: Token(n)}.Append(nil),
					Packet{Kind: KindData, Token: Token(n), Body: []byte("the client's first message")}.Append(nil))
			}
			for ev, ok := s.NextEvent(); ok; ev, ok = s.NextEvent() {
				if ev.Kind == EventDisconnected && honest[ev.Conn] != 0 {
					t.Fatalf("step %d: an honest client was evicted: %v", step, ev)
				}
				if c := s.conns.find(ev.Conn); ev.Kind == EventIncoming && c.token < 1<<20 {
					honest[ev.Conn] = c.token
					must(t, s.Send(ev.Conn, EntitiesReliable, []byte("version")))
					acks[step+30] = append(acks[step+30], c.token)
				}
			}
			sent(s)
		}
		for id := range honest {
			if s.conns.find(id) != nil && s.conns.find(id).path.validated {
				validated++
			}
		}
		if validated != len(honest)-1 || len(honest) != 150 { // The last one has not answered yet.
			t.Errorf("%d sources: %d of %d honest clients are validated, %+v", sources, validated, len(honest), s.Stats())
		}
	}
}

// TestSameSource: a sender has all ports of an IPv4 address, or of a /64 of IPv6.
func TestSameSource(t *testing.T) {
	host := func(id byte) address.Addr { return address.FromAllocation(proto.AllocationID{15: id}) }
	at := func(text string) address.Addr { return address.FromUDP(netip.MustParseAddrPort(text)) }
	for _, v := range []struct {
		a, b address.Addr
		want bool
	}{
		{at("1.2.3.4:5"), at("1.2.3.4:6"), true},
		{at("1.2.3.4:5"), at("[::ffff:1.2.3.4]:6"), true},
		{at("1.2.3.4:5"), at("1.2.3.5:5"), false},
		{at("[2001:db8:1:2::3]:5"), at("[2001:db8:1:2:ff::]:6"), true},
		{at("[2001:db8:1:2::3]:5"), at("[2001:db8:1:3::3]:5"), false},
		{at("[::1]:5"), at("1.2.3.4:5"), false},
		{host(1), host(1), true},
		{host(1), host(2), false},
		{host(1), at("[::1]:0"), false},
		{address.Addr{}, address.Addr{}, true},
	} {
		if got := sameSource(v.a, v.b); got != v.want || sameSource(v.b, v.a) != got {
			t.Errorf("%v and %v: %v", v.a, v.b, got)
		}
	}
}
