package dtls

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// hot is a rig's session and a supply of its records.
func hot(t *testing.T, size int, c Config) (*rig, *peer, engine.Session, []byte) {
	g := newRig(t, c)
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	return g, p, checkEcho(t, p, testID(1)), bytes.Repeat([]byte{'m'}, size)
}

// TestAllocs: neither a record, valid or not, nor a datagram of a handshake
// allocates.
func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates, and sync.Pool forgets under it")
	}
	for _, c := range []Config{{}, {Sessions: openSessions(t, sessionsConfig(t, false))}} {
		testAllocs(t, c)
	}
}

func testAllocs(t *testing.T, c Config) {
	g, p, s, msg := hot(t, 1200, c)
	const runs = 500
	records := make([][]byte, runs+1)
	for i := range records {
		records[i] = p.seal(string(msg))
	}
	out, n := make([]byte, 0, len(msg)+engine.RecordOverhead), 0
	junk, far := p.seal("junk"), at("203.0.113.9:9")
	junk[30] ^= 1
	bad := make([]byte, len(junk))
	stray := appendPlain(nil, typeChangeCipherSpec, version12, 1, []byte{1})
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"Open", func() {
			if _, got := g.Open(home, records[n]); len(got) != len(msg) {
				t.Fatalf("opened %d bytes", len(got))
			}
			n++
		}},
		{"Seal", func() {
			if b, _, ok := g.Seal(out, s.Serial, msg); !ok || len(b) != len(msg)+sealedLen {
				t.Fatal("not sealed")
			}
		}},
		{"Open junk", func() { g.Open(home, bad[:copy(bad, junk)]) }},
		{"Open stray", func() { g.Open(far, bad) }},
		{"Alive", func() { _ = g.Alive(home) == g.Alive(far) }},
		{"enqueue", func() { g.Open(home, stray) }},
	} {
		if got := testing.AllocsPerRun(runs, c.do); got != 0 {
			t.Errorf("%s: %v allocations", c.name, got)
		}
	}
	if _, _, ok := g.Seal(out, s.Serial, make([]byte, maxMessage+1)); ok {
		t.Error("sealed more than a record may hold")
	}
}

// TestOverhead: a record is 37 bytes longer than its message, as real clients
// assume, and the engine's buffers have room for one.
func TestOverhead(t *testing.T) {
	if sealedLen != 37 {
		t.Errorf("a record is %d bytes longer than its message", sealedLen)
	}
	if sealRoom > engine.RecordOverhead {
		t.Errorf("sealing needs %d bytes, the engine gives %d", sealRoom, engine.RecordOverhead)
	}
}

var benchSizes = []int{60, 300, 1200}

func benchRig(b *testing.B) (*Records, *session, *peer) {
	r, err := New(Config{PSK: testKey})
	if err != nil {
		b.Fatal(err)
	}
	key := make([]byte, 16)
	in, err := newDirection(key, make([]byte, saltLen))
	if err != nil {
		b.Fatal(err)
	}
	s := &session{id: testID(1), from: home, in: in, out: in}
	if _, ok := r.table.add(s, func() {}); !ok {
		b.Fatal("no room")
	}
	return r, s, &peer{s: &session{in: in, out: in}}
}

func BenchmarkSeal(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			r, s, _ := benchRig(b)
			msg, out := make([]byte, size), make([]byte, 0, size+engine.RecordOverhead)
			b.ReportAllocs()
			for b.Loop() {
				r.Seal(out, s.serial, msg)
			}
		})
	}
}

// BenchmarkOpenSeal measures the work of the relay for one message: open and seal.
func BenchmarkOpenSeal(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			r, s, p := benchRig(b)
			const batch = 256
			msg, out := make([]byte, size), make([]byte, 0, size+engine.RecordOverhead)
			records := make([][]byte, batch)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				if i%batch == 0 {
					b.StopTimer()
					for j := range records {
						records[j], _ = p.s.seal(records[j][:0], typeData, msg)
					}
					b.StartTimer()
				}
				_, got := r.Open(home, records[i%batch])
				if _, _, ok := r.Seal(out, s.serial, got); !ok || len(got) != size {
					b.Fatal("lost")
				}
			}
		})
	}
}

// BenchmarkDerive measures most of the work of a worker for one handshake.
func BenchmarkDerive(b *testing.B) {
	key, _ := testKey(testID(1))
	client, server, transcript := make([]byte, randomLen), make([]byte, randomLen), make([]byte, 32)
	b.ReportAllocs()
	for b.Loop() {
		keys, err := derive(&suites[0], &key, client, server, true, transcript)
		if err != nil {
			b.Fatal(err)
		}
		for _, label := range []string{"client finished", "server finished"} {
			if _, err := keys.verifyData(label, transcript); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkHello measures the work of a worker for one forged ClientHello: an answer
// with a cookie.
func BenchmarkHello(b *testing.B) {
	r, err := New(Config{PSK: testKey, Direct: -1})
	if err != nil {
		b.Fatal(err)
	}
	w := newWorker(r)
	w.send = func(endpoint.Endpoint, []byte) {}
	hello := (&peer{suites: []uint16{0xA8}, padding: 30}).hello(nil)
	from := at("203.0.113.9:9")
	b.ReportAllocs()
	for b.Loop() {
		w.handleDatagram(from, hello)
	}
}

// BenchmarkAlive measures the cost of each plain datagram while there is a session.
func BenchmarkAlive(b *testing.B) {
	r, _, _ := benchRig(b)
	from := at("203.0.113.9:9")
	for b.Loop() {
		r.Alive(from)
	}
}
