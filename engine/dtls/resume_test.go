package dtls

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func sessionsConfig(t testing.TB, unmapped bool) statefile.SessionsConfig {
	t.Helper()
	return statefile.SessionsConfig{
		Path: filepath.Join(t.TempDir(), "sessions"), Capacity: 64, Relay: [16]byte{1, 2}, MaxAge: time.Hour,
		Machine: "up", Unmapped: unmapped,
	}
}

func openSessions(t testing.TB, cfg statefile.SessionsConfig) *SessionFile {
	t.Helper()
	cfg.OnError = func(err error) { t.Errorf("OnError: %v", err) }
	f, err := openSessionFile(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// nextProcess returns the process that starts after the one of g was killed. It has only
// a copy of the file and its counter, which the file is ahead of while the process runs.
func (g *rig) nextProcess(cfg *statefile.SessionsConfig, c Config) *rig {
	g.t.Helper()
	return g.nextProcessWith(cfg, c, func(*rig) {})
}

func (g *rig) nextProcessWith(cfg *statefile.SessionsConfig, c Config, change func(*rig)) *rig {
	g.t.Helper()
	to := filepath.Join(g.t.TempDir(), "sessions")
	for _, suffix := range []string{".counter", ""} {
		content, err := os.ReadFile(cfg.Path + suffix)
		if err != nil {
			g.t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, content, 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	cfg.Path = to
	c.Sessions = openSessions(g.t, *cfg)
	next := newStoppedRig(g.t, c)
	change(next)
	next.start()
	return next
}

func bothModes(t *testing.T, test func(t *testing.T, cfg statefile.SessionsConfig)) {
	for _, unmapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("unmapped=%v", unmapped), func(t *testing.T) { test(t, sessionsConfig(t, unmapped)) })
	}
}

// TestResume: sessions resume with their serial, although the listeners have other numbers in the
// next process. No record is accepted twice.
func TestResume(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, cfg statefile.SessionsConfig) {
		g := newRig(t, Config{Sessions: openSessions(t, cfg)})
		var peers []*peer
		for i, suite := range []uint16{0xA8, 0xA9, 0xA8, 0xA9} {
			p := newPeer(g, at(fmt.Sprintf("192.0.2.%d:4000", i+1)), i)
			p.suites, p.plain = []uint16{suite}, i >= 2
			mustConnect(t, p)
			peers = append(peers, p)
		}
		six := newPeer(g, at("[2001:db8::1]:4000"), 9)
		mustConnect(t, six)
		peers = append(peers, six)

		for round := range 3 {
			var serials []uint64
			var taken [][][]byte
			for _, p := range peers {
				var records [][]byte
				for n := range 20 {
					records = append(records, p.seal(fmt.Sprint("message ", n)))
					if _, msg := g.Open(p.from, bytes.Clone(records[n])); msg == nil {
						t.Fatalf("round %d: %v: record %d is not accepted: %v", round, p.from, n, g.stats())
					}
				}
				taken = append(taken, records)
				serials = append(serials, checkEcho(t, p, testIDOf(p)).Serial)
			}
			next := g.nextProcess(&cfg, Config{})
			for i, p := range peers {
				p.g = next
				p.from = endpoint.UDP(p.from.AddrPort(), uint16(round+1), uint8(round+1))
				for n, b := range taken[i] {
					if _, msg := next.Open(p.from, bytes.Clone(b)); msg != nil {
						t.Fatalf("round %d: %v: record %d is accepted twice", round, p.from, n)
					}
				}
				if next.Alive(p.from) {
					t.Fatalf("round %d: %v: a replayed record resumed the session", round, p.from)
				}
				if s := mustResume(t, p, next); s.Serial != serials[i] {
					t.Errorf("round %d: serial %d, was %d", round, s.Serial, serials[i])
				}
			}
			next.wantCounts(map[event]uint64{eventResumed: uint64(len(peers)), eventHello: 0, eventEstablished: 0})
			g = next
		}
		p := newPeer(g, at("192.0.2.77:1"), 20)
		mustConnect(t, p)
		fresh := checkEcho(t, p, testID(20)).Serial
		for _, p := range peers {
			if checkEcho(t, p, testIDOf(p)).Serial == fresh {
				t.Fatal("a serial is used twice")
			}
		}
	})
}

func mustResume(t *testing.T, p *peer, next *rig) driver.Session {
	t.Helper()
	p.g = next
	for range receivedBlockMax {
		if _, msg := next.Open(p.from, p.seal("again")); msg != nil {
			return checkEcho(t, p, testIDOf(p))
		}
	}
	t.Fatalf("%v does not resume: %v", p.from, next.stats())
	return driver.Session{}
}

func wantNoResume(t *testing.T, p *peer, next *rig) {
	t.Helper()
	p.g = next
	for range receivedBlockMax {
		if _, msg := next.Open(p.from, p.seal("x")); msg != nil {
			t.Fatalf("the session of %v resumes", p.from)
		}
	}
}

func testIDOf(p *peer) (id proto.AllocationID) { return proto.AllocationID(p.identity) }

// TestResumeSlow: a client that sends less than ten times a second loses no record.
func TestResumeSlow(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	g := newRig(t, Config{Sessions: openSessions(t, cfg)})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	for range 10 {
		v := g.table.source(home).stored
		v.mu.Lock()
		v.last -= 2 * receivedSlow // As if that much time had passed.
		v.mu.Unlock()
		checkEcho(t, p, testID(1))
	}
	p.g = g.nextProcess(&cfg, Config{})
	checkEcho(t, p, testID(1))
}

func TestResumeForged(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	g := newRig(t, Config{Sessions: openSessions(t, cfg)})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	checkEcho(t, p, testID(1))
	g = g.nextProcess(&cfg, Config{})
	p.g = g
	junk := p.seal("x")
	junk[len(junk)-1] ^= 1
	for range 5 {
		if _, msg := g.Open(home, bytes.Clone(junk)); msg != nil {
			t.Fatal("a forged record is accepted")
		}
	}
	if g.Alive(home) {
		t.Error("a forged record resumed a session")
	}
	g.wantCounts(map[event]uint64{eventResumed: 0, dropNoSession: 5})
	mustResume(t, p, g)
	g.wantCounts(map[event]uint64{eventResumed: 1})
}

func TestNoResume(t *testing.T) {
	t.Parallel()
	damage := func(change func(b []byte)) func(t *testing.T, path string, cfg *statefile.SessionsConfig) {
		return func(t *testing.T, path string, _ *statefile.SessionsConfig) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			change(b)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(t *testing.T, path string, cfg *statefile.SessionsConfig){
		"no file":         func(t *testing.T, path string, _ *statefile.SessionsConfig) { os.Remove(path) },
		"no counter":      func(t *testing.T, path string, _ *statefile.SessionsConfig) { os.Remove(path + ".counter") },
		"another relay":   func(_ *testing.T, _ string, cfg *statefile.SessionsConfig) { cfg.Relay[3]++ },
		"another machine": func(_ *testing.T, _ string, cfg *statefile.SessionsConfig) { cfg.Machine = "rebooted" },
		"too old": func(_ *testing.T, _ string, cfg *statefile.SessionsConfig) {
			cfg.Now = func() time.Time { return time.Now().Add(2 * cfg.MaxAge) }
		},
		"clock set back": func(_ *testing.T, _ string, cfg *statefile.SessionsConfig) {
			cfg.Now = func() time.Time { return time.Now().Add(-2 * cfg.MaxAge) }
		},
		"header":   damage(func(b []byte) { b[9] ^= 1 }),
		"stamp":    damage(func(b []byte) { b[50] ^= 1 }),
		"id":       damage(func(b []byte) { b[4096+10] ^= 1 }),
		"sent":     damage(func(b []byte) { b[4096+178] ^= 1 }),
		"received": damage(func(b []byte) { b[4096+184] ^= 1 }),
		"random":   damage(func(b []byte) { b[4096+60] ^= 1 }),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sessionsConfig(t, false)
			g := newRig(t, Config{Sessions: openSessions(t, cfg)})
			p := newPeer(g, home, 1)
			mustConnect(t, p)
			checkEcho(t, p, testID(1))
			g.stop() // A process that goes on would write to the counter of the next one.
			spoil(t, cfg.Path, &cfg)
			c := Config{Sessions: openSessions(t, cfg)}
			next := newRig(t, c)
			wantNoResume(t, p, next)
			p = newPeer(next, home, 1)
			mustConnect(t, p)
			checkEcho(t, p, testID(1))
			mustResume(t, p, next.nextProcess(&cfg, Config{}))
		})
	}
}

func TestResumeEnded(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	g := newRig(t, Config{Sessions: openSessions(t, cfg), quiet: time.Millisecond, Idle: time.Second})
	closed, taken := newPeer(g, at("192.0.2.1:1"), 1), newPeer(g, at("192.0.2.2:1"), 2)
	mustConnect(t, closed)
	mustConnect(t, taken)
	checkEcho(t, taken, testID(2))
	bye, _ := closed.s.seal(nil, typeAlert, []byte{1, alertCloseNotify})
	g.Open(closed.from, bye)
	// The same client makes a new handshake, so that its session keeps the serial.
	again := newPeer(g, taken.from, 2)
	g.wait("an answer", again.start)
	if !again.accepted(g.put(again.from, append(again.wrap(again.exchange()), again.finished()...))) {
		t.Fatal("no session")
	}
	serial := checkEcho(t, again, testID(2)).Serial
	g.wait("the end of the sessions", func() bool { return g.stats().Sessions == 1 })

	g = g.nextProcess(&cfg, Config{Idle: time.Second})
	wantNoResume(t, closed, g)
	wantNoResume(t, taken, g)
	if s := mustResume(t, again, g); s.Serial != serial {
		t.Errorf("serial %d, was %d", s.Serial, serial)
	}
	g = g.nextProcess(&cfg, Config{Idle: 100 * time.Millisecond})
	g.wait("the end of a dormant session", func() bool { return g.dormant.count.Load() == 0 })
	wantNoResume(t, again, g)
	g = g.nextProcess(&cfg, Config{})
	if n := g.dormant.count.Load(); n != 0 {
		t.Errorf("%d sessions are left in the file", n)
	}
}

// TestHandshakeBeforeResume: a client that makes a handshake while its session is
// dormant keeps the serial and so the binding; another allocation does not.
func TestHandshakeBeforeResume(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		cfg := sessionsConfig(t, false)
		g := newRig(t, Config{Sessions: openSessions(t, cfg)})
		p := newPeer(g, home, 1)
		mustConnect(t, p)
		was := checkEcho(t, p, testID(1))
		g = g.nextProcess(&cfg, Config{})
		n := 2
		if same {
			n = 1
		}
		other := newPeer(g, home, n)
		mustConnect(t, other)
		is := checkEcho(t, other, testID(n))
		if (is.Serial == was.Serial) != same {
			t.Errorf("same allocation %v: serial %d, was %d", same, is.Serial, was.Serial)
		}
		wantNoResume(t, p, g)
		mustResume(t, other, g.nextProcess(&cfg, Config{}))
	}
}

// TestLateStore: a goroutine that still holds a session which has ended changes
// nothing of the session that has its place in the file now.
func TestLateStore(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	cfg.Capacity = 1
	g := newRig(t, Config{Sessions: openSessions(t, cfg)})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	late := g.table.source(home)
	g.table.mu.Lock()
	g.table.remove(late)
	g.table.mu.Unlock()
	p = newPeer(g, home, 2)
	mustConnect(t, p)
	if !late.stored.reserveReceived(1<<40, g.now) || !late.stored.reserveSent(1<<40) {
		t.Error("a session that is in no file is bound by one")
	}
	mustResume(t, p, g.nextProcess(&cfg, Config{}))
}

// TestResumeFull: sessions above the capacity of the file work and end with the process.
func TestResumeFull(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	cfg.Capacity = 3
	g := newRig(t, Config{Sessions: openSessions(t, cfg)})
	var peers []*peer
	for i := range 5 {
		p := newPeer(g, at(fmt.Sprintf("192.0.2.%d:4000", i+1)), i)
		mustConnect(t, p)
		checkEcho(t, p, testID(i))
		peers = append(peers, p)
	}
	g = g.nextProcess(&cfg, Config{})
	for i, p := range peers {
		if i < cfg.Capacity {
			mustResume(t, p, g)
		} else {
			wantNoResume(t, p, g)
		}
	}
}

// use is one AEAD nonce of one key.
type use struct {
	random [randomLen]byte
	seq    uint64
}

// crashes is a relay that is killed repeatedly, and the numbers that it used.
type crashes struct {
	t              *testing.T
	random         *rand.Rand
	g              *rig
	peers          map[int]*peer
	serials        map[int]uint64
	wire           map[int][][]byte // what an observer has recorded of a peer
	sent, accepted map[use]bool
	resumed        uint64
}

// TestCrashPoints: through any number of crashes, between any two operations, no
// (key, nonce) pair seals two records, and no record is accepted twice.
func TestCrashPoints(t *testing.T) {
	const rounds = 30
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			cfg := sessionsConfig(t, seed%2 == 1)
			c := &crashes{
				t: t, random: rand.New(rand.NewPCG(seed, 7)), g: newRig(t, Config{Sessions: openSessions(t, cfg)}),
				peers: make(map[int]*peer), serials: make(map[int]uint64), wire: make(map[int][][]byte),
				sent: make(map[use]bool), accepted: make(map[use]bool),
			}
			for range rounds {
				for range c.random.IntN(60) {
					c.step(c.random.IntN(4))
				}
				c.resumed += c.g.stats().Counts[eventResumed]
				c.g = c.g.nextProcess(&cfg, Config{})
				for _, p := range c.peers {
					p.g = c.g
				}
			}
			if len(c.sent) < 4*rounds || c.resumed < rounds {
				t.Errorf("%d records sent, %d sessions resumed: the test does too little", len(c.sent), c.resumed)
			}
		})
	}
}

func (c *crashes) step(n int) {
	p := c.peers[n]
	switch x := c.random.IntN(20); {
	case p == nil || x == 0:
		c.connect(n)
	case x == 1: // A record is lost, for now.
		c.wire[n] = append(c.wire[n], p.seal("up"))
	case x < 9:
		c.receive(n, 1)
	case x == 9:
		c.receive(n, c.random.IntN(300))
	case x < 13 && len(c.wire[n]) > 0: // The observer repeats one.
		c.offer(n, c.wire[n][c.random.IntN(len(c.wire[n]))])
	case c.serials[n] != 0:
		c.seal(n)
	}
}

func (c *crashes) connect(n int) {
	ip := netip.AddrFrom4([4]byte{192, 0, 2, byte(c.random.IntN(3))})
	p := newPeer(c.g, endpoint.UDP(netip.AddrPortFrom(ip, uint16(n+1)), 0, 0), n)
	if !p.connect() {
		return
	}
	c.peers[n], c.wire[n], c.serials[n] = p, nil, 0
	c.sent[use{p.random, 0}], c.accepted[use{p.random, 0}] = true, true // both Finished
}

func (c *crashes) receive(n, times int) {
	for range times {
		b := c.peers[n].seal("up")
		c.wire[n] = append(c.wire[n], b)
		c.offer(n, b)
	}
}

func (c *crashes) offer(n int, b []byte) {
	p := c.peers[n]
	r, _, _ := parseRecord(b)
	s, msg := c.g.Open(p.from, bytes.Clone(b))
	if msg == nil {
		return
	}
	if u := (use{p.random, r.seq}); c.accepted[u] {
		c.t.Fatalf("record %d of a session is accepted twice", r.seq)
	} else {
		c.accepted[u], c.serials[n] = true, s.Serial
	}
}

func (c *crashes) seal(n int) {
	p := c.peers[n]
	b, _, ok := c.g.Seal(nil, c.serials[n], []byte("down"))
	if !ok {
		return
	}
	r, _, _ := parseRecord(b)
	u := use{p.random, r.seq}
	if c.sent[u] {
		c.t.Fatalf("number %d of a session is used twice", r.seq)
	}
	c.sent[u] = true
	if p.open(b) != "down" {
		c.t.Fatal("the client receives another message")
	}
}

// killSessions is how many sessions the child of TestCrashKilled has, and killRoutines how many
// goroutines use each of them at once.
const (
	killSessions = 8
	killRoutines = 3
)

func fail(reason ...any) {
	fmt.Fprintln(os.Stderr, reason...)
	os.Exit(1)
}

// killChild uses resumed or new sessions until it is killed. It writes a line for each number that
// was used: direction, session, number.
func killChild(path string) {
	file, err := openSessionFile(statefile.SessionsConfig{
		Path: path, Capacity: 2 * killSessions, MaxAge: time.Hour, Machine: "up", OnError: func(err error) { fail(err) },
	}, nil)
	if err != nil {
		fail(err)
	}
	r, err := newLayer(Config{Sessions: file})
	if err != nil {
		fail(err)
	}
	var relay driver.RecordsRelay = boundRelay{}
	r.relay.Store(&relay)
	found := file.file.Load().Found()
	if len(found) == 0 {
		for i := range killSessions {
			found = append(found, killAddSession(r, i))
		}
	}
	if len(found) != killSessions {
		fail(len(found), "sessions in the file")
	}
	var wg sync.WaitGroup
	for i := range found {
		killUse(&wg, r, &found[i])
	}
	wg.Wait()
	fail("the process was not killed")
}

func killAddSession(r *layer, i int) statefile.FoundSession {
	from := home
	from.Lo += uint64(i)
	h := &halfOpen{suite: &suites[i%2]}
	binary.BigEndian.PutUint64(h.client[:], random64())
	key := testKey(testID(i))
	keys, err := derive(h.suite, &key, h.client[:], h.server[:], false, nil)
	if err != nil {
		fail(err)
	}
	s := &session{id: testID(i), from: from, in: keys.in, out: keys.out}
	if _, ok := r.table.add(s, boundRelay{}, 0, func() { r.store(s, h, 0) }); !ok || s.stored == nil {
		fail("no room")
	}
	return statefile.FoundSession{Session: statefile.Session{ID: s.id, Serial: s.serial, Source: from, Suite: h.suite.id, Client: h.client}}
}

// killUse starts the goroutines that use a session. The client's numbers are
// microseconds, so that they rise from process to process.
func killUse(wg *sync.WaitGroup, r *layer, f *statefile.FoundSession) {
	key := testKey(f.ID)
	keys, err := derive(suiteByID(f.Suite), &key, f.Client[:], f.Server[:], len(f.Hash) > 0, f.Hash)
	if err != nil {
		fail(err)
	}
	name := binary.BigEndian.Uint64(f.Client[:])
	var mu sync.Mutex // one record, one number
	client := &session{out: keys.in}
	next := func() []byte {
		mu.Lock()
		defer mu.Unlock()
		client.sent.Store(max(client.sent.Load(), uint64(time.Now().UnixMicro())&(statefile.MaxSequence>>1)))
		b, _ := client.seal(nil, typeData, []byte("up"))
		return b
	}
	for range killRoutines {
		wg.Go(func() {
			for {
				b := next()
				again := append([]byte(nil), b...)
				number := binary.BigEndian.Uint64(b[3:]) & (1<<seqBits - 1)
				if _, msg := r.Open(f.Source, b); msg != nil {
					fmt.Printf("r %016x %d\n", name, number)
				}
				if _, msg := r.Open(f.Source, again); msg != nil {
					fmt.Printf("r %016x %d\n", name, number)
				}
				if b, _, ok := r.Seal(nil, f.Serial, []byte("down")); ok {
					fmt.Printf("s %016x %d\n", name, binary.BigEndian.Uint64(b[3:])&(1<<seqBits-1))
				}
			}
		})
	}
}

// TestCrashKilled: no number of a session is used twice in a direction, and every session resumes.
func TestCrashKilled(t *testing.T) {
	t.Parallel()
	path := sessionsConfig(t, false).Path
	used := make(map[string]int)
	random := rand.New(rand.NewPCG(3, 5))
	for round := range 8 {
		users, limit := make(map[string]bool), 2000+random.IntN(20_000)
		lines := testkit.StartChild(t, path).Crash(t, func(n int, line string) bool {
			users[line[:18]] = true
			return n > limit && len(users) == 2*killSessions
		})
		for _, line := range lines {
			if before, twice := used[line]; twice {
				t.Errorf("%q in round %d and in round %d", line, before, round)
			}
			used[line] = round
		}
	}
}
