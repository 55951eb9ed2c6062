package utp

import (
	"bytes"
	"testing"
)

var elsewhere = place(77)

func TestRoaming(t *testing.T) {
	p := newPair(t, Config{})
	p.send(0, "from a new port")
	if o := feed(p.server, elsewhere, sent(p.client)...); o != taken {
		t.Fatal(o)
	}
	must(t, p.server.Send(p.down, 0, []byte("follows")))
	to, _, ok := p.server.Next()
	if !ok || to != elsewhere {
		t.Errorf("sent to %v", to)
	}
	if at := p.server.conns.find(p.down).path.addr; at != elsewhere {
		t.Errorf("the client is at %v", at)
	}
	// A request does not move it: only a client that has no accept asks.
	if o := feed(p.server, place(78), Packet{Kind: KindRequest, Token: p.token()}.Append(nil)); o != dropForeign {
		t.Error(o)
	}
	if to, _ := p.server.Remote(p.down); to != elsewhere {
		t.Errorf("a request moved it to %v", to)
	}
	// Nor does what is no valid message.
	feed(p.server, place(78), append(Packet{Kind: KindHeartbeat, Token: p.token()}.Append(nil), 0))
	feed(p.server, place(78), Packet{Kind: KindData, Token: p.token()}.Append(nil)[:messageLen])
	if to, _ := p.server.Remote(p.down); to != elsewhere {
		t.Errorf("garbage moved it to %v", to)
	}
	// From there the client may also disconnect.
	if o := feed(p.server, place(78), Packet{Kind: KindDisconnect, Token: p.token()}.Append(nil)); o != taken ||
		eventText(p.server) != `data 0 "from a new port", disconnected ClosedByRemote` {
		t.Error(o)
	}
}

// TestNoRoamingBefore: what is not established stays where it began, so a token
// that is used from two places belongs to the first.
func TestNoRoamingBefore(t *testing.T) {
	s := server(t, Config{})
	s.Advance(0)
	feed(s, clientAt, request(5))
	for _, m := range []Packet{Packet{Kind: KindRequest, Token: 5}, Packet{Kind: KindHeartbeat, Token: 5}, Packet{Kind: KindData, Token: 5},
		Packet{Kind: KindDisconnect, Token: 5}} {
		if o := feed(s, elsewhere, m.Append(nil)); o != dropForeign {
			t.Errorf("%v to a half-open connection: %v", m, o)
		}
	}
	if st := s.Stats(); st.HalfOpen != 1 || eventText(s) != "incoming" {
		t.Errorf("%+v", st)
	}
	c := newEndpoint(t, Config{Rand: goldenRand()})
	id := connect(t, c, serverAt)
	sent(c)
	for _, m := range []Packet{Packet{Kind: KindAccept, Token: goldenToken}, Packet{Kind: KindHeartbeat, Token: goldenToken},
		Packet{Kind: KindDisconnect, Token: goldenToken}} {
		if o := feed(c, elsewhere, m.Append(nil)); o != dropForeign || c.State(id) != StateConnecting {
			t.Errorf("%v to an attempt: %v", m, o)
		}
	}
}

// TestMTU: the size is that of the datagram on the socket, the relay's header
// included.
func TestMTU(t *testing.T) {
	for _, overhead := range []int{0, 38} {
		p := newPair(t, Config{Overhead: overhead})
		check := Packet{Kind: KindMTUCheck, Token: p.token(), Body: make([]byte, uint16(1024-messageLen-lengthLen-overhead))}.Append(nil)
		if len(check)+overhead != 1024 {
			t.Fatal(len(check))
		}
		feed(p.server, clientAt, check)
		list := waiting(p.server)
		if len(list) != 1 {
			t.Fatalf("overhead %d: %q", overhead, kinds(t, list))
		}
		if m, o := parse(list[0]); m.Kind != KindMTUAck || m.Token != p.token() || !bytes.Equal(m.Body, le16(1024)) || o != taken {
			t.Errorf("overhead %d: %v %v", overhead, m, o)
		}
		if o := feed(p.client, serverAt, list[0]); o != taken || len(sent(p.client)) != 0 || eventText(p.client) != "" {
			t.Errorf("an unrequested answer: %v", o)
		}
		if o := feed(p.server, clientAt, check[:len(check)-1]); o != dropLength {
			t.Error(o)
		}
	}
}
