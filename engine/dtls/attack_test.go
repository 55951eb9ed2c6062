package dtls

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

func connects(g *rig, first int, sources []endpoint.Endpoint) (sessions []*peer) {
	g.t.Helper()
	for i, from := range sources {
		if p := newPeer(g, from, first+i); p.connect() {
			sessions = append(sessions, p)
		}
	}
	return sessions
}

func wantAlive(t *testing.T, what string, peers []*peer) {
	t.Helper()
	for _, p := range peers {
		if !p.g.Alive(p.from) {
			t.Errorf("%s: the session of %v has ended", what, p.from)
		}
	}
}

// TestFillTable: an attacker with one address and many keys gets a quarter of the table.
func TestFillTable(t *testing.T) {
	t.Parallel()
	g := newStillRig(t, Config{MaxSessions: 64})
	players := connects(g, 1000, sourcesOf(20, "203.0.113.%d:7"))
	neighbours := connects(g, 2000, sourcesOf(8, "192.0.2.7:%d"))
	g.wait("the binding", func() bool { g.sweep(g); return g.table.source(neighbours[7].from).bound.Load() })
	var bound []uint64
	for _, p := range append(players, neighbours...) {
		bound = append(bound, g.table.source(p.from).serial)
	}
	g.setUnbound(bound...)
	for i := range 80 {
		mustConnect(t, newPeer(g, at(fmt.Sprintf("192.0.2.7:%d", 1000+i)), i))
		if st := g.stats(); st.Sessions > 64 {
			t.Fatalf("%d sessions", st.Sessions)
		}
	}
	wantAlive(t, "players", players)
	wantAlive(t, "bound neighbours of the attacker", neighbours)
	g.wantCounts(map[event]uint64{eventShed: 80 - 16, dropSessionsFull: 0})
	late := connects(g, 3000, sourcesOf(4, "198.51.100.%d:7"))
	for i := range 40 {
		newPeer(g, at(fmt.Sprintf("192.0.2.7:%d", 3000+i)), i).connect()
	}
	if wantAlive(t, "late players", late); len(late) != 4 {
		t.Errorf("%d of 4 late players have a session", len(late))
	}
}

// TestLeastValuableFirst: when the table is full, a session of the prefix with most
// unbound ones ends: first one to which an allocation was bound before, then the oldest.
// Bound sessions stay, and without others the newcomer is dropped.
func TestLeastValuableFirst(t *testing.T) {
	t.Parallel()
	g := newStillRig(t, Config{MaxSessions: 16, Idle: time.Hour})
	serial := func(p *peer) uint64 { return g.table.source(p.from).serial }
	before := newPeer(g, at("192.0.2.1:1"), 1)
	mustConnect(t, before)
	bound := connects(g, 100, sourcesOf(9, "203.0.113.%d:7"))
	var serials []uint64
	for _, p := range bound {
		serials = append(serials, serial(p))
	}
	g.setUnbound(serials...)
	g.sweep(g)
	old := connects(g, 2, []endpoint.Endpoint{at("192.0.2.1:2")})
	single := connects(g, 20, sourcesOf(4, "198.51.100.%d:7"))
	late := connects(g, 3, []endpoint.Endpoint{at("192.0.2.1:3")})
	if n := g.stats().Sessions; n != 16 {
		t.Fatalf("%d sessions", n)
	}
	for i, victim := range []*peer{before, old[0], single[0], single[1], single[2], single[3], late[0]} {
		wantAlive(t, fmt.Sprint("before newcomer ", i), []*peer{victim})
		p := newPeer(g, at(fmt.Sprintf("198.18.%d.1:1", i)), 30+i)
		mustConnect(t, p)
		if g.Alive(victim.from) {
			t.Errorf("newcomer %d: the session of %v is still there", i, victim.from)
		}
		g.mu.Lock()
		g.bound[serial(p)] = true
		g.mu.Unlock()
		bound = append(bound, p)
	}
	wantAlive(t, "bound", bound)
	if newPeer(g, home, 50).connect() {
		t.Error("a session above the limit")
	}
	g.wantCounts(map[event]uint64{eventShed: 7, dropSessionsFull: 1})
}

// TestBindTimeout: an unbound session ends. One that was bound before stays, for its ERROR 4.
func TestBindTimeout(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{Idle: time.Hour})
	before, bound, never := newPeer(g, at("192.0.2.1:1"), 1), newPeer(g, at("192.0.2.2:1"), 2), newPeer(g, at("192.0.2.3:1"), 3)
	mustConnect(t, before)
	mustConnect(t, bound)
	serial := checkEcho(t, bound, testID(2)).Serial
	g.setUnbound(serial)
	mustConnect(t, never)
	roams := newPeer(g, at("192.0.2.4:1"), 2) // the client of bound, at another address
	mustConnect(t, roams)
	checkEcho(t, never, testID(3))
	g.clock.Add(int64(bindTimeout))
	g.wait("the end", func() bool { return g.stats().Counts[eventUnbound] == 1 })
	if g.Alive(never.from) {
		t.Error("it is still there")
	}
	wantAlive(t, "others", []*peer{before, bound, roams})
	g.clock.Add(int64(roamTimeout))
	g.wait("the end of the one that roams", func() bool { return g.stats().Counts[eventUnbound] == 2 })
	wantAlive(t, "others", []*peer{before, bound})
}

// TestResumeOfEnded: a session whose allocation can neither be bound nor come back does
// not resume in the next process, and ends when that becomes known later.
func TestResumeOfEnded(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	g := newRig(t, Config{Sessions: openSessions(t, cfg)})
	peers := connects(g, 0, sourcesOf(3, "192.0.2.%d:7"))
	for i, p := range peers {
		checkEcho(t, p, testID(i))
	}
	dead, lost, back := peers[0], peers[1], peers[2]
	g = g.nextProcessWith(&cfg, Config{}, func(next *rig) { next.end(testID(0)); next.setUnbound() })
	if n := g.dormant.count.Load(); n != 2 {
		t.Errorf("%d sessions may resume", n)
	}
	wantNoResume(t, dead, g)
	mustResume(t, lost, g)
	serial := mustResume(t, back, g).Serial
	g.clock.Add(int64(roamTimeout)) // Clients of UTP 1.x take 9 s to bind again.
	g.sweep(g)
	wantAlive(t, "resumed", []*peer{lost, back})
	g.setUnbound(serial)
	g.end(testID(1), testID(2))
	g.wait("the end", func() bool { return g.stats().Counts[eventUnbound] == 1 })
	if g.Alive(lost.from) {
		t.Error("a session without an allocation is still there")
	}
	wantAlive(t, "bound again", []*peer{back})
}

// TestForgedLockout: forged messages at a player's address do not block a handshake with a cookie.
func TestForgedLockout(t *testing.T) {
	t.Parallel()
	for _, direct := range []int{0, -1} {
		g := newRig(t, Config{direct: direct})
		forger := newPeer(g, home, 1)
		forger.key[0] ^= 1
		if !forger.start() {
			t.Fatal("no answer")
		}
		forger.finished()
		for range 2 * maxDerivations {
			forger.identity[7]++
			g.put(home, append(forger.wrap(forger.exchange()), forger.repeatFinished()...))
		}
		if n := g.stats().Counts[dropAttempts]; n == 0 {
			t.Error("derivations are not limited")
		}
		mustConnect(t, newPeer(g, home, 1))
	}
}

// TestNeighbours: of many unfinished handshakes of one prefix, the oldest end for new
// ones, those without a cookie first, so that a neighbour cannot block the prefix.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{halfOpenPerPrefix: 8})
	first := newPeer(g, at("192.0.2.1:999"), 1)
	if !first.start() {
		t.Fatal("no answer")
	}
	got := 0
	for i := range 18 {
		starts(g, []endpoint.Endpoint{at(fmt.Sprintf("192.0.2.1:%d", 1000+i)), at(fmt.Sprintf("192.0.2.1:%d", 2000+i))})
		if newPeer(g, at(fmt.Sprintf("192.0.2.1:%d", 5000+i)), i).connect() {
			got++
		}
	}
	if got != 18 {
		t.Errorf("%d of 18 neighbours have a session", got)
	}
	late := newPeer(g, at("192.0.2.1:6000"), 1)
	if !late.start() {
		t.Fatal("no answer")
	}
	starts(g, sourcesOf(7, "192.0.2.1:%d"))
	if !late.accepted(g.put(late.from, append(late.wrap(late.exchange()), late.finished()...))) {
		t.Error("evicted before older ones")
	}
}

// TestRepeatedFinished: the answer to a repeated flight is smaller than the flight, also when it
// comes in several datagrams, as OpenSSL repeats it.
func TestRepeatedFinished(t *testing.T) {
	t.Parallel()
	g := newRig(t, Config{})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	in, out := 0, 0
	for range 100 {
		b := p.repeatFinished()[headerLen+1:]
		in += len(b)
		for _, answer := range g.put(home, b) {
			out += len(answer)
		}
	}
	if out == 0 || out > in {
		t.Errorf("%d bytes were answered with %d", in, out)
	}
	g.table.source(home).credit = 0
	g.put(home, p.wrap(p.exchange()))
	b := p.repeatFinished()
	g.put(home, b[:headerLen+1])
	if !p.accepted(g.put(home, b[headerLen+1:])) {
		t.Error("a flight in three datagrams is not answered")
	}
	if !p.accepted(g.put(home, p.repeatFinished())) {
		t.Error("a flight without its first message is not answered")
	}
	if got := g.put(home, newPeer(g, home, 1).hello(nil)); got != nil || g.table.source(home).credit != 0 {
		t.Error("a hello counts")
	}
}

// TestHelloRate: the answers to forged hellos of one prefix are limited, and a client
// with a valid cookie is answered all the same.
func TestHelloRate(t *testing.T) {
	t.Parallel()
	for _, direct := range []int{0, -1} {
		start := time.Now()
		g := newRig(t, Config{direct: direct, workers: 1})
		w := newWorker(g.layer, g)
		victim := at("192.0.2.9:1")
		p, q := newPeer(g, victim, 1), newPeer(g, at("192.0.2.9:2"), 1)
		q.padding = 40
		hello := q.hello(nil)
		w.handleDatagram(q.from, hello)
		w.handleDatagram(victim, p.hello(nil))
		first := g.take(victim)
		if direct == 0 { // It was answered directly; another one gets a cookie.
			p.random[0]++
			w.handleDatagram(victim, p.hello(nil))
			first = g.take(victim)
		}
		g.take(q.from)
		sent := 0
		for i := range 30_000 {
			from := victim
			from.Tail = from.Tail&^0xFFFF | uint64(3+i)
			w.handleDatagram(from, hello)
			w.handleDatagram(q.from, hello)
			sent += len(g.take(from)) + len(g.take(q.from))
		}
		if most := int(helloRate.Burst) + int(time.Since(start).Milliseconds()) + 1; sent < int(helloRate.Burst)-10 || sent > most {
			t.Errorf("%d of 60000 hellos were answered", sent)
		}
		for n := 0; g.limits.mayAnswer(victim.Network(), g.now()); n++ {
			if n == 100_000 {
				t.Fatal("hellos do not use up the limit")
			}
			w.handleDatagram(victim, newPeer(g, victim, 2).hello(nil))
			g.take(victim)
		}
		p.seq++
		w.handleDatagram(victim, p.hello(cookieIn(first[0])))
		if !p.answered(g.take(victim)) {
			t.Error("a hello with a valid cookie is not answered")
		}
	}
}

// TestQueueShare: a source takes its share of a queue, and none of another class.
func TestQueueShare(t *testing.T) {
	t.Parallel()
	r, err := newLayer(Config{queue: 128, workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, layer: r}
	hello := newPeer(g, home, 1).hello(nil)
	for range 200 {
		r.Open(home, bytes.Clone(hello))
	}
	if n := len(r.workers[0].queues[hellos].full); n != 512/8 {
		t.Errorf("%d hellos of one source wait", n)
	}
	for i := range 4000 {
		r.Open(at(fmt.Sprintf("10.0.%d.%d:1", i/250, i%250)), bytes.Clone(hello))
	}
	if n := len(r.workers[0].queues[hellos].full); n != 512 {
		t.Errorf("%d hellos wait", n)
	}
	p := newPeer(g, at("203.0.113.1:1"), 1)
	before := r.stats().Counts[dropQueue]
	r.Open(p.from, p.hello(make([]byte, cookieLen)))
	r.Open(p.from, p.wrap(p.exchange()))
	if r.stats().Counts[dropQueue] != before {
		t.Error("hellos kept the rest of a handshake out")
	}
}
