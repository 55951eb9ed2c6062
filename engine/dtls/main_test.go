package dtls

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	if path := testkit.ChildTask(); path != "" {
		killChild(path)
	}
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}

type boundRelay struct {
	send func(to endpoint.Endpoint, pkt []byte)
}

func (r boundRelay) Send(to endpoint.Endpoint, pkt []byte) { r.send(to, pkt) }
func (r boundRelay) Flush()                                {}
func (r boundRelay) MayBind(proto.AllocationID) bool       { return true }
func (r boundRelay) IsBound(uint64) bool                   { return true }
func (r boundRelay) SessionBegan(endpoint.Endpoint)        {}
func (r boundRelay) OwnerOf(proto.AllocationID) (driver.Owner, bool) {
	return driver.Owner{}, false
}

func (r boundRelay) KeyOf(id proto.AllocationID) proto.Key { return testKey(id) }

// testID is the n-th allocation that the rigs know, and testKey its key.
func testID(n int) proto.AllocationID {
	return proto.AllocationID{1, byte(n >> 16), byte(n >> 8), byte(n), 4: 9, 15: 7}
}

func testKey(id proto.AllocationID) (key proto.Key) {
	for i := range key {
		key[i] = id[i%16] ^ byte(i*37)
	}
	return key
}

func at(addr string) endpoint.Endpoint { return endpoint.UDP(netip.MustParseAddrPort(addr), 0, 0) }

// rig runs Records without a socket, and is their relay. Every allocation can be bound, and is at
// once, unless a test says otherwise.
type rig struct {
	t *testing.T
	*layer
	mu      sync.Mutex
	got     map[endpoint.Endpoint][][]byte
	ended   map[proto.AllocationID]bool // cannot be bound
	unbound bool                        // no session is bound, except those in bound
	bound   map[uint64]bool
	owners  map[proto.AllocationID]driver.Owner
	derived atomic.Int64 // calls of KeyOf
	stop    func()       // ends Run
}

func (g *rig) Send(to endpoint.Endpoint, pkt []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.got[to] = append(g.got[to], bytes.Clone(pkt))
}

func (g *rig) Flush() {}

func (g *rig) MayBind(id proto.AllocationID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.ended[id]
}

func (g *rig) IsBound(serial uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.unbound || g.bound[serial]
}

func (g *rig) OwnerOf(id proto.AllocationID) (driver.Owner, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.owners[id]
	return o, ok
}

func (g *rig) KeyOf(id proto.AllocationID) proto.Key {
	g.derived.Add(1)
	return testKey(id)
}

func (g *rig) SessionBegan(endpoint.Endpoint) {}

func (g *rig) setUnbound(except ...uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unbound, g.bound = true, make(map[uint64]bool)
	for _, serial := range except {
		g.bound[serial] = true
	}
}

// end makes allocations end, so that they cannot be bound.
func (g *rig) end(ids ...proto.AllocationID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended == nil {
		g.ended = make(map[proto.AllocationID]bool)
	}
	for _, id := range ids {
		g.ended[id] = true
	}
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	g := newStoppedRig(t, c)
	g.start()
	return g
}

func newStoppedRig(t *testing.T, c Config) *rig {
	t.Helper()
	r, err := newLayer(c)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, layer: r, got: make(map[endpoint.Endpoint][][]byte)}
}

func (g *rig) start() {
	g.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	g.Begin(g)
	go func() { done <- g.Run(ctx, g) }()
	g.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			g.t.Error(err)
		}
	})
	g.t.Cleanup(g.stop)
	g.wait("Run", func() bool { return g.relay.Load() != nil })
}

// newStillRig returns a rig whose clock of sessions only the test advances, so that no session
// ends by time on a slow machine.
func newStillRig(t *testing.T, c Config) *rig {
	t.Helper()
	g := newStoppedRig(t, c)
	g.Begin(g)
	ctx, stop := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for _, w := range g.workers {
		w.relay = g
		workers.Go(func() { w.run(ctx) })
	}
	t.Cleanup(func() { stop(); workers.Wait() })
	return g
}

// put opens a copy of a datagram and returns what was sent to its source once
// the workers have nothing to do.
func (g *rig) put(from endpoint.Endpoint, pkt []byte) [][]byte {
	g.t.Helper()
	g.Open(from, bytes.Clone(pkt))
	g.settle()
	return g.take(from)
}

func (g *rig) settle() {
	g.t.Helper()
	for _, w := range g.workers {
		for i := range w.queues {
			q := &w.queues[i]
			g.wait("the workers", func() bool { return len(q.free) == cap(q.free) })
		}
	}
}

func (g *rig) take(from endpoint.Endpoint) [][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.got[from]
	delete(g.got, from)
	return out
}

func (g *rig) wait(what string, done func() bool) { g.t.Helper(); testkit.Eventually(g.t, what, done) }

func (g *rig) wantCounts(want map[event]uint64) {
	g.t.Helper()
	got := g.stats()
	for e, n := range want {
		if got.Counts[e] != n {
			g.t.Errorf("%v is %d, want %d", e, got.Counts[e], n)
		}
	}
}

// peer is a client that does one step at a time, so that a test can violate the
// protocol. It shares code with the package; the independent clients are in
// pion_test.go.
type peer struct {
	g        *rig
	from     endpoint.Endpoint
	identity []byte
	key      proto.Key
	random   [randomLen]byte
	suites   []uint16
	padding  int // bytes of an unknown extension
	plain    bool
	seq      uint16
	record   uint64
	first    []byte // the last ClientHello, as a message
	flight   []byte // the answer to it, as messages
	keys     secrets
	s        *session // in reverse: in is what the server sends
}

func newPeer(g *rig, from endpoint.Endpoint, n int) *peer {
	id := testID(n)
	p := &peer{g: g, from: from, identity: id[:], suites: []uint16{0x00A8}, padding: 16}
	p.key = testKey(id)
	binary.BigEndian.PutUint64(p.random[:], random64())
	return p
}

func (p *peer) hello(cookie []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, version12)
	b = append(append(b, p.random[:]...), 0, byte(len(cookie)))
	b = append(b, cookie...)
	b = binary.BigEndian.AppendUint16(b, uint16(2*len(p.suites)))
	for _, s := range p.suites {
		b = binary.BigEndian.AppendUint16(b, s)
	}
	b = append(b, 1, 0)
	if !p.plain {
		ext := append([]byte{0, extExtendedMasterSecret, 0, 0, 0xFF, 0x01, 0, 1, 0, 0x77, 0x77, 0, byte(p.padding)}, make([]byte, p.padding)...)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(ext))), ext...)
	}
	p.first = appendMessage(nil, msgClientHello, p.seq, b)
	return p.wrap(p.first)
}

func (p *peer) wrap(message []byte) []byte {
	p.record++
	return appendPlain(nil, typeHandshake, version12, p.record-1, message)
}

// start sends a ClientHello, with a cookie on request, and reports whether it received
// a ServerHello.
func (p *peer) start() bool {
	p.g.t.Helper()
	got := p.g.put(p.from, p.hello(nil))
	if len(got) == 1 && cookieIn(got[0]) != nil {
		p.seq++
		got = p.g.put(p.from, p.hello(cookieIn(got[0])))
	}
	return p.answered(got)
}

func (p *peer) answered(got [][]byte) bool {
	p.g.t.Helper()
	if len(got) != 1 || cookieIn(got[0]) != nil {
		return false
	}
	r, _, ok := parseRecord(got[0])
	if !ok || r.kind != typeHandshake {
		p.g.t.Fatalf("answer % x", got[0])
	}
	p.flight = bytes.Clone(r.body)
	return true
}

func cookieIn(b []byte) []byte {
	r, _, _ := parseRecord(b)
	if m, _, ok := parseMessage(r.body); ok && m.kind == msgHelloVerifyRequest {
		return m.body[3:]
	}
	return nil
}

func (p *peer) exchange() []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(p.identity)))
	return appendMessage(nil, msgClientKeyExchange, p.seq+1, append(body, p.identity...))
}

// finished derives the keys and makes the records ChangeCipherSpec and Finished.
func (p *peer) finished() []byte {
	p.g.t.Helper()
	hello, _, ok := parseMessage(p.flight)
	if !ok || hello.kind != msgServerHello {
		p.g.t.Fatalf("no ServerHello in % x", p.flight)
	}
	chosen := &suites[0]
	if id := binary.BigEndian.Uint16(hello.body[2+randomLen+1:]); id == suites[1].id {
		chosen = &suites[1]
	}
	h := chosen.hash()
	for _, b := range [][]byte{p.first, p.flight, p.exchange()} {
		h.Write(b)
	}
	var err error
	before := h.Sum(nil)
	if p.keys, err = derive(chosen, &p.key, p.random[:], hello.body[2:2+randomLen], !p.plain, before); err != nil {
		p.g.t.Fatal(err)
	}
	p.s = &session{from: p.from, in: p.keys.out, out: p.keys.in}
	data, err := p.keys.verifyData("client finished", before)
	if err != nil {
		p.g.t.Fatal(err)
	}
	p.s.finished = appendMessage(nil, msgFinished, p.seq+2, data)
	return p.repeatFinished()
}

// repeatFinished makes the last two records again, with the next numbers.
func (p *peer) repeatFinished() []byte {
	p.record++
	out := appendPlain(nil, typeChangeCipherSpec, version12, p.record-1, []byte{1})
	out, _ = p.s.seal(out, typeHandshake, p.s.finished)
	return out
}

// connect does the whole handshake and reports whether it succeeded.
func (p *peer) connect() bool {
	p.g.t.Helper()
	if !p.start() {
		return false
	}
	b := append(p.wrap(p.exchange()), p.finished()...)
	return p.accepted(p.g.put(p.from, b))
}

func (p *peer) accepted(got [][]byte) bool {
	p.g.t.Helper()
	if len(got) != 1 {
		return false
	}
	ccs, rest, ok := parseRecord(got[0])
	if !ok || ccs.kind != typeChangeCipherSpec || len(got[0]) != 75 {
		p.g.t.Fatalf("answer % x", got[0])
	}
	fin, rest, ok := parseRecord(rest)
	if !ok || len(rest) > 0 {
		p.g.t.Fatalf("answer % x", got[0])
	}
	body, reason := p.g.openRecord(p.s, &fin)
	if m, _, ok := parseMessage(body); reason != eventEstablished || !ok || m.kind != msgFinished {
		p.g.t.Fatalf("%v: answer % x", reason, got[0])
	}
	return true
}

func mustConnect(t *testing.T, p *peer) {
	t.Helper()
	if !p.connect() {
		t.Fatalf("no session for %v: %v", p.from, p.g.stats())
	}
}

func (p *peer) seal(msg string) []byte {
	out, _ := p.s.seal(nil, typeData, []byte(msg))
	return out
}

func (p *peer) open(b []byte) string {
	p.g.t.Helper()
	r, _, ok := parseRecord(b)
	if !ok {
		p.g.t.Fatalf("no record: % x", b)
	}
	body, reason := p.g.openRecord(p.s, &r)
	if reason != eventEstablished {
		p.g.t.Fatalf("%v: % x", reason, b)
	}
	return string(body)
}
