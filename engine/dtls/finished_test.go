package dtls

import (
	"bytes"
	"testing"
)

// TestWrongFinished: with the right keys a Finished must still have the right
// content, type and sequence number, be complete, and be alone in its record.
func TestWrongFinished(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(m []byte) []byte
	}{
		{"first byte", func(m []byte) []byte { m[messageHeaderLen] ^= 1; return m }},
		{"last byte", func(m []byte) []byte { m[len(m)-1] ^= 0x80; return m }},
		{"empty", func(m []byte) []byte { return appendMessage(nil, msgFinished, 2, nil) }},
		{"cut short", func(m []byte) []byte { return appendMessage(nil, msgFinished, 2, m[messageHeaderLen:len(m)-1]) }},
		{"longer", func(m []byte) []byte { return appendMessage(nil, msgFinished, 2, append(m[messageHeaderLen:], 0)) }},
		{"another type", func(m []byte) []byte { m[0] = msgClientKeyExchange; return m }},
		{"out of turn", func(m []byte) []byte { m[5]++; return m }},
		{"a fragment", func(m []byte) []byte { m[3]++; return m }},
		{"not alone", func(m []byte) []byte { return append(m, m...) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{})
			p := newPeer(g, home, 1)
			if !p.start() {
				t.Fatal("no answer")
			}
			p.finished()
			good := p.s.finished
			p.s.finished = c.spoil(bytes.Clone(good))
			if got := g.put(home, append(p.wrap(p.exchange()), p.repeatFinished()...)); got != nil || g.Alive(home) {
				t.Fatalf("answered % x, a session: %v", got, g.Alive(home))
			}
			g.wantCounts(map[Event]uint64{DropKey: 1})
			p.s.finished = good
			if !p.accepted(g.put(home, p.repeatFinished())) {
				t.Fatal("the right one is not accepted any more")
			}
		})
	}
}

// TestTampered: both Finished cover all messages, so no changed message is accepted,
// with the extended master secret or without.
func TestTampered(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, c := range []struct {
			name                    string
			hello, flight, exchange func(b []byte)
		}{
			{name: "nothing"},
			{name: "the best suite of the ClientHello", hello: func(b []byte) { b[messageHeaderLen+41] ^= 1 }},
			{name: "the version of the ServerHello", flight: func(b []byte) { b[messageHeaderLen+1] ^= 2 }},
			{name: "the number of the ServerHelloDone", flight: func(b []byte) { b[len(b)-7] ^= 2 }},
			{name: "the form of the identity", exchange: func(b []byte) { copy(b[messageHeaderLen+2:], bytes.ToUpper(b[messageHeaderLen+2:])) }},
		} {
			t.Run(c.name, func(t *testing.T) {
				g := newRig(t, Config{})
				p := newPeer(g, home, 0xAB)
				id := testID(0xAB)
				p.identity, p.plain = []byte(id.String()), plain
				p.suites = []uint16{0xC001, 0xA8, 0xC003, 0xC004, 0xC005}
				hello := p.hello(nil)
				if c.hello != nil {
					c.hello(hello[headerLen:])
				}
				if !p.answered(g.put(home, hello)) {
					t.Fatal("no answer")
				}
				if c.flight != nil {
					c.flight(p.flight)
				}
				last := p.finished()
				exchange := p.exchange()
				if c.exchange != nil {
					c.exchange(exchange)
				}
				got := g.put(home, append(p.wrap(exchange), last...))
				if honest := c.name == "nothing"; (len(got) == 1) != honest || g.Alive(home) != honest {
					t.Fatalf("plain %v: answered % x, a session: %v", plain, got, g.Alive(home))
				}
			})
		}
	}
}
