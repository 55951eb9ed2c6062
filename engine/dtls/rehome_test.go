package dtls

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestProbes: hellos of a client beside its session are not answered while the session
// is in use.
func TestProbes(t *testing.T) {
	g := newRig(t, Config{Quiet: time.Minute})
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
	g.wantCounts(map[Event]uint64{DropQuiet: 40, Established: 1, TakenOver: 0, CookieSent: 0})
}

// TestProbeStartsAnew: an authentic record ends the wait of a hello before it,
// however long ago that was.
func TestProbeStartsAnew(t *testing.T) {
	g := newRig(t, Config{Quiet: time.Minute})
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
	for name, direct := range map[string]int{"direct": 0, "cookie": -1} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, Config{Quiet: time.Millisecond, Direct: direct})
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
			g.wantCounts(map[Event]uint64{TakenOver: 1, Established: 2})
			if n := g.Stats().Sessions; n != 1 {
				t.Fatalf("%d sessions", n)
			}
		})
	}
}

// TestKeepsSerial: a new session of the same allocation at the same source keeps the
// serial and so the binding; the old keys are not accepted any more.
func TestKeepsSerial(t *testing.T) {
	g := newRig(t, Config{Quiet: time.Millisecond})
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
	g.wantCounts(map[Event]uint64{TakenOver: 3, Established: 4})
	if n := g.Stats().Sessions; n != 1 {
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

// TestCookieOverSession: a hello with a valid cookie from the source of a session is
// answered at once, and the session continues until the handshake is finished.
func TestCookieOverSession(t *testing.T) {
	g := newRig(t, Config{Quiet: time.Minute, Direct: -1})
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
	g := newRig(t, Config{})
	p, moved := newPeer(g, home, 1), newPeer(g, at("[2001:db8::1]:9"), 1)
	mustConnect(t, p)
	mustConnect(t, moved)
	if checkEcho(t, p, testID(1)).Serial == checkEcho(t, moved, testID(1)).Serial {
		t.Fatal("one serial for two sessions")
	}
}

// TestHelloOverHandshake: another hello from the source of a half-open handshake needs
// a cookie, so that a forged one cannot replace it.
func TestHelloOverHandshake(t *testing.T) {
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

// TestHelloAgain: the same hello gets the same answer, and one handshake.
func TestHelloAgain(t *testing.T) {
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
	g.wantCounts(map[Event]uint64{Answered: 1, Resent: 3, DropStray: 1, Established: 1})
}

// TestPionRestart: a client that was killed and started again on the same
// address, so without close_notify.
func TestPionRestart(t *testing.T) {
	l := newLoop(t, Config{Quiet: 300 * time.Millisecond})
	c := newTap(t, "127.0.0.1:0")
	pionEcho(t, mustPion(t, c, l, 5), "before")
	addr := c.LocalAddr().String()
	c.PacketConn.Close()
	c = newTap(t, addr)
	pionEcho(t, mustPion(t, c, l, 5), "after")
	if st := l.Stats(); st.Counts[TakenOver] != 1 || st.Counts[DropQuiet] == 0 || st.Sessions != 1 {
		t.Fatalf("%+v", st)
	}
}

// TestPionProbes: pion's client receives no alert and keeps its session.
func TestPionProbes(t *testing.T) {
	l := newLoop(t, Config{Quiet: time.Minute})
	c := newTap(t, "127.0.0.1:0")
	conn := mustPion(t, c, l, 5)
	// On a slow machine pion repeats its hello before it is answered. The worker
	// has seen all of that before it makes the session.
	pionEcho(t, conn, "here")
	before := l.Stats()
	hello := c.sent()[0]
	hello[headerLen+messageHeaderLen+5] ^= 1 // another random
	for range 10 {
		for range 2 {
			if _, err := c.PacketConn.WriteTo(hello, l.addr()); err != nil {
				t.Fatal(err)
			}
		}
		pionEcho(t, conn, "still here")
	}
	// The result of a hello is counted after it is handled.
	testkit.Eventually(t, "the hellos", func() bool { return l.Stats().Counts[DropQuiet] == before.Counts[DropQuiet]+20 })
	if st := l.Stats(); st.Counts[Hello] != before.Counts[Hello]+20 || st.Counts[DropQuiet] != 20 ||
		st.Counts[Established] != 1 || st.HalfOpen != 0 {
		t.Fatalf("%+v, before %+v", st, before)
	}
}
