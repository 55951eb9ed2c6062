package dtls

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

var home = at("192.0.2.1:4000")

func TestHandshake(t *testing.T) {
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
			g := newRig(t, Config{Direct: c.direct})
			p := newPeer(g, home, 3)
			p.identity, p.suites, p.plain = []byte(c.identity), c.suites, c.plain
			mustConnect(t, p)
			checkEcho(t, p, id)
			cookies := uint64(0)
			if c.plain || c.direct < 0 {
				cookies = 1
			}
			g.wantCounts(map[Event]uint64{Established: 1, Answered: 1, CookieSent: cookies})
			if st := g.Stats(); st.HalfOpen != 0 || st.Direct != 0 || st.Sessions != 1 {
				t.Errorf("left: %+v", st)
			}
		})
	}
}

// checkEcho sends a message each way.
func checkEcho(t *testing.T, p *peer, id proto.AllocationID) engine.Session {
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
	id := testID(3)
	for _, c := range []struct {
		name     string
		identity string
		key      byte
		reason   Event
	}{
		{"wrong key", string(id[:]), 1, DropKey},
		{"unknown allocation", "\xEE" + string(id[1:]), 0, DropIdentity},
		{"short identity", "player", 0, DropIdentity},
		{"misplaced hyphens", "010000030-900-0000-0000-000000000007", 0, DropIdentity},
		{"no hexadecimal", strings.Repeat("x", 32), 0, DropIdentity},
		{"empty", "", 0, DropIdentity},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{})
			p := newPeer(g, home, 3)
			p.identity = []byte(c.identity)
			p.key[5] ^= c.key
			if p.connect() || g.Alive(home) {
				t.Fatal("there is a session")
			}
			g.wantCounts(map[Event]uint64{c.reason: 1, Established: 0})
		})
	}
}

// TestForgedExchange: a forged ClientKeyExchange does not block the genuine client.
func TestForgedExchange(t *testing.T) {
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
	g.wantCounts(map[Event]uint64{DropKey: 1, DropAlert: 1})
}

func TestReplayAndReorder(t *testing.T) {
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
	g.wantCounts(map[Event]uint64{DropReplayed: windowSize + 1, DropUndecryptable: 0})
}

func TestUndecryptable(t *testing.T) {
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	whole := p.seal("hello")
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 0x40
		if s, msg := g.Open(home, b); msg != nil || s != (engine.Session{}) {
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
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	if _, msg := g.Open(home, append(p.seal("one"), p.seal("two")...)); string(msg) != "one" {
		t.Fatalf("opened %q", msg)
	}
	g.wantCounts(map[Event]uint64{DropTrailing: 1})
}

// TestLostFinished: the client repeats its last flight until it has ours.
func TestLostFinished(t *testing.T) {
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
	g.wantCounts(map[Event]uint64{Established: 1, Resent: 1, DropReplayed: 1})
	checkEcho(t, p, testID(1))
}

// TestRenegotiation: a request to renegotiate is ignored.
func TestRenegotiation(t *testing.T) {
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	b, _ := p.s.seal(nil, typeHandshake, appendMessage(nil, msgClientHello, 3, []byte{0xFE, 0xFD}))
	if got := g.put(home, b); got != nil {
		t.Fatalf("answered % x", got)
	}
	g.wantCounts(map[Event]uint64{DropUnexpected: 1})
	checkEcho(t, p, testID(1))
}

func TestAlerts(t *testing.T) {
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
				g.wait("the sweep", func() bool { return g.Stats().Sessions == 0 })
				g.wantCounts(map[Event]uint64{Closed: 1, Idle: 0})
			}
		})
	}
}

func TestIdle(t *testing.T) {
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
	g.wait("the count", func() bool { return g.Stats().Counts[Idle] == 1 })
	g.wantCounts(map[Event]uint64{Idle: 1, Closed: 0})
}
