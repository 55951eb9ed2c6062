package dtls

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// starts counts the answered hellos of some sources that repeat them with a cookie
// on request.
func starts(g *rig, sources []endpoint.Endpoint) (answered int) {
	g.t.Helper()
	for i, from := range sources {
		if newPeer(g, from, i).start() {
			answered++
		}
	}
	return answered
}

func sourcesOf(n int, format string) (out []endpoint.Endpoint) {
	for i := range n {
		out = append(out, at(fmt.Sprintf(format, i+1)))
	}
	return out
}

func TestHalfOpenPerPrefix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, format string
		want         int
	}{
		{"ports of one IPv4 address", "192.0.2.1:%d", 8},
		{"addresses of one /24", "192.0.2.%d:7", 20},
		{"addresses of one /64", "[2001:db8::%x]:7", 8},
		{"networks of one /56", "[2001:db8:0:%x::1]:7", 8},
		{"networks of one /48", "[2001:db8:0:%x00::1]:7", 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{halfOpenPerPrefix: 8})
			if got := starts(g, sourcesOf(20, c.format)); got != 20 {
				t.Fatalf("%d were answered", got)
			}
			if n := g.stats().HalfOpen; n != c.want {
				t.Fatalf("%d are half open, want %d", n, c.want)
			}
			g.wantCounts(map[event]uint64{eventEvicted: uint64(20 - c.want)})
			mustConnect(t, newPeer(g, at("203.0.113.1:1"), 1))
		})
	}
}

// TestForgedPrefix: forged hellos do not use up the limit of a prefix.
func TestForgedPrefix(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{halfOpenPerPrefix: 8})
	for i := range 100 {
		g.put(at(fmt.Sprintf("192.0.2.1:%d", 100+i)), newPeer(g, home, i).hello(nil))
	}
	if st := g.stats(); st.HalfOpen != 4 || st.Direct != 4 {
		t.Fatalf("%+v", st)
	}
	mustConnect(t, newPeer(g, home, 1))
}

func TestHalfOpenInAll(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{halfOpen: 10, direct: 4, handshakeTimeout: time.Minute, workers: 1})
	if got := starts(g, sourcesOf(10, "192.0.2.%d:7")); got != 10 {
		t.Fatalf("%d were answered", got)
	}
	if st := g.stats(); st.HalfOpen != 10 || st.Direct != 4 || st.Counts[eventCookieSent] != 6 {
		t.Fatalf("%+v", st)
	}
	forge := func() { // Without a cookie there is no room left.
		for i := range 100 {
			g.put(at(fmt.Sprintf("203.0.113.%d:9", 1+i)), newPeer(g, home, i).hello(nil))
		}
	}
	forge()
	if st := g.stats(); st.HalfOpen != 10 || st.Direct != 4 || st.Counts[eventEvicted] != 0 {
		t.Fatalf("%+v", st)
	}
	last := newPeer(g, home, 1)
	if got := starts(g, sourcesOf(40, "198.51.100.%d:7")); got != 40 || !last.start() {
		t.Fatalf("%d were answered", got)
	}
	forge()
	st := g.stats()
	if st.HalfOpen != 10 || st.Direct != 0 || st.Counts[eventEvicted] != 41 || st.Counts[dropHalfOpenFull] != 0 {
		t.Fatalf("%+v", st)
	}
	starts(g, sourcesOf(9, "198.51.100.%d:8"))
	if !last.accepted(g.put(home, append(last.wrap(last.exchange()), last.finished()...))) {
		t.Fatal("one that nine others came after is not half open any more")
	}
}

// TestNothingToEvict: above the limit hellos are dropped.
func TestNothingToEvict(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{halfOpen: 10, direct: -1})
	g.halfOpen.Add(10)
	if newPeer(g, home, 1).start() {
		t.Fatal("answered")
	}
	g.wantCounts(map[event]uint64{dropHalfOpenFull: 1, eventEvicted: 0})
	g.halfOpen.Add(-10)
	mustConnect(t, newPeer(g, home, 1))
}

func TestHandshakeTimeout(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{halfOpen: 10, direct: 4, handshakeTimeout: 200 * time.Millisecond})
	starts(g, sourcesOf(10, "192.0.2.%d:7"))
	// A handshake is removed before its timeout is counted.
	g.wait("the time-outs", func() bool {
		st := g.stats()
		return st.HalfOpen == 0 && st.Counts[eventTimedOut] == st.Counts[eventAnswered]
	})
	if st := g.stats(); st.Direct != 0 || st.Counts[eventTimedOut] != st.Counts[eventAnswered] {
		t.Fatalf("%+v", st)
	}
	late := newPeer(g, home, 1)
	late.flight = appendServerFlight(nil, &hello{}, &suites[0], 0, make([]byte, randomLen))
	if got := g.put(home, append(late.wrap(late.exchange()), late.finished()...)); got != nil {
		t.Fatalf("a handshake that is over was answered: % x", got)
	}
	g.wantCounts(map[event]uint64{dropStray: 2, eventEstablished: 0})
}

func TestSessionsInAll(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{MaxSessions: 2, quiet: time.Millisecond, Idle: 4 * time.Second})
	sources := sourcesOf(3, "192.0.2.%d:7")
	first := newPeer(g, sources[0], 0)
	mustConnect(t, first)
	mustConnect(t, newPeer(g, sources[1], 1))
	if newPeer(g, sources[2], 2).connect() {
		t.Fatal("a third session")
	}
	g.wantCounts(map[event]uint64{dropSessionsFull: 1})
	checkEcho(t, first, testID(0))
	again := newPeer(g, sources[0], 0)
	g.wait("an answer", again.start)
	if !again.accepted(g.put(again.from, append(again.wrap(again.exchange()), again.finished()...))) {
		t.Fatal("a full table does not let a session be replaced")
	}
	g.wait("room", func() bool { return newPeer(g, sources[2], 2).connect() })
}

// TestPerIdentity: the sessions of one identity are limited; the one that was silent
// for longest ends.
func TestPerIdentity(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{perIdentity: 2})
	sources := sourcesOf(20, "192.0.2.%d:7")
	for _, from := range sources {
		mustConnect(t, newPeer(g, from, 5))
	}
	if n := g.stats().Sessions; n != 2 {
		t.Fatalf("%d sessions", n)
	}
	if !g.Alive(sources[19]) || !g.Alive(sources[18]) || g.Alive(sources[17]) {
		t.Fatal("not the latest two are left")
	}
	g.wantCounts(map[event]uint64{eventSessionLimit: 18})
}

func TestEndedFirst(t *testing.T) {
	t.Parallel()
	tb := newTable(64, 3)
	add := func(n int, heard int64) *session {
		s := &session{id: testID(1), from: home}
		s.from.Lo += uint64(n)
		s.lastReceived.Store(heard)
		if _, ok := tb.add(s, boundRelay{}, 0, func() {}); !ok {
			t.Fatal("no room")
		}
		return s
	}
	quiet, gone, last := add(1, 1), add(2, 2), add(3, 3)
	gone.ended.Store(true)
	next := add(4, 4)
	for _, s := range []*session{quiet, last, next} {
		if tb.source(s.from) != s {
			t.Errorf("the session that received at %d has ended", s.lastReceived.Load())
		}
	}
	if n := tb.sessions.Load(); n != 3 {
		t.Errorf("%d sessions are counted", n)
	}
}

func TestQueue(t *testing.T) {
	t.Parallel()
	r, err := newLayer(Config{queue: 10, workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, layer: r}
	hello := newPeer(g, home, 1).hello(nil)
	for i := range 55 {
		from := home
		from.Lo += uint64(i)
		r.Open(from, hello)
	}
	r.Open(home, append(hello, make([]byte, maxHandshakeDatagram)...))
	g.wantCounts(map[event]uint64{dropQueue: 15, dropOversize: 1})
}

// TestDerivations: forged messages cost few derivations, with a cookie those of retryRate.
func TestDerivations(t *testing.T) {
	t.Parallel()
	for _, direct := range []int{0, -1} {
		start := time.Now()
		g := newRig(t, Config{handshakeTimeout: time.Minute, direct: direct})
		p := newPeer(g, home, 1)
		p.key[0] ^= 1
		if !p.start() {
			t.Fatal("no answer")
		}
		p.finished()
		for range 20 {
			p.identity[7]++
			for range 2 {
				g.put(home, append(p.wrap(p.exchange()), p.repeatFinished()...))
			}
		}
		most := maxDerivations
		if direct < 0 {
			most += int(time.Since(start).Microseconds()/retryRate.IntervalMicros) + 1
		}
		derived := int(g.derived.Load())
		if derived < maxDerivations || derived > most || g.stats().Counts[dropAttempts] == 0 {
			t.Errorf("direct %d: %d derivations, %v", direct, derived, g.stats())
		}
		mustConnect(t, newPeer(g, at("192.0.2.1:4001"), 1))
	}
}

// TestDerivationsOfPrefix: a prefix with many handshakes gets deriveRate.
func TestDerivationsOfPrefix(t *testing.T) {
	t.Parallel()
	var l limits
	prefix, other := at("192.0.2.1:1").Network(), at("192.0.2.2:1").Network()
	derived := 0
	for range 3 * deriveRate.Burst {
		if l.takeDerivation(prefix, 0) {
			derived++
		}
	}
	if derived != int(deriveRate.Burst) || !l.takeDerivation(other, 0) {
		t.Errorf("%d derivations", derived)
	}
}

func fragments(p *peer, m []byte, size int) (out [][]byte) {
	body := m[messageHeaderLen:]
	for at := 0; at < len(body); at += size {
		part := body[at:min(at+size, len(body))]
		f := appendMessageHeader(nil, m[0], binary.BigEndian.Uint16(m[4:]), len(body))
		f[8] = byte(at)
		f[11] = byte(len(part))
		out = append(out, p.wrap(append(f, part...)))
	}
	return out
}

func TestFragments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		cap   int
		size  int
		order func([][]byte) [][]byte
		want  bool
		drops uint64
	}{
		{"small", 0, 5, nil, true, 0},
		{"repeated from the start", 0, 7, func(f [][]byte) [][]byte { return append(f[:2:2], f...) }, true, 0},
		{"each twice", 0, 6, func(f [][]byte) [][]byte { return append(f, f[1:]...) }, true, 2},
		{"one missing", 0, 6, func(f [][]byte) [][]byte { return append(f[:1:1], f[2:]...) }, false, 1},
		{"beyond the cap", 17, 6, nil, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{fragmentCap: c.cap})
			p := newPeer(g, home, 1)
			if !p.start() {
				t.Fatal("no answer")
			}
			all := fragments(p, p.exchange(), c.size)
			if c.order != nil {
				all = c.order(all)
			}
			for _, f := range all {
				g.put(home, f)
			}
			if got := p.accepted(g.put(home, p.finished())); got != c.want {
				t.Fatalf("a session: %v", got)
			}
			g.wantCounts(map[event]uint64{dropFragments: c.drops})
		})
	}
}

func TestHelloInFragments(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	p.hello(nil)
	for _, f := range fragments(p, p.first, 30) {
		if got := g.put(home, f); got != nil {
			t.Fatalf("answered % x", got)
		}
	}
	g.wantCounts(map[event]uint64{eventHello: 0, dropFragments: 3})
}

// TestCookie: a cookie is valid for its source and its hello, for two time slots.
func TestCookie(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	p.hello(nil)
	h, ok := parseHello(p.first[messageHeaderLen:])
	if !ok {
		t.Fatal("no hello")
	}
	c, other := newCookies(), newCookies()
	now := time.Now()
	cookie := bytes.Clone(c.make(home, &h, now))
	p.hello(cookie)
	with, ok := parseHello(p.first[messageHeaderLen:])
	if !ok {
		t.Fatal("no hello with a cookie")
	}
	for _, x := range []struct {
		name string
		by   *cookies
		from string
		at   time.Duration
		want bool
	}{
		{"at once", &c, "192.0.2.1:4000", 0, true},
		{"in the next slot", &c, "192.0.2.1:4000", cookieSlot, true},
		{"later", &c, "192.0.2.1:4000", 2 * cookieSlot, false},
		{"another port", &c, "192.0.2.1:4001", 0, false},
		{"another address", &c, "192.0.2.2:4000", 0, false},
		{"another process", &other, "192.0.2.1:4000", 0, false},
	} {
		if got := x.by.isValid(at(x.from), &with, now.Add(x.at)); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	p.random[3] ^= 1
	p.hello(cookie)
	if with, _ = parseHello(p.first[messageHeaderLen:]); c.isValid(home, &with, now) {
		t.Error("valid for another hello")
	}
}

// TestInvalidCookie: it is answered with a new one, as RFC 6347 4.2.1 requires.
func TestInvalidCookie(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	got := g.put(home, p.hello(make([]byte, cookieLen)))
	if len(got) != 1 || cookieIn(got[0]) == nil {
		t.Fatalf("answered % x", got)
	}
	p.seq++
	if !p.answered(g.put(home, p.hello(cookieIn(got[0])))) {
		t.Fatal("the new cookie is not valid")
	}
	g.wantCounts(map[event]uint64{dropCookie: 1, eventCookieSent: 1, eventAnswered: 1})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestFlood replays one ClientHello: memory does not grow, and honest clients can connect.
func TestFlood(t *testing.T) {
	floodSize := 100_000
	if testkit.RaceEnabled && testing.Short() {
		floodSize = 20_000
	}
	for _, c := range []struct {
		name   string
		source func(i int) endpoint.Endpoint
	}{
		{"from forged sources", func(i int) endpoint.Endpoint {
			e := home
			e.Lo = uint64(10<<24 + i)
			return e
		}},
		{"from forged ports", func(i int) endpoint.Endpoint {
			e := home
			e.Lo = 10 << 24
			e.Tail = e.Tail&^0xFFFF | uint64(i&0xFFFF)
			return e
		}},
		{"from its source", func(int) endpoint.Endpoint { return at("10.0.0.1:5") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{})
			hello := newPeer(g, home, 1).hello(nil)
			flood := func(n int) {
				for i := range n {
					g.Open(c.source(i), hello)
					if i%200 == 0 {
						g.settle()
					}
				}
				g.settle()
				g.mu.Lock()
				g.got = make(map[endpoint.Endpoint][][]byte) // An emptied one keeps its size.
				g.mu.Unlock()
			}
			flood(2000)
			before, routines := heap(), runtime.NumGoroutine()
			for i := range 10 {
				flood(floodSize / 10)
				mustConnect(t, newPeer(g, home, i))
				g.table.source(home).ended.Store(true)
			}
			after := heap()
			if after > before+1<<20 {
				t.Errorf("the heap grew from %d to %d bytes", before, after)
			}
			// One of an earlier test, or of the runtime, may be there for a moment.
			testkit.Eventually(t, "the goroutines of before", func() bool { return runtime.NumGoroutine() <= routines })
			st := g.stats()
			if st.Direct > 256 || st.HalfOpen > 256 {
				t.Errorf("%+v", st)
			}
			if n := st.Counts[eventHello] + st.Counts[dropQueue] + st.Counts[dropHelloRate]; n < uint64(floodSize) {
				t.Errorf("only %d hellos", n)
			}
			runtime.KeepAlive(g)
		})
	}
}

func TestFloodWithCookies(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	for i := range 2000 {
		e := at("10.0.0.1:5")
		e.Tail = e.Tail&^0xFFFF | uint64(i+1)
		newPeer(g, e, i).start()
	}
	if st := g.stats(); st.HalfOpen != 64 {
		t.Fatalf("%+v", st)
	}
	mustConnect(t, newPeer(g, home, 1))
}
