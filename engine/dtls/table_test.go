package dtls

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/proto"
)

var home = at("192.0.2.1:4000")

func TestHandshake(t *testing.T) {
	t.Parallel()
	id := testID(3)
	text := id.String()
	for _, c := range []struct {
		name     string
		identity string
		suites   []uint16
		plain    bool // neither extensions nor, then, a direct answer
		direct   int
	}{
		{name: "raw", identity: string(id[:]), suites: []uint16{0xA8}},
		{name: "text", identity: text, suites: []uint16{0xA8}},
		{name: "upper case", identity: strings.ToUpper(text), suites: []uint16{0xA8}},
		{name: "no hyphens", identity: strings.ReplaceAll(text, "-", ""), suites: []uint16{0xA8}},
		{name: "256", identity: text, suites: []uint16{0xA9}},
		{name: "preferred", identity: text, suites: []uint16{0xC0A4, 0xA9, 0xA8}},
		{name: "cookie", identity: text, suites: []uint16{0xA8}, direct: -1},
		{name: "cookie 256", identity: text, suites: []uint16{0xA9}, direct: -1},
		{name: "no extensions", identity: text, suites: []uint16{0xA8}, plain: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{direct: c.direct})
			p := newPeer(g, home, 3)
			p.identity, p.suites, p.plain = []byte(c.identity), c.suites, c.plain
			mustConnect(t, p)
			checkEcho(t, p, id)
			cookies := uint64(0)
			if c.plain || c.direct < 0 {
				cookies = 1
			}
			g.wantCounts(map[event]uint64{eventEstablished: 1, eventAnswered: 1, eventCookieSent: cookies})
			if st := g.stats(); st.HalfOpen != 0 || st.Direct != 0 || st.Sessions != 1 {
				t.Errorf("left: %+v", st)
			}
		})
	}
}

func checkEcho(t *testing.T, p *peer, id proto.AllocationID) driver.Session {
	t.Helper()
	s, msg := p.g.Open(p.from, p.seal("ahoy"))
	if s.ID != id || string(msg) != "ahoy" {
		t.Fatalf("opened %q of %v", msg, s)
	}
	out, to, ok := p.g.Seal(nil, s.Serial, msg)
	if !ok || to != p.from {
		t.Fatalf("sealed to %v: %v", to, ok)
	}
	if got := p.open(out); got != "ahoy" {
		t.Fatalf("received %q", got)
	}
	return s
}

func TestNoSession(t *testing.T) {
	t.Parallel()
	id := testID(3)
	for _, c := range []struct {
		name     string
		identity string
		key      byte
		reason   event
	}{
		{"wrong key", string(id[:]), 1, dropKey},
		{"short identity", "player", 0, dropIdentity},
		{"misplaced hyphens", "010000030-900-0000-0000-000000000007", 0, dropIdentity},
		{"no hexadecimal", strings.Repeat("x", 32), 0, dropIdentity},
		{"empty", "", 0, dropIdentity},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{})
			p := newPeer(g, home, 3)
			p.identity = []byte(c.identity)
			p.key[5] ^= c.key
			if p.connect() || g.Alive(home) {
				t.Fatal("there is a session")
			}
			g.wantCounts(map[event]uint64{c.reason: 1, eventEstablished: 0})
		})
	}
}

func TestForgedExchange(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p, forger := newPeer(g, home, 1), newPeer(g, home, 2)
	if !p.start() {
		t.Fatal("no answer")
	}
	forged := append(p.wrap(forger.exchange()), appendPlain(nil, typeAlert, version12, 9, []byte{2, 40})...)
	b := append(p.wrap(p.exchange()), p.finished()...)
	if got := g.put(home, append(forged, b[len(b)-61:]...)); got != nil {
		t.Fatalf("answered % x", got)
	}
	if !p.accepted(g.put(home, append(p.wrap(p.exchange()), p.repeatFinished()...))) {
		t.Fatal("no session")
	}
	g.wantCounts(map[event]uint64{dropKey: 1, dropAlert: 1})
}

func TestReplayAndReorder(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	var records [][]byte
	for range windowSize {
		records = append(records, p.seal("x"))
	}
	for i := len(records) - 1; i >= 0; i-- {
		if _, msg := g.Open(home, bytes.Clone(records[i])); string(msg) != "x" {
			t.Fatalf("record %d, out of order, is refused", i)
		}
	}
	for i := range records {
		if _, msg := g.Open(home, bytes.Clone(records[i])); msg != nil {
			t.Fatalf("record %d is accepted twice", i)
		}
	}
	old := p.seal("old")
	for range 2 * windowSize {
		g.Open(home, p.seal("y"))
	}
	if _, msg := g.Open(home, old); msg != nil {
		t.Fatal("a record from before the window is taken")
	}
	g.wantCounts(map[event]uint64{dropReplayed: windowSize + 1, dropUndecryptable: 0})
}

func TestUndecryptable(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	whole := p.seal("hello")
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 0x40
		if s, msg := g.Open(home, b); msg != nil || s != (driver.Session{}) {
			t.Errorf("taken with byte %d changed", i)
		}
	}
	for n := range whole {
		if _, msg := g.Open(home, bytes.Clone(whole[:n])); msg != nil {
			t.Errorf("taken with %d bytes", n)
		}
	}
	g.settle()
	if got := g.take(home); got != nil {
		t.Fatalf("answered % x", got)
	}
	if _, msg := g.Open(at("192.0.2.1:4001"), bytes.Clone(whole)); msg != nil {
		t.Error("taken from another port")
	}
	if _, msg := g.Open(home, whole); string(msg) != "hello" {
		t.Error("the session did not survive")
	}
}

func TestTrailing(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	if _, msg := g.Open(home, append(p.seal("one"), p.seal("two")...)); string(msg) != "one" {
		t.Fatalf("opened %q", msg)
	}
	g.wantCounts(map[event]uint64{dropTrailing: 1})
}

// TestLostFinished: the client repeats its last flight until it has ours.
func TestLostFinished(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	again := append(p.wrap(p.exchange()), p.repeatFinished()...)
	if !p.accepted(g.put(home, again)) {
		t.Fatal("not sent again")
	}
	if got := g.put(home, again); got != nil {
		t.Fatalf("a replay was answered: % x", got)
	}
	g.wantCounts(map[event]uint64{eventEstablished: 1, eventResent: 1, dropReplayed: 1})
	checkEcho(t, p, testID(1))
}

func TestRenegotiation(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	b, _ := p.s.seal(nil, typeHandshake, appendMessage(nil, msgClientHello, 3, []byte{0xFE, 0xFD}))
	if got := g.put(home, b); got != nil {
		t.Fatalf("answered % x", got)
	}
	g.wantCounts(map[event]uint64{dropUnexpected: 1})
	checkEcho(t, p, testID(1))
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		alert []byte
		ends  bool
	}{
		{"close_notify", []byte{1, 0}, true},
		{"fatal", []byte{2, 40}, true},
		{"warning", []byte{1, 100}, false},
		{"malformed", []byte{2}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{})
			p := newPeer(g, home, 1)
			mustConnect(t, p)
			if got := g.put(home, appendPlain(nil, typeAlert, version12, 7, c.alert)); got != nil || !g.Alive(home) {
				t.Fatalf("a plain alert was accepted: % x", got)
			}
			b, _ := p.s.seal(nil, typeAlert, c.alert)
			if got := g.put(home, b); got != nil {
				t.Fatalf("answered % x", got)
			}
			if g.Alive(home) == c.ends {
				t.Fatalf("alive: %v", !c.ends)
			}
			if c.ends {
				g.wait("the sweep", func() bool { return g.stats().Sessions == 0 })
				g.wantCounts(map[event]uint64{eventClosed: 1, eventIdle: 0})
			}
		})
	}
}

func TestIdle(t *testing.T) {
	t.Parallel()
	// So long that a slow machine does not silence the talking one.
	g := newRig(t, Config{Idle: 4 * time.Second})
	talking, silent := newPeer(g, home, 1), newPeer(g, at("192.0.2.2:4000"), 2)
	mustConnect(t, talking)
	mustConnect(t, silent)
	s := checkEcho(t, silent, testID(2))
	g.wait("the silent one to end", func() bool {
		g.Open(home, talking.seal("still here"))
		g.Open(silent.from, []byte("\x17\xFE\xFD\x00\x01 junk from the same source"))
		return !g.Alive(silent.from)
	})
	if !g.Alive(home) {
		t.Fatal("the talking one ended")
	}
	if _, _, ok := g.Seal(nil, s.Serial, []byte("x")); ok {
		t.Fatal("sealed for a session that has ended")
	}
	g.wait("the count", func() bool { return g.stats().Counts[eventIdle] == 1 })
	g.wantCounts(map[event]uint64{eventIdle: 1, eventClosed: 0})
}

// TestProbes: hellos beside a session that is in use are not answered.
func TestProbes(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{quiet: time.Minute})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	s := checkEcho(t, p, testID(1))
	for range 20 {
		probe := newPeer(g, home, 1)
		for range 2 {
			if got := g.put(home, probe.hello(nil)); got != nil {
				t.Fatalf("answered % x", got)
			}
		}
		if s != checkEcho(t, p, testID(1)) {
			t.Fatal("another session")
		}
	}
	g.wantCounts(map[event]uint64{dropQuiet: 40, eventEstablished: 1, eventTakenOver: 0, eventCookieSent: 0})
}

// TestProbeStartsAnew: an authentic record ends the wait of a hello before it,
// however long ago that was.
func TestProbeStartsAnew(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{quiet: time.Minute})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	g.put(home, newPeer(g, home, 1).hello(nil))
	s := g.table.source(home)
	s.helloTime.Add(-int64(2 * time.Minute))
	checkEcho(t, p, testID(1))
	if got := g.put(home, newPeer(g, home, 1).hello(nil)); got != nil {
		t.Fatalf("answered % x", got)
	}
	s.helloTime.Add(-int64(2 * time.Minute))
	if got := g.put(home, newPeer(g, home, 1).hello(nil)); len(got) != 1 {
		t.Fatal("not answered after the wait")
	}
}

// TestTakeOver: the old session ends when the new one is established, not before.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	for name, direct := range map[string]int{"direct": 0, "cookie": -1} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, Config{quiet: time.Millisecond, direct: direct})
			old := newPeer(g, home, 1)
			mustConnect(t, old)
			was := checkEcho(t, old, testID(1))
			p := newPeer(g, home, 2)
			g.wait("an answer", p.start)
			if was != checkEcho(t, old, testID(1)) {
				t.Fatal("the old session changed")
			}
			if !p.accepted(g.put(home, append(p.wrap(p.exchange()), p.finished()...))) {
				t.Fatal("no session")
			}
			is := checkEcho(t, p, testID(2))
			if is.Serial == was.Serial {
				t.Fatal("a serial was used again")
			}
			if _, _, ok := g.Seal(nil, was.Serial, []byte("x")); ok {
				t.Fatal("the old session has not ended")
			}
			if _, msg := g.Open(home, old.seal("x")); msg != nil {
				t.Fatal("the old session is accepted")
			}
			g.wantCounts(map[event]uint64{eventTakenOver: 1, eventEstablished: 2})
			if n := g.stats().Sessions; n != 1 {
				t.Fatalf("%d sessions", n)
			}
		})
	}
}

// TestKeepsSerial: a new session of the same allocation at the same source keeps the binding.
func TestKeepsSerial(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{quiet: time.Millisecond})
	old := newPeer(g, home, 1)
	mustConnect(t, old)
	was := checkEcho(t, old, testID(1))
	for range 3 {
		p := newPeer(g, home, 1)
		g.wait("an answer", p.start)
		if !p.accepted(g.put(home, append(p.wrap(p.exchange()), p.finished()...))) {
			t.Fatal("no session")
		}
		b, to, ok := g.Seal(nil, was.Serial, []byte("from the game"))
		if !ok || to != home || p.open(b) != "from the game" {
			t.Fatal("what is for the old session does not reach the new one")
		}
		if is := checkEcho(t, p, testID(1)); is != was {
			t.Fatalf("%v became %v", was, is)
		}
		if _, msg := g.Open(home, old.seal("x")); msg != nil {
			t.Fatal("the old keys are accepted")
		}
		old = p
	}
	g.wantCounts(map[event]uint64{eventTakenOver: 3, eventEstablished: 4})
	if n := g.stats().Sessions; n != 1 {
		t.Fatalf("%d sessions", n)
	}
	bye, _ := old.s.seal(nil, typeAlert, []byte{1, alertCloseNotify})
	g.put(home, bye)
	fresh := newPeer(g, home, 1)
	mustConnect(t, fresh)
	if is := checkEcho(t, fresh, testID(1)); is.Serial == was.Serial {
		t.Fatal("a session that its client ended came to life again")
	}
}

// TestCookieOverSession: a session continues until a handshake with a cookie is finished.
func TestCookieOverSession(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{quiet: time.Minute, direct: -1})
	p := newPeer(g, home, 1)
	got := g.put(home, p.hello(nil))
	if len(got) != 1 || cookieIn(got[0]) == nil {
		t.Fatalf("answered % x", got)
	}
	old := newPeer(g, home, 2)
	mustConnect(t, old)
	p.seq++
	if !p.answered(g.put(home, p.hello(cookieIn(got[0])))) {
		t.Fatal("no answer")
	}
	checkEcho(t, old, testID(2))
	if !p.accepted(g.put(home, append(p.wrap(p.exchange()), p.finished()...))) {
		t.Fatal("no session")
	}
	checkEcho(t, p, testID(1))
}

// TestRoaming: the same identity from elsewhere is another session.
func TestRoaming(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p, moved := newPeer(g, home, 1), newPeer(g, at("[2001:db8::1]:9"), 1)
	mustConnect(t, p)
	mustConnect(t, moved)
	if checkEcho(t, p, testID(1)).Serial == checkEcho(t, moved, testID(1)).Serial {
		t.Fatal("one serial for two sessions")
	}
}

// TestHelloOverHandshake: another hello needs a cookie, so that a forged one cannot replace it.
func TestHelloOverHandshake(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p, forger := newPeer(g, home, 1), newPeer(g, home, 2)
	if !p.start() {
		t.Fatal("no answer")
	}
	got := g.put(home, forger.hello(nil))
	if len(got) != 1 || cookieIn(got[0]) == nil {
		t.Fatalf("answered % x", got)
	}
	if !p.accepted(g.put(home, append(p.wrap(p.exchange()), p.finished()...))) {
		t.Fatal("no session")
	}
}

func TestHelloAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	if !p.start() {
		t.Fatal("no answer")
	}
	flight := string(p.flight)
	for range 3 {
		if got := g.put(home, p.wrap(p.first)); !p.answered(got) || string(p.flight) != flight {
			t.Fatalf("answered % x", got)
		}
	}
	small := *p
	small.plain = true
	if got := g.put(home, small.hello(nil)); got != nil {
		t.Fatalf("a smaller one with the same random was answered: % x", got)
	}
	if !p.accepted(g.put(home, append(p.wrap(p.exchange()), p.finished()...))) {
		t.Fatal("no session")
	}
	g.wantCounts(map[event]uint64{eventAnswered: 1, eventResent: 3, dropLargeAnswer: 1, eventEstablished: 1})
}
