package netcode_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// gate is a link that loses everything while it is shut.
type gate struct {
	link.Link
	shutOut, shutIn bool
}

func (g *gate) Send(to address.Addr, b []byte) error {
	if g.shutOut {
		return nil
	}
	return g.Link.Send(to, b)
}

func (g *gate) Receive(b []byte) link.Event {
	ev := g.Link.Receive(b)
	for g.shutIn && ev.Kind == link.Datagram {
		ev = g.Link.Receive(b)
	}
	return ev
}

// gated makes a client behind a gate that connects.
func (b *testNetwork) gated(cfg netcode.Config) (*gate, netcode.Conn) {
	b.t.Helper()
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		b.t.Fatal(err)
	}
	g := &gate{Link: node}
	cfg.Link, cfg.Rand = g, newChance(99)
	d := b.driver(netcode.NewClient, cfg)
	b.clients = append(b.clients, d)
	return g, b.connect(d)
}

// TestCommandsOnceAcrossInGame: a command that was handled does not come again after SetInGame was
// off and on, and a new sequence of ticks still passes.
func TestCommandsOnceAcrossInGame(t *testing.T) {
	b, s, c := inGame(t)
	var got []uint32
	send := func(tick uint32) {
		t.Helper()
		if err := c.SendCommand(tick, nil); err != nil {
			t.Fatal(err)
		}
		b.flush()
		b.update()
		for command := range s.Commands() {
			got = append(got, command.Tick)
		}
	}
	for tick := range uint32(20) {
		send(tick + 1)
		if tick%5 == 4 {
			s.SetInGame(false)
			s.SetInGame(true)
		}
	}
	var want []uint32
	for tick := range uint32(20) {
		want = append(want, tick+1)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the server handled %v", got)
	}
	for _, first := range []uint32{1, 15, 5000, 3} {
		for _, side := range []netcode.Conn{s, c} {
			side.SetInGame(false)
			side.SetInGame(true)
		}
		got = got[:0]
		for tick := range uint32(5) {
			send(first + tick)
		}
		if !slices.Equal(got, []uint32{first, first + 1, first + 2, first + 3, first + 4}) {
			t.Errorf("of a sequence from %d the server handled %v", first, got)
		}
	}
}

// TestSnapshotsOnceAcrossInGame: the same for a snapshot that the network repeats.
func TestSnapshotsOnceAcrossInGame(t *testing.T) {
	b, s, c := inGame(t)
	if err := s.SendSnapshot(7, []byte("x")); err != nil {
		t.Fatal(err)
	}
	b.server.Flush()
	b.net.Step()
	var copied [][]byte
	node := b.nodes[0]
	buf := make([]byte, link.MaxDatagram)
	for ev := node.Receive(buf); ev.Kind != link.Nothing; ev = node.Receive(buf) {
		copied = append(copied, slices.Clone(buf[:ev.N]))
	}
	deliver := func() (ok bool) {
		t.Helper()
		for _, pkt := range copied {
			if err := b.node.Send(node.Local(), pkt); err != nil {
				t.Fatal(err)
			}
		}
		b.net.Step()
		b.update()
		_, _, ok = c.Snapshot()
		return ok
	}
	if !deliver() {
		t.Fatal("the snapshot did not come")
	}
	c.SetInGame(false)
	c.SetInGame(true)
	if deliver() {
		t.Error("the snapshot came again")
	}
}

// TestUnusableServers: no server is at these addresses.
func TestUnusableServers(t *testing.T) {
	for _, at := range []string{
		"0.0.0.0:7979", "[::]:7979", "255.255.255.255:7979", "224.0.0.1:7979", "[ff02::1]:7979", "127.255.255.255:7979",
	} {
		d, err := netcode.NewClient(netcode.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Connect(address.FromUDP(netip.MustParseAddrPort(at))); !errors.Is(err, link.ErrAddr) {
			t.Errorf("%s: %v", at, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// until ticks until an event of a side, and returns it and how long that took.
func (b *testNetwork) until(d *netcode.Driver, limit time.Duration, want netcode.State) (netcode.Event, time.Duration) {
	b.t.Helper()
	for from := b.now; b.now.Sub(from) < limit; {
		b.update()
		for _, ev := range d.Events() {
			if ev.State == want {
				return ev, b.now.Sub(from)
			}
		}
		b.flush()
	}
	b.t.Fatalf("no %v within %v; events: %q", want, limit, b.log)
	return netcode.Event{}, 0
}

// TestSilentServerInHandshake: a server that accepts a client and then says nothing.
func TestSilentServerInHandshake(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	g, _ := b.gated(netcode.Config{})
	b.until(b.clients[0], time.Second, netcode.StateHandshake)
	g.shutIn, g.shutOut = true, true
	ev, took := b.until(b.clients[0], time.Minute, netcode.StateDisconnected)
	if ev.Reason != netcode.ReasonHandshakeTimeout || took > 5500*ms {
		t.Errorf("%v after %v", ev, took)
	}
}

// TestTimeoutReachesTheClient: a server that hears nothing of a client tells it so, if it can,
// also if its window of RPCs is full.
func TestTimeoutReachesTheClient(t *testing.T) {
	for _, rpcs := range []int{0, 1, 40} {
		rpc := newCalls(t)
		b := newTestNetwork(t, netcode.Config{Timeouts: netcode.Timeouts{Disconnect: 3 * time.Second}, RPCs: rpc.reg})
		g, c := b.gated(netcode.Config{RPCs: rpc.reg})
		b.until(b.clients[0], time.Second, netcode.StateConnected)
		g.shutOut = true
		for range rpcs {
			if err := b.only().SendRPC(rpc.say.New([]byte("x"))); err != nil {
				t.Fatal(err)
			}
			b.tick(1)
		}
		ev, took := b.until(b.clients[0], time.Minute, netcode.StateDisconnected)
		if ev.Conn != c || ev.Reason != netcode.ReasonClosedByRemote || ev.PeerReason != netcode.ReasonTimeout || took > 3500*ms {
			t.Errorf("%d RPCs: %v after %v", rpcs, ev, took)
		}
	}
}

// TestApprovalTimeoutReachesTheClient is the same for a game that does not decide.
func TestApprovalTimeoutReachesTheClient(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true, Timeouts: netcode.Timeouts{HandshakeApproval: 2 * time.Second}})
	b.gated(netcode.Config{})
	ev, took := b.until(b.clients[0], time.Minute, netcode.StateDisconnected)
	if ev.Reason != netcode.ReasonClosedByRemote || ev.PeerReason != netcode.ReasonApprovalTimeout || took > 2500*ms {
		t.Errorf("%v after %v", ev, took)
	}
}

// TestStall: both sides learn that nothing comes any more, and that it does again.
func TestStall(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	g, c := b.gated(netcode.Config{})
	client := b.clients[0]
	b.until(client, time.Second, netcode.StateConnected)
	b.tick(500) // Heartbeats alone are no stall.
	b.log = b.log[:0]
	g.shutIn, g.shutOut = true, true
	ev, took := b.until(client, 10*time.Second, netcode.StateStalled)
	if ev.Conn != c || ev.NetworkID != 1 || took < 1500*ms || took > 2600*ms {
		t.Errorf("%v after %v", ev, took)
	}
	b.flush()
	b.tick(30)
	if c.State() != netcode.StateConnected || b.only().State() != netcode.StateConnected {
		t.Errorf("the client is %v, the server %v", c.State(), b.only().State())
	}
	g.shutIn, g.shutOut = false, false
	if _, took := b.until(client, 10*time.Second, netcode.StateResumed); took > 600*ms {
		t.Errorf("resumed after %v", took)
	}
	b.flush()
	b.tick(200)
	var states []string
	for _, line := range b.log {
		states = append(states, line[strings.IndexByte(line, 32)+1:])
	}
	slices.Sort(states)
	if want := []string{"C1: 1 resumed", "C1: 1 stalled", "S: 1 resumed", "S: 1 stalled"}; !slices.Equal(states, want) {
		t.Errorf("%q", states)
	}
}

// TestRoundTripAfterStall: what waited for a network that had stopped is no round trip.
func TestRoundTripAfterStall(t *testing.T) {
	for _, stall := range []int{20, 75, 500} { // ticks: 0.4, 1.5 and 10 s
		rpc := newCalls(t)
		b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
		g, c := b.gated(netcode.Config{RPCs: rpc.reg})
		b.until(b.clients[0], time.Second, netcode.StateConnected)
		say := func() {
			if err := c.SendRPC(rpc.say.New([]byte("x"))); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			say()
			b.tick(10)
		}
		before, _ := c.Stats()
		g.shutIn, g.shutOut = true, true
		say()
		b.tick(stall)
		g.shutIn, g.shutOut = false, false
		b.tick(100)
		after, _ := c.Stats()
		if after.RTT > before.RTT+100*ms {
			t.Errorf("after a stall of %d ticks the round trip is %v, before it %v", stall, after.RTT, before.RTT)
		}
	}
}
