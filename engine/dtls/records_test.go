package dtls

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func hot(t *testing.T, size int, c Config) (*rig, *peer, driver.Session, []byte) {
	g := newRig(t, c)
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	return g, p, checkEcho(t, p, testID(1)), bytes.Repeat([]byte{'m'}, size)
}

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
	out, n := make([]byte, 0, len(msg)+driver.RecordOverhead), 0
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
	t.Parallel()
	if sealedLen != 37 {
		t.Errorf("a record is %d bytes longer than its message", sealedLen)
	}
	if sealRoom > driver.RecordOverhead {
		t.Errorf("sealing needs %d bytes, the engine gives %d", sealRoom, driver.RecordOverhead)
	}
}

// TestWindowNeverTwice compares with a set.
func TestWindowNeverTwice(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		var w window
		taken := make(map[uint64]bool)
		base, newest := rnd.Uint64N(1<<47), uint64(0)
		for range 20_000 {
			seq := base + rnd.Uint64N(3*windowSize)
			base += rnd.Uint64N(uint64(2 + round))
			if rnd.IntN(50) == 0 {
				base += rnd.Uint64N(4 * windowSize)
			}
			seen, took := w.hasSeen(seq), w.take(seq)
			if seen == took {
				t.Fatalf("seen and take are both %v for %d", seen, seq)
			}
			if took && taken[seq] {
				t.Fatalf("%d was accepted twice", seq)
			}
			if !took && !taken[seq] && newest-seq < windowSize {
				t.Fatalf("%d refused, %d behind the newest", seq, newest-seq)
			}
			taken[seq] = taken[seq] || took
			newest = max(newest, seq)
		}
	}
}

func TestWindowEdges(t *testing.T) {
	t.Parallel()
	if windowSize < 128 {
		t.Fatalf("the window is %d wide", windowSize)
	}
	const last = 1<<seqBits - 1
	for _, seq := range []uint64{0, 1, 15, 16, 255, 256, last - 1, last} {
		var w window
		if w.hasSeen(seq) || !w.take(seq) || !w.hasSeen(seq) || w.take(seq) {
			t.Errorf("%d is not accepted exactly once", seq)
		}
	}
	var w window
	w.take(last)
	if !w.hasSeen(last-256) || w.take(last-256) {
		t.Error("a record is taken in whose place there is a newer one")
	}
}

func TestWindowConcurrent(t *testing.T) {
	t.Parallel()
	var w window
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for seq := range uint64(windowSize) {
				if w.take(seq) {
					won.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if won.Load() != windowSize {
		t.Fatalf("%d were taken, want %d", won.Load(), windowSize)
	}
}

// TestNonces: no two records of a direction have the same explicit nonce: with AES-GCM a repeated
// one reveals the plain text and the key of the tags.
func TestNonces(t *testing.T) {
	t.Parallel()
	const routines, each = 4, 500
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	serial := checkEcho(t, p, testID(1)).Serial
	var mu sync.Mutex
	nonces := make(map[uint64]bool)
	var wg sync.WaitGroup
	for range routines {
		wg.Go(func() {
			for range each {
				b, _, ok := g.Seal(nil, serial, []byte("x"))
				nonce := binary.BigEndian.Uint64(b[headerLen:])
				mu.Lock()
				if !ok || nonces[nonce] || nonce != binary.BigEndian.Uint64(b[3:]) || nonce>>seqBits != epoch1 {
					t.Errorf("nonce %x in % x, was there before: %v", nonce, b, nonces[nonce])
				}
				nonces[nonce] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestSequenceEnds: when the numbers of a session are used up nothing more is sealed.
func TestSequenceEnds(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	serial := checkEcho(t, p, testID(1)).Serial
	s := g.table.serial(serial)
	s.sent.Store(1<<seqBits - 1)
	b, _, ok := g.Seal(nil, serial, []byte("the last"))
	if !ok || p.open(b) != "the last" {
		t.Fatal("the last number was not used")
	}
	for range 3 {
		if b, _, ok := g.Seal([]byte("kept"), serial, []byte("x")); ok || string(b) != "kept" {
			t.Fatalf("sealed beyond the last number: % x", b)
		}
	}
}

func TestFreshKeys(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, direct := range []int{0, -1} {
		g := newRig(t, Config{direct: direct})
		for i := range 20 {
			from := home
			from.Lo += uint64(i)
			p := newPeer(g, from, 1)
			p.random = [randomLen]byte{1}
			mustConnect(t, p)
			salts := string(p.keys.in.salt[:]) + string(p.keys.out.salt[:])
			random := string(p.flight[messageHeaderLen+2 : messageHeaderLen+2+randomLen])
			if seen[random] || seen[salts] || random == string(make([]byte, randomLen)) {
				t.Fatalf("handshake %d: the random % x or the keys came before", i, random)
			}
			seen[random], seen[salts] = true, true
		}
	}
}

// TestDirections: our own record is not accepted as one of the client.
func TestDirections(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	s := checkEcho(t, p, testID(1))
	for range 50 {
		b, _, _ := g.Seal(nil, s.Serial, []byte("down"))
		if _, msg := g.Open(home, b); msg != nil {
			t.Fatal("our own record was accepted")
		}
	}
	g.wantCounts(map[event]uint64{dropUndecryptable: 50, dropReplayed: 0})
}

// TestConcurrent: many workers open and seal for one session while others are added and removed.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const routines, each = 4, 200
	g := newRig(t, Config{quiet: time.Millisecond})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	serial := checkEcho(t, p, testID(1)).Serial
	var records [][]byte
	for range windowSize / 2 {
		records = append(records, p.seal("x"))
	}
	var opened atomic.Int64
	var mu sync.Mutex
	numbers := make(map[string]bool)
	var wg sync.WaitGroup
	for range routines {
		wg.Go(func() {
			for _, b := range records {
				if s, _ := g.Open(home, bytes.Clone(b)); s.Serial == serial {
					opened.Add(1)
				}
			}
			out := make([]byte, 0, 100+driver.RecordOverhead)
			for range each {
				b, _, _ := g.Seal(out, serial, []byte("y"))
				mu.Lock()
				numbers[string(b[3:11])] = true
				mu.Unlock()
				g.Alive(home)
				g.stats()
			}
		})
	}
	other := newPeer(g, at("192.0.2.9:1"), 2)
	mustConnect(t, other)
	for range 10 {
		next := newPeer(g, other.from, 2)
		g.wait("an answer", next.start)
		if !next.accepted(g.put(next.from, append(next.wrap(next.exchange()), next.finished()...))) {
			t.Error("no session")
		}
	}
	wg.Wait()
	if opened.Load() != int64(len(records)) {
		t.Errorf("%d of %d records were opened", opened.Load(), len(records))
	}
	if len(numbers) != routines*each {
		t.Errorf("%d numbers for %d records", len(numbers), routines*each)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	tb := newTable(64, 64)
	var all []*session
	serials := make(map[uint64]bool)
	for round := range 3 {
		all = all[:0]
		for i := range 64 {
			s := &session{id: testID(i % 3), from: at("192.0.2.1:1")}
			s.from.Lo += uint64(i)
			s.lastReceived.Store(int64(i))
			if _, ok := tb.add(s, boundRelay{}, 0, func() {}); !ok || serials[s.serial] {
				t.Fatalf("round %d: session %d: %v", round, i, ok)
			}
			serials[s.serial] = true
			all = append(all, s)
		}
		if _, ok := tb.add(&session{from: home}, boundRelay{}, 0, func() {}); ok {
			t.Fatal("one too many")
		}
		for since := range 65 {
			if idle, unbound := tb.sweep(boundRelay{}, 0, int64(since)); idle != min(since, 1) || unbound != 0 {
				t.Fatalf("%d and %d are taken out at %d", idle, unbound, since)
			}
			for i, s := range all {
				alive := i >= since
				if (tb.source(s.from) == s) != alive || (tb.serial(s.serial) == s) != alive {
					t.Fatalf("session %d at %d", i, since)
				}
			}
		}
		if len(tb.ids) != 0 || tb.sessions.Load() != 0 {
			t.Fatalf("left: %d, %d", len(tb.ids), tb.sessions.Load())
		}
	}
}
