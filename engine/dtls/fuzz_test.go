package dtls

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/pion/dtls/v3/pkg/protocol/handshake"
)

func seedFlight(plain bool) (hello, exchange []byte) {
	p := &peer{identity: []byte("0123456789abcdef"), suites: []uint16{0xA8, 0xFF}, padding: 4, plain: plain}
	hello = p.hello(make([]byte, cookieLen))
	return hello, p.wrap(p.exchange())
}

// FuzzHello compares with pion's codec, which must accept every accepted hello.
func FuzzHello(f *testing.F) {
	for _, plain := range []bool{false, true} {
		hello, _ := seedFlight(plain)
		f.Add(hello[headerLen+messageHeaderLen:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := parseHello(b)
		if !ok {
			return
		}
		if n := len(h.before) + 1 + len(h.cookie) + len(h.after); n > len(b) || !bytes.HasPrefix(b, h.before) {
			t.Fatalf("the parts have %d bytes of %d", n, len(b))
		}
		var theirs handshake.MessageClientHello
		if err := theirs.Unmarshal(b); err != nil {
			return // it knows, and refuses, extensions that we ignore
		}
		if !bytes.Equal(theirs.Cookie, h.cookie) || len(theirs.CipherSuiteIDs) != len(h.suites)/2 {
			t.Fatalf("pion reads %+v", theirs)
		}
		random := theirs.Random.MarshalFixed()
		if !bytes.Equal(random[:], h.random) {
			t.Fatalf("pion reads the random % x", random)
		}
		for _, s := range theirs.CipherSuiteIDs {
			if !h.offers(s) {
				t.Fatalf("suite %x is missing", s)
			}
		}
	})
}

// FuzzDatagrams: for two datagrams of one source a worker sends at most one, which is not larger.
func FuzzDatagrams(f *testing.F) {
	hello, exchange := seedFlight(false)
	plain, _ := seedFlight(true)
	noCookie := (&peer{suites: []uint16{0xA9}, padding: 30}).hello(nil)
	fin := binary.BigEndian.AppendUint16([]byte{22, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 0}, 40)
	f.Add(hello, exchange)
	f.Add(plain, noCookie)
	f.Add(noCookie, append(append(exchange, fin...), make([]byte, 40)...))
	f.Add(recordOf(bytes.Repeat(plain[headerLen:], 20)), bytes.Repeat(noCookie, 8))
	r, err := newLayer(Config{workers: 1, queue: 1, MaxSessions: 16})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		sent, answers := 0, 0
		w := newWorker(r, boundRelay{func(_ endpoint.Endpoint, out []byte) { sent += len(out); answers++ }})
		for _, pkt := range [][]byte{a, b, a} {
			pkt = pkt[:min(len(pkt), maxHandshakeDatagram)]
			sent, answers = 0, 0
			w.handleDatagram(home, pkt)
			if sent > len(pkt) || answers > 1 {
				t.Fatalf("%d bytes were answered with %d in %d datagrams", len(pkt), sent, answers)
			}
			if int(r.halfOpen.Load()) != len(w.handshakes) || w.prefixes.Count(home.Network()) != len(w.handshakes) || len(w.handshakes) > 1 {
				t.Fatalf("%d half open, %d counted", len(w.handshakes), r.halfOpen.Load())
			}
		}
		w.expire(1 << 62)
		if r.halfOpen.Load() != 0 || r.direct.Load() != 0 || w.prefixes.First() != nil {
			t.Fatal("the counts do not return to zero")
		}
		s, msg := r.Open(home, a)
		if msg != nil || s.Serial != 0 {
			t.Fatal("a message without a session")
		}
	})
}
