package dtls

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

func recordOf(messages ...[]byte) []byte {
	return appendPlain(nil, typeHandshake, version12, 0, bytes.Join(messages, nil))
}

// TestOneAnswer: a datagram gets at most one answer, not larger than it, whatever is in it.
func TestOneAnswer(t *testing.T) {
	t.Parallel()
	const many = 20
	plain := func(g *rig, n int) (out [][]byte) {
		for i := range n {
			p := newPeer(g, home, i)
			p.plain = true
			p.hello(nil)
			out = append(out, p.first)
		}
		return out
	}
	for _, direct := range []int{0, -1} {
		for _, c := range []struct {
			name string
			make func(g *rig) []byte
		}{
			{"hellos in one record", func(g *rig) []byte { return recordOf(plain(g, many)...) }},
			{"one hello again and again", func(g *rig) []byte {
				return recordOf(bytes.Repeat(plain(g, 1)[0], many))
			}},
			{"a record for each hello", func(g *rig) (all []byte) {
				for _, m := range plain(g, many) {
					all = append(all, recordOf(m)...)
				}
				return all
			}},
			{"the same record again and again", func(g *rig) []byte {
				return bytes.Repeat(recordOf(plain(g, 1)[0]), many)
			}},
			{"a large hello before others", func(g *rig) []byte {
				large := newPeer(g, home, 1)
				large.padding = 200
				return append(large.hello(nil), recordOf(plain(g, many)...)...)
			}},
		} {
			t.Run(fmt.Sprintf("%s, direct %d", c.name, direct), func(t *testing.T) {
				g := newRig(t, Config{direct: direct})
				pkt := c.make(g)
				for round := range 3 {
					got := g.put(home, pkt)
					if len(got) != 1 {
						t.Fatalf("round %d: %d answers", round, len(got))
					}
					if len(got[0]) > len(pkt) {
						t.Errorf("round %d: %d bytes were answered with %d", round, len(pkt), len(got[0]))
					}
				}
				g.wantCounts(map[event]uint64{eventHello: 3, dropTrailing: 3})
			})
		}
	}
}

// TestTrailingHello: messages after a ClientHello are not processed, so a datagram costs one hello.
func TestTrailingHello(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	useless, good := newPeer(g, home, 1), newPeer(g, home, 2)
	useless.suites = []uint16{0xC0A8}
	useless.hello(nil)
	if got := g.put(home, append(recordOf(useless.first), good.hello(nil)...)); got != nil {
		t.Fatalf("answered % x", got)
	}
	if got := g.put(home, recordOf(useless.first, good.first)); got != nil {
		t.Fatalf("answered % x", got)
	}
	g.wantCounts(map[event]uint64{eventHello: 2, dropSuite: 2, dropTrailing: 2})
}

func TestOneFinished(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	var all []byte
	for range 10 {
		all = append(all, p.repeatFinished()...)
	}
	if got := g.put(home, all); len(got) != 1 {
		t.Fatalf("%d answers", len(got))
	}
}

func TestNoRetransmission(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{handshakeTimeout: 300 * time.Millisecond})
	if got := g.put(home, newPeer(g, home, 1).hello(nil)); len(got) != 1 {
		t.Fatalf("%d answers", len(got))
	}
	g.wait("the time-out", func() bool { return g.stats().Counts[eventTimedOut] == 1 })
	if got := g.take(home); got != nil {
		t.Fatalf("sent without being asked: % x", got)
	}
}

// TestSilence: invalid datagrams of a source without a session get no answer, nor an alert.
func TestSilence(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	hello := newPeer(g, home, 2)
	for name, pkt := range map[string][]byte{
		"a version of the past":    {22, 0xFE, 0xFE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		"TLS":                      {22, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		"an unknown type":          appendPlain(nil, 25, version12, 0, []byte{1, 2, 3}),
		"a heartbeat":              appendPlain(nil, 24, version12, 0, []byte{1, 0, 3, 1, 2, 3}),
		"a plain fatal alert":      appendPlain(nil, typeAlert, version12, 0, []byte{2, 40}),
		"a plain message":          appendPlain(nil, typeData, version12, 0, []byte("hello")),
		"a stray Finished":         recordOf(appendMessage(nil, msgFinished, 2, make([]byte, verifyLen))),
		"a message of servers":     recordOf(appendMessage(nil, msgServerHello, 0, make([]byte, 40))),
		"a ClientKeyExchange":      recordOf(hello.exchange()),
		"a ChangeCipherSpec":       appendPlain(nil, typeChangeCipherSpec, version12, 0, []byte{1}),
		"junk of the next epoch":   {22, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 9, 0, 3, 1, 2, 3},
		"junk of epoch 2":          {23, 0xFE, 0xFD, 0, 2, 0, 0, 0, 0, 0, 9, 0, 3, 1, 2, 3},
		"a fragment of no bytes":   recordOf([]byte{msgClientKeyExchange, 0, 0, 9, 0, 1, 0, 0, 0, 0, 0, 0}),
		"more than there is":       {22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 1},
		"a hello without suites":   recordOf(appendMessage(nil, msgClientHello, 0, append([]byte{0xFE, 0xFD}, make([]byte, 40)...))),
		"a hello with other suite": func() []byte { hello.suites = []uint16{0xC0A8}; return hello.hello(nil) }(),
		"a hello of DTLS 1.0":      func() []byte { b := newPeer(g, home, 3).hello(nil); b[headerLen+messageHeaderLen+1] = 0xFF; return b }(),
	} {
		for _, from := range []string{"192.0.2.1:4000", "192.0.2.7:7"} {
			if got := g.put(at(from), pkt); got != nil {
				t.Errorf("%s from %s was answered with % x", name, from, got)
			}
		}
	}
	checkEcho(t, p, testID(1))
	g.wantCounts(map[event]uint64{eventEstablished: 1, eventAnswered: 1, eventCookieSent: 0})
}

// TestWrongFinished: content, type, sequence number and length of a Finished are checked.
func TestWrongFinished(t *testing.T) {
	t.Parallel()
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
			g.wantCounts(map[event]uint64{dropKey: 1})
			p.s.finished = good
			if !p.accepted(g.put(home, p.repeatFinished())) {
				t.Fatal("the right one is not accepted any more")
			}
		})
	}
}

// TestTampered: both Finished cover all messages, so no changed message is accepted.
func TestTampered(t *testing.T) {
	t.Parallel()
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

// TestSizes: no answer is larger than its hello.
func TestSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		plain   bool
		padding int
		suites  int
		hello   int
		answer  int
		direct  bool
	}{
		{"no extensions", true, 0, 1, 67, 44, false},
		{"no extensions, four suites", true, 0, 4, 73, 44, false},
		{"no extensions, five suites", true, 0, 5, 75, 75, true},
		{"one suite", false, 0, 1, 82, 44, false},
		{"two suites", false, 0, 2, 84, 44, false},
		{"three suites", false, 0, 3, 86, 86, true},
		{"padded", false, 4, 1, 86, 86, true},
		{"large", false, 200, 9, 298, 86, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, direct := range []int{0, -1} {
				g := newRig(t, Config{direct: direct})
				p := newPeer(g, home, 1)
				p.plain, p.padding = c.plain, c.padding
				for i := 1; i < c.suites; i++ {
					p.suites = append(p.suites, uint16(0xC000+i))
				}
				hello := p.hello(nil)
				got := g.put(home, hello)
				if len(hello) != c.hello || len(got) != 1 || len(got[0]) > len(hello) {
					t.Fatalf("%d bytes were answered with %d", len(hello), len(got[0]))
				}
				want, isDirect := c.answer, c.direct && direct == 0
				if !isDirect {
					want = 44
				}
				if len(got[0]) != want || (cookieIn(got[0]) == nil) != isDirect {
					t.Errorf("the answer has %d bytes, want %d", len(got[0]), want)
				}
			}
		})
	}
}

func TestAnswerLen(t *testing.T) {
	t.Parallel()
	for _, h := range []hello{
		{}, {extendedMaster: true}, {renegotiation: true}, {extendedMaster: true, renegotiation: true},
	} {
		flight := appendServerFlight(nil, &h, &suites[0], 0, make([]byte, randomLen))
		if got := headerLen + len(flight); got != answerLen(&h) {
			t.Errorf("%d bytes, want %d", got, answerLen(&h))
		}
	}
}

type loop struct {
	*layer
	conn *net.UDPConn
}

func newLoop(t *testing.T, c Config) *loop {
	t.Helper()
	r, err := newLayer(c)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{layer: r, conn: conn}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.Begin(boundRelay{l.send})
	wg.Go(func() { _ = r.Run(ctx, boundRelay{l.send}) })
	wg.Go(l.serve)
	t.Cleanup(func() {
		stop()
		conn.Close()
		wg.Wait()
	})
	return l
}

func (l *loop) addr() *net.UDPAddr { return l.conn.LocalAddr().(*net.UDPAddr) }

func (l *loop) send(to endpoint.Endpoint, pkt []byte) { l.conn.WriteToUDPAddrPort(pkt, to.AddrPort()) }

func (l *loop) serve() {
	in, out := make([]byte, 2048), make([]byte, 0, 2048)
	for {
		n, addr, err := l.conn.ReadFromUDPAddrPort(in)
		if err != nil {
			return
		}
		s, msg := l.Open(endpoint.UDP(addr, 0, 0), in[:n])
		if msg == nil {
			continue
		}
		if b, to, ok := l.Seal(out, s.Serial, msg); ok {
			l.send(to, b)
		}
	}
}
