package dtls

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// recordOf is a datagram of one plain record with some messages.
func recordOf(messages ...[]byte) []byte {
	return appendPlain(nil, typeHandshake, version12, 0, bytes.Join(messages, nil))
}

// TestOneAnswer: a datagram gets at most one answer, which is not larger than it,
// whatever the number of hellos, records and flights in it. Otherwise many small
// hellos in one datagram would be amplified, in packets and in bytes.
func TestOneAnswer(t *testing.T) {
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
				g := newRig(t, Config{Direct: direct})
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
				g.wantCounts(map[Event]uint64{Hello: 3, DropTrailing: 3})
			})
		}
	}
}

// TestTrailingHello: messages after a ClientHello are not processed, whether that was
// answered or not, so a datagram costs the work of one hello.
func TestTrailingHello(t *testing.T) {
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
	g.wantCounts(map[Event]uint64{Hello: 2, DropSuite: 2, DropTrailing: 2})
}

// TestOneFinished: a datagram with many Finished of a session gets one answer.
func TestOneFinished(t *testing.T) {
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

// TestNoRetransmission: a flight without an answer is sent once.
func TestNoRetransmission(t *testing.T) {
	g := newRig(t, Config{HandshakeTimeout: 300 * time.Millisecond})
	if got := g.put(home, newPeer(g, home, 1).hello(nil)); len(got) != 1 {
		t.Fatalf("%d answers", len(got))
	}
	g.wait("the time-out", func() bool { return g.Stats().Counts[TimedOut] == 1 })
	if got := g.take(home); got != nil {
		t.Fatalf("sent without being asked: % x", got)
	}
}

// TestSilence: invalid datagrams of a source without a session are not answered, not
// even with an alert.
func TestSilence(t *testing.T) {
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
	g.wantCounts(map[Event]uint64{Established: 1, Answered: 1, CookieSent: 0})
}
