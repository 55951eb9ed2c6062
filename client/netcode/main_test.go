package netcode_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

var start = time.Unix(1_700_000_000, 0)

// chance is a source of tokens that is the same in each run.
type chance struct{ r *rand.ChaCha8 }

func newChance(n byte) chance { return chance{rand.NewChaCha8([32]byte{n})} }

func (c chance) Read(b []byte) (int, error) { return c.r.Read(b) }

// testNetwork is a server and its clients in one network, with a common clock.
type testNetwork struct {
	t       testing.TB
	net     *link.Network
	node    link.Link
	server  *netcode.Driver
	clients []*netcode.Driver
	nodes   []link.Link
	now     time.Time
	step    time.Duration
	ticks   int
	log     []string // of events, as "tick side: id state reason"
}

type calls struct {
	reg          *netcode.RPCRegistry
	say, approve netcode.RPCType[[]byte]
}

func newCalls(t testing.TB) calls {
	t.Helper()
	c := calls{reg: new(netcode.RPCRegistry)}
	var err error
	if c.say, err = netcode.RegisterRPC(c.reg, "say", netcode.Raw()); err != nil {
		t.Fatal(err)
	}
	if c.approve, err = netcode.RegisterApprovalRPC(c.reg, "approve", netcode.Raw()); err != nil {
		t.Fatal(err)
	}
	return c
}

func newTestNetwork(t testing.TB, cfg netcode.Config) *testNetwork {
	t.Helper()
	w := new(link.Network)
	b := &testNetwork{t: t, net: w, now: start, step: 20 * ms}
	var err error
	b.node, err = w.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Link = b.node
	cfg.Rand = newChance(0)
	b.server = b.driver(netcode.NewServer, cfg)
	if err := b.server.Listen(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *testNetwork) driver(make func(netcode.Config) (*netcode.Driver, error), cfg netcode.Config) *netcode.Driver {
	b.t.Helper()
	d, err := make(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.t.Errorf("close: %v", err)
		}
	})
	return d
}

func (b *testNetwork) join(cfg netcode.Config) (*netcode.Driver, netcode.Conn) {
	b.t.Helper()
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		b.t.Fatal(err)
	}
	cfg.Link = node
	cfg.Rand = newChance(byte(len(b.nodes) + 1))
	d := b.driver(netcode.NewClient, cfg)
	b.clients, b.nodes = append(b.clients, d), append(b.nodes, node)
	return d, b.connect(d)
}

func (b *testNetwork) connect(d *netcode.Driver) netcode.Conn {
	b.t.Helper()
	c, err := d.Connect(b.node.Local())
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *testNetwork) update() {
	b.t.Helper()
	b.ticks++
	b.now = b.now.Add(b.step)
	for i, d := range append([]*netcode.Driver{b.server}, b.clients...) {
		if err := d.Update(b.now); err != nil {
			b.t.Fatalf("tick %d: %v", b.ticks, err)
		}
		side := "S"
		if i > 0 {
			side = fmt.Sprint("C", i)
		}
		for _, ev := range d.Events() {
			b.log = append(b.log, fmt.Sprintf("%d %s: %s", b.ticks, side, ev))
		}
	}
}

func (b *testNetwork) flush() {
	b.server.Flush()
	for _, d := range b.clients {
		d.Flush()
	}
	b.net.Step()
}

func (b *testNetwork) tick(n int) {
	b.t.Helper()
	for range n {
		b.update()
		b.flush()
	}
}

func (b *testNetwork) expect(want ...string) {
	b.t.Helper()
	got, wanted := strings.Join(b.log, "\n"), strings.Join(want, "\n")
	if got != wanted {
		b.t.Errorf("events:\n%s\nwant:\n%s", got, wanted)
	}
	b.log = b.log[:0]
}

func (b *testNetwork) only() netcode.Conn {
	b.t.Helper()
	var all []netcode.Conn
	for c := range b.server.Conns() {
		all = append(all, c)
	}
	if len(all) != 1 {
		b.t.Fatalf("the server has %d connections", len(all))
	}
	return all[0]
}

// pair is a connected client and the server's side of it.
func pair(t testing.TB, server, client netcode.Config) (b *testNetwork, atServer, atClient netcode.Conn) {
	t.Helper()
	b = newTestNetwork(t, server)
	_, atClient = b.join(client)
	b.tick(5)
	b.log = b.log[:0]
	return b, b.only(), atClient
}

func read(c netcode.Conn, call netcode.RPCType[[]byte]) (all []string) {
	for r := range c.RPCs() {
		if v, ok := call.From(r); ok {
			all = append(all, string(v))
		}
	}
	return all
}
