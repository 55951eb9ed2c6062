package simulation_test

import (
	"encoding/binary"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; none waits that long when all is well.
const patience = 20 * time.Second

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// testNode is a node with a bad network in front of it, and another one without, on
// a network in memory that delivers at once. Each tick is a millisecond.
type testNode struct {
	network   *link.Network
	far, bare link.Link
	sim       *simulation.Link
	ticks     int
	buf       []byte
}

func newTestNode(t testing.TB, cfg simulation.Config, linked bool) *testNode {
	t.Helper()
	w := &link.Network{Immediate: true, Linked: linked}
	b := &testNode{network: w, buf: make([]byte, link.MaxDatagram)}
	var err error
	if b.bare, err = w.Open(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	if b.far, err = w.Open(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	if b.sim, err = simulation.New(b.bare, cfg); err != nil {
		t.Fatal(err)
	}
	b.sim.Advance(start)
	return b
}

func (b *testNode) tick() {
	b.ticks++
	b.sim.Advance(start.Add(time.Duration(b.ticks) * time.Millisecond))
}

// arrival is a numbered datagram that came out, and the tick when it did.
type arrival struct {
	number uint32
	tick   int
	bytes  string
}

// drain returns what has come to a link.
func (b *testNode) drain(l link.Link) (all []arrival) {
	for e := l.Receive(b.buf); e.Kind != link.Nothing; e = l.Receive(b.buf) {
		if e.Kind != link.Datagram {
			continue
		}
		a := arrival{tick: b.ticks, bytes: string(b.buf[:e.N])}
		if e.N >= 4 {
			a.number = binary.BigEndian.Uint32(b.buf)
		}
		all = append(all, a)
	}
	return all
}

// through sends n numbered datagrams of 40 bytes, one a tick, from the near
// side or to it, and returns what came out within 3 s after that.
func (b *testNode) through(t testing.TB, n int, in bool) (all []arrival) {
	t.Helper()
	from, to := link.Link(b.sim), link.Link(b.far)
	if in {
		from, to = to, from
	}
	pkt := make([]byte, 40)
	for i := range n + 3000 {
		if i < n {
			binary.BigEndian.PutUint32(pkt, uint32(i))
			if err := from.Send(to.Local(), pkt); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, b.drain(to)...)
		b.tick()
	}
	return append(all, b.drain(to)...)
}

// both runs a test for each direction, with the same parameters.
func both(t *testing.T, p link.Conditions, f func(t *testing.T, b *testNode, in bool)) {
	for _, in := range []bool{false, true} {
		name := "out"
		cfg := simulation.Config{Seed: 42, Out: p}
		if in {
			name, cfg = "in", simulation.Config{Seed: 42, In: p}
		}
		t.Run(name, func(t *testing.T) { f(t, newTestNode(t, cfg, false), in) })
	}
}

func (b *testNode) counts(in bool) simulation.Counts {
	out, inward := b.sim.Counts()
	if in {
		return inward
	}
	return out
}
