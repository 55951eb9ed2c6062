package utp

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/utpwire"
)

var elsewhere = place(77)

func TestRoaming(t *testing.T) {
	p := newPair(t, Config{})
	p.send(0, "from a new port")
	if o := feed(p.server, elsewhere, sent(p.client)...); o != taken {
		t.Fatal(o)
	}
	must(t, p.server.Send(p.down, 0, []byte("follows")))
	d, ok := p.server.Next()
	if !ok || d.To != elsewhere {
		t.Errorf("sent to %v", d.To)
	}
	if at := p.server.conn(p.down).addr; at != elsewhere {
		t.Errorf("the client is at %v", at)
	}
	// A request does not move it: only a client that has no accept asks.
	if o := feed(p.server, place(78), utpwire.Request{Token: p.token()}.Append(nil)); o != dropForeign {
		t.Error(o)
	}
	if to, _ := p.server.Remote(p.down); to != elsewhere {
		t.Errorf("a request moved it to %v", to)
	}
	// Nor does what is no valid message.
	feed(p.server, place(78), append(utpwire.Heartbeat{Token: p.token()}.Append(nil), 0))
	feed(p.server, place(78), utpwire.Data{Token: p.token()}.Append(nil)[:utpwire.MessageLen])
	if to, _ := p.server.Remote(p.down); to != elsewhere {
		t.Errorf("garbage moved it to %v", to)
	}
	// From there the client may also disconnect.
	if o := feed(p.server, place(78), utpwire.Disconnect{Token: p.token()}.Append(nil)); o != taken || eventText(p.server) != `data 0 "from a new port", disconnected ClosedByRemote` {
		t.Error(o)
	}
}

// TestNoRoamingBefore: what is not established stays where it began, so a token
// that is used from two places belongs to the first.
func TestNoRoamingBefore(t *testing.T) {
	s := server(t, Config{})
	s.Advance(0)
	feed(s, clientAt, request(5))
	for _, m := range []utpwire.Message{utpwire.Request{Token: 5}, utpwire.Heartbeat{Token: 5}, utpwire.Data{Token: 5}, utpwire.Disconnect{Token: 5}} {
		if o := feed(s, elsewhere, m.Append(nil)); o != dropForeign {
			t.Errorf("%v to a half-open connection: %v", m, o)
		}
	}
	if st := s.Stats(); st.HalfOpen != 1 || eventText(s) != "incoming" {
		t.Errorf("%+v", st)
	}
	c := newEndpoint(t, Config{Rand: goldenRand()})
	id := connect(t, c, serverAt, "")
	sent(c)
	for _, m := range []utpwire.Message{utpwire.Accept{Token: goldenToken}, utpwire.Heartbeat{Token: goldenToken}, utpwire.Disconnect{Token: goldenToken}} {
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
		check := utpwire.MTUCheck{Token: p.token(), Padding: uint16(1024 - utpwire.MessageLen - utpwire.LengthLen - overhead)}.Append(nil)
		if len(check)+overhead != 1024 {
			t.Fatal(len(check))
		}
		feed(p.server, clientAt, check)
		list := waiting(p.server)
		if len(list) != 1 {
			t.Fatalf("overhead %d: %q", overhead, kinds(t, list))
		}
		if m, err := utpwire.ParseMTUAck(list[0]); m != (utpwire.MTUAck{Token: p.token(), Size: 1024}) || err != nil {
			t.Errorf("overhead %d: %v %v", overhead, m, err)
		}
		if o := feed(p.client, serverAt, list[0]); o != taken || len(sent(p.client)) != 0 || eventText(p.client) != "" {
			t.Errorf("an unrequested answer: %v", o)
		}
		if o := feed(p.server, clientAt, check[:len(check)-1]); o != dropLength {
			t.Error(o)
		}
	}
}
