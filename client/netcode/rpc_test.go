package netcode_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

func rpcPair(t testing.TB, relaxed bool) (b *testNetwork, rpc calls, s, c netcode.Conn) {
	t.Helper()
	rpc = newCalls(t)
	cfg := netcode.Config{RPCs: rpc.reg, RelaxedVersion: relaxed}
	b, s, c = pair(t, cfg, cfg)
	return b, rpc, s, c
}

// TestCoalescing: whole RPCs, in order, as many as one packet holds.
func TestCoalescing(t *testing.T) {
	for _, relaxed := range []bool{false, true} {
		b, rpc, s, c := rpcPair(t, relaxed)
		largest := b.server.MaxRPC()
		header := 1400 - 10 - 12 - 5 - largest
		for _, k := range []struct{ sizes, packets []int }{
			{[]int{largest}, []int{1}},
			{[]int{600, largest - 600 - header}, []int{1}},
			{[]int{600, largest - 600 - header + 1}, []int{2}},
			{[]int{largest, 0}, []int{2}},
			{[]int{0, 0, 0}, []int{1}},
		} {
			before, _ := s.Stats()
			for i, n := range k.sizes {
				if err := s.SendRPC(rpc.say.New([]byte(strings.Repeat(string(rune('a'+i)), n)))); err != nil {
					t.Fatal(err)
				}
			}
			b.flush()
			after, _ := s.Stats()
			b.update()
			for i, got := range read(c, rpc.say) {
				if len(got) != k.sizes[i] {
					t.Errorf("%v: RPC %d has %d bytes", k.sizes, i, len(got))
				}
			}
			if n := int(after.PacketsSent - before.PacketsSent); n != k.packets[0] {
				t.Errorf("relaxed %v, %v: %d packets, want %d", relaxed, k.sizes, n, k.packets[0])
			}
			b.tick(3)
		}
	}
}

// TestOrderOverFullWindow: far more than a window holds, over a bad network.
func TestOrderOverFullWindow(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	bad := link.Conditions{Loss: 20, Duplicate: 20, Delay: 30 * ms, Jitter: 25 * ms}
	sim, err := simulation.New(node, simulation.Config{Seed: 4, In: bad, Out: bad})
	if err != nil {
		t.Fatal(err)
	}
	d := b.driver(netcode.NewClient, netcode.Config{RPCs: rpc.reg, Link: sim, Rand: newChance(1)})
	b.clients = append(b.clients, d)
	c := b.connect(d)
	for c.State() != netcode.StateConnected && b.ticks < 500 {
		b.tick(1)
	}
	const many = 300
	for i := range many {
		if err := c.SendRPC(rpc.say.New(fmt.Appendf(nil, "%04d%s", i, strings.Repeat("x", 600)))); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for len(got) < many && b.ticks < 5000 {
		b.update()
		for _, v := range read(b.only(), rpc.say) {
			got = append(got, v[:4])
		}
		b.flush()
	}
	if len(got) != many || !slices.IsSorted(got) {
		t.Errorf("%d of %d came, sorted: %v", len(got), many, slices.IsSorted(got))
	}
}

func TestQueueLimit(t *testing.T) {
	rpc := newCalls(t)
	cfg := netcode.Config{RPCs: rpc.reg, Limits: netcode.Limits{MaxRPCQueue: 1000}}
	_, s, _ := pair(t, cfg, cfg)
	for i, want := range []error{nil, netcode.ErrQueueFull} {
		if err := s.SendRPC(rpc.say.New(make([]byte, 600))); err != want {
			t.Errorf("RPC %d: %v, want %v", i, err, want)
		}
	}
}

// TestClasses: which classes of messages each side may send, by state.
func TestClasses(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RequireApproval: true})
	_, c := b.join(netcode.Config{RPCs: rpc.reg})
	say, approve := rpc.say.New(nil), rpc.approve.New(nil)
	check := func(who netcode.Conn, st netcode.State, wantSay, wantApprove error) {
		t.Helper()
		if who.State() != st {
			t.Fatalf("state is %v, want %v", who.State(), st)
		}
		if err := who.SendRPC(say); err != wantSay {
			t.Errorf("%v: %v", st, err)
		}
		if err := who.SendRPC(approve); err != wantApprove {
			t.Errorf("%v: for approval: %v", st, err)
		}
	}
	no := netcode.ErrNotAllowed
	check(c, netcode.StateConnecting, no, no)
	b.tick(3)
	check(c, netcode.StateHandshake, no, nil)
	early := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RequireApproval: true})
	newRawPeer(t, early) // It has returned the cookie, and not sent its version.
	check(early.only(), netcode.StateHandshake, no, nil)
	if n := early.server.Broadcast(say); n != 0 {
		t.Errorf("a broadcast reached %d in handshake", n)
	}
	b.tick(2)
	check(c, netcode.StateApproval, no, nil)
	if err := b.only().Approve(); err != nil {
		t.Fatal(err)
	}
	b.tick(2)
	check(c, netcode.StateConnected, nil, nil)
	check(b.only(), netcode.StateConnected, nil, nil)
	if n := b.server.Broadcast(say); n != 1 {
		t.Errorf("a broadcast reached %d", n)
	}
	foreign := newCalls(t)
	other, err := netcode.RegisterRPC(foreign.reg, "other", netcode.Raw())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendRPC(other.New(nil)); err != netcode.ErrUnknownRPC {
		t.Errorf("an RPC of another registry: %v", err)
	}
}

// TestInvalid: whatever breaks the rules ends the connection with the reason
// that says so, and nothing of it reaches the game.
func TestInvalid(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes []byte
	}{
		{"cut off", append(packet(), 1, 0)},
		{"ordinary in handshake", packet(utp.RPC{Index: 0}, utp.RPC{Index: 1})},
		{"index out of range", packet(utp.RPC{Index: 2})},
		{"trailing bits", packet(utp.RPC{Index: 0, Bits: 9, Payload: []byte{1, 2}})},
		{"unknown hash", packet(utp.RPC{Index: 0xFFFF, Bits: 64, Payload: make([]byte, 8)})},
		{"short hash", packet(utp.RPC{Index: 0xFFFF, Bits: 8, Payload: make([]byte, 1)})},
		{"short version", packet(utp.RPC{Index: 0xFFFE, Bits: 8, Payload: make([]byte, 1)})},
		{"get approved", packet(utp.RPC{Index: 0xFFFD})},
		{"approved", packet(utp.RPC{Index: 0xFFFC, Bits: 96, Payload: append([]byte{1}, make([]byte, 11)...)})},
		{"version and rubbish", append(packet(utp.RPC{Index: 0xFFFB + 3, Bits: 16, Payload: []byte{1, 2}}), 1)},
		{"empty notice", packet(utp.RPC{Index: 0xFFFB})},
	} {
		t.Run(c.name, func(t *testing.T) {
			rpc := newCalls(t)
			b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
			r := newRawPeer(t, b)
			r.say(t, b, utp.EntitiesReliable, c.bytes)
			b.tick(1)
			b.expect("2 S: 0 handshake", "3 S: 0 disconnected, invalid RPC")
		})
	}
}

func TestRegistry(t *testing.T) {
	rpc := newCalls(t)
	if _, err := netcode.RegisterRPC(rpc.reg, "say", netcode.Raw()); !errors.Is(err, netcode.ErrConfig) {
		t.Errorf("the same name twice: %v", err)
	}
	if _, err := netcode.RegisterRPC(rpc.reg, "none", netcode.Codec[int]{}); !errors.Is(err, netcode.ErrConfig) {
		t.Errorf("no codec: %v", err)
	}
	if _, ok := rpc.approve.From(rpc.say.New(nil)); ok {
		t.Error("one RPC is taken for another")
	}
}
