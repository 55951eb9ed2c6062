package dtls

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

func sealTo(t *testing.T, p *peer, msg []byte) {
	t.Helper()
	s := p.g.table.source(p.from)
	if s == nil {
		t.Fatalf("no session of %v", p.from)
	}
	out, to, ok := p.g.Seal(nil, s.serial, msg)
	if !ok || to != p.from || p.open(out) != string(msg) {
		t.Fatalf("not sealed to %v", p.from)
	}
}

func notFound(n int) []byte {
	return proto.Error{ID: testID(n), Code: proto.ErrorNotFound}.Append(nil)
}

func (g *rig) endTests(first, n int) {
	g.setUnbound()
	for i := range n {
		g.end(testID(first + i))
	}
}

// TestUnbindable: the client of an allocation that has ended gets a session, in which the
// relay answers its BIND. The session ends after ERROR 4, or after 5 s.
func TestUnbindable(t *testing.T) {
	t.Parallel()
	for _, from := range []endpoint.Endpoint{home, at("[2001:db8::1]:4000")} {
		g := newStillRig(t, Config{Idle: time.Hour})
		p, mute, wrong := newPeer(g, from, 1), newPeer(g, at("192.0.2.8:1"), 2), newPeer(g, at("192.0.2.9:1"), 1)
		g.endTests(1, 2)
		wrong.key[0] ^= 1
		if wrong.connect() {
			t.Error("a session with a wrong key")
		}
		g.wantCounts(map[event]uint64{dropKey: 1, eventEstablished: 0})
		mustConnect(t, p)
		mustConnect(t, mute)
		g.wantCounts(map[event]uint64{eventEstablished: 2, eventUnbindable: 2, dropIdentity: 0})
		checkEcho(t, p, testID(1)) // Any other message leaves it as it is.
		g.clock.Add(int64(time.Second))
		sealTo(t, p, notFound(1))
		g.clock.Add(int64(time.Second))
		g.sweep(g)
		wantAlive(t, "one second after ERROR 4", []*peer{p, mute})
		sealTo(t, p, notFound(1)) // The first one was lost: the BIND was repeated.
		g.clock.Add(int64(refusedTimeout - time.Second))
		g.sweep(g)
		if g.Alive(p.from) {
			t.Error("the session is there after ERROR 4")
		}
		wantAlive(t, "without ERROR 4", []*peer{mute})
		g.clock.Add(int64(bindTimeout))
		g.sweep(g)
		if g.Alive(mute.from) {
			t.Error("the session is there after 5 s")
		}
		g.wantCounts(map[event]uint64{eventUnbound: 2})
	}
}

// TestEndInHandshake: the class of a session is that of its allocation at the Finished.
func TestEndInHandshake(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	if !p.start() {
		t.Fatal("no answer")
	}
	g.put(p.from, p.wrap(p.exchange()))
	g.endTests(1, 1)
	if !p.accepted(g.put(p.from, p.finished())) {
		t.Fatal("no session")
	}
	if g.stats().Counts[eventUnbindable] != 1 || !g.table.source(home).unbindable {
		t.Error("the session is one of a live allocation")
	}
}

// TestUnbindableShare: handshakes with keys of ended allocations take a sixteenth of the table.
func TestUnbindableShare(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"10.0.%d.%d:7", "[2001:db8:%x:%x00::1]:7"} {
		g := newStillRig(t, Config{MaxSessions: 64})
		bound := connects(g, 1000, sourcesOf(30, "203.0.113.%d:7"))
		var serials []uint64
		for _, p := range bound {
			serials = append(serials, g.table.source(p.from).serial)
		}
		g.endTests(2000, 1000)
		g.setUnbound(serials...)
		players := append(bound, connects(g, 1100, sourcesOf(20, "198.51.100.%d:7"))...) // not bound yet
		for i := range 40 {
			mustConnect(t, newPeer(g, at(fmt.Sprintf(format, 1+i/10, i%10)), 2000+i))
			mustConnect(t, newPeer(g, at(fmt.Sprintf("192.0.2.7:%d", 1000+i)), 2200+i))
			if n := g.stats().Sessions; n > 54 {
				t.Fatalf("%d sessions", n)
			}
		}
		wantAlive(t, "players", players)
		g.wantCounts(map[event]uint64{eventShed: 76, dropIdentity: 0, dropSessionsFull: 0})
		late := connects(g, 2500, []endpoint.Endpoint{at("192.0.2.50:1")})
		for i := range 20 {
			mustConnect(t, newPeer(g, at(fmt.Sprintf("192.0.2.7:%d", 2000+i)), 2600+i))
		}
		late = append(late, connects(g, 2510, sourcesOf(2, "192.0.3.%d:1"))...) // one is left to the attacker
		for i := range 20 {
			mustConnect(t, newPeer(g, at(fmt.Sprintf("192.0.2.7:%d", 3000+i)), 2700+i))
		}
		if wantAlive(t, "clients of other prefixes", late); len(late) != 3 {
			t.Errorf("%d sessions of other prefixes", len(late))
		}
		players = append(players, connects(g, 1200, sourcesOf(14, "198.18.%d.1:1"))...) // The table is full after 6.
		wantAlive(t, "players", players)
		if n := g.table.unbindable.Len(); len(players) != 64 || n != 0 {
			t.Errorf("%d players, and %d others are left", len(players), n)
		}
		if newPeer(g, home, 2900).connect() {
			t.Error("a session of an ended allocation in a table full of players")
		}
		wantAlive(t, "players", players)
		g.wantCounts(map[event]uint64{dropIdentity: 1, dropSessionsFull: 0})
	}
}

func passQuiet(g *rig, p *peer) {
	g.t.Helper()
	g.put(p.from, p.hello(nil))
	time.Sleep(2 * g.conf.quiet)
}

// TestUnbindableSource: the client of an ended allocation takes no address from a session
// of another one, also after a restart, but may leave a session of its own.
func TestUnbindableSource(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	g := newRig(t, Config{Sessions: openSessions(t, cfg), quiet: time.Millisecond})
	player, own := newPeer(g, home, 1), newPeer(g, at("192.0.2.50:1"), 2)
	mustConnect(t, player)
	mustConnect(t, own)
	serial := checkEcho(t, own, testID(2)).Serial
	g.endTests(2, 1)
	intrude := func(g *rig) {
		t.Helper()
		before := g.stats().Counts[dropIdentity]
		passQuiet(g, newPeer(g, home, 2))
		if newPeer(g, home, 2).connect() {
			t.Error("a session at the address of another")
		}
		if g.stats().Counts[dropIdentity] != before+1 {
			t.Errorf("the handshake was not refused: %v", g.stats())
		}
	}
	intrude(g)
	checkEcho(t, player, testID(1))
	again := newPeer(g, own.from, 2)
	passQuiet(g, again)
	mustConnect(t, again)
	if s := checkEcho(t, again, testID(2)); s.Serial != serial {
		t.Errorf("serial %d, want %d", s.Serial, serial)
	}
	g = g.nextProcessWith(&cfg, Config{quiet: time.Millisecond}, func(next *rig) { next.endTests(2, 1) })
	intrude(g)
	mustResume(t, player, g)
	wantNoResume(t, again, g)
}

func TestUnbindableNotStored(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	g := newRig(t, Config{Sessions: openSessions(t, cfg)})
	player, late := newPeer(g, home, 1), newPeer(g, at("192.0.2.50:1"), 2)
	g.endTests(2, 1)
	mustConnect(t, player)
	mustConnect(t, late)
	var left map[uint64]endpoint.Endpoint
	if err := json.Unmarshal(g.leave().Sources, &left); err != nil || len(left) != 1 {
		t.Errorf("%d sessions are handed over, error %v", len(left), err)
	}
	// The next process has no state, so that it would accept the session.
	next := g.nextProcess(&cfg, Config{})
	if n := next.dormant.count.Load(); n != 1 {
		t.Errorf("%d sessions may resume", n)
	}
	wantNoResume(t, late, next)
	mustResume(t, player, next)
}

// TestUnbindableRate: keys for unknown ids are derived at a limited rate, at no cost to players.
func TestUnbindableRate(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	g.endTests(2, 1)
	for g.limits.takeUnbindable(g.now() + int64(time.Minute)) { // used up for a minute
	}
	if newPeer(g, at("192.0.2.50:1"), 2).connect() {
		t.Error("a session above the limit")
	}
	g.wantCounts(map[event]uint64{dropAttempts: 1})
	mustConnect(t, newPeer(g, home, 1))
}
