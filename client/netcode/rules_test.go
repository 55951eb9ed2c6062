package netcode_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/internal/utp"
)

// command and snapshot are the smallest ones, of tick 9.
var (
	command  = append(make([]byte, 17), 1, 9, 0, 0, 0)
	snapshot = append([]byte{1}, append(make([]byte, 13), 9, 0, 0, 0)...)
)

// received is the result of a message that a raw peer sent.
type received struct {
	ends    bool // the connection, with ReasonInvalidRPC
	rpcs    string
	ignored uint64
	stream  bool // the game has got the command or snapshot
}

// TestServerReceives goes through what a client may say in each state, as the
// table of approval and RPC classes has it: one row is one cell.
func TestServerReceives(t *testing.T) {
	for _, c := range []struct {
		state    netcode.State
		what     string
		pipeline utp.PipelineID
		bytes    []byte
		want     received
	}{
		{netcode.StateHandshake, "ordinary", utp.EntitiesReliable, packet(named("say", 1)), received{ends: true}},
		{netcode.StateHandshake, "for approval", utp.EntitiesReliable, packet(named("approve", 1)), received{rpcs: "approve"}},
		{netcode.StateHandshake, "command", utp.EntitiesUnreliable, command, received{ignored: 1}},
		{netcode.StateHandshake, "a server's question", utp.EntitiesReliable, packet(getApproved), received{ends: true}},
		{netcode.StateHandshake, "a server's welcome", utp.EntitiesReliable, packet(approved), received{ends: true}},
		{netcode.StateApproval, "ordinary", utp.EntitiesReliable, packet(named("say", 1)), received{ends: true}},
		{netcode.StateApproval, "for approval", utp.EntitiesReliable, packet(named("approve", 1)), received{rpcs: "approve"}},
		{netcode.StateApproval, "twice", utp.EntitiesReliable, packet(named("approve", 1), named("approve", 2)),
			received{rpcs: "approve approve"}},
		{netcode.StateApproval, "both", utp.EntitiesReliable, packet(named("approve", 1), named("say", 2)), received{ends: true}},
		{netcode.StateApproval, "command", utp.EntitiesUnreliable, command, received{ignored: 1}},
		{netcode.StateApproval, "a server's question", utp.EntitiesReliable, packet(getApproved), received{ends: true}},
		{netcode.StateApproval, "a server's welcome", utp.EntitiesReliable, packet(approved), received{ends: true}},
		{netcode.StateConnected, "ordinary", utp.EntitiesReliable, packet(named("say", 1)), received{rpcs: "say"}},
		{netcode.StateConnected, "for approval", utp.EntitiesReliable, packet(named("approve", 1)), received{rpcs: "approve"}},
		{netcode.StateConnected, "command", utp.EntitiesUnreliable, command, received{stream: true}},
		{netcode.StateConnected, "a large command", utp.EntitiesFragmented, append(command, make([]byte, 5000)...), received{stream: true}},
		{netcode.StateConnected, "snapshot", utp.EntitiesUnreliable, snapshot, received{ignored: 1}},
		{netcode.StateConnected, "a server's welcome", utp.EntitiesReliable, packet(approved), received{ends: true}},
	} {
		t.Run(fmt.Sprint(c.state, " ", c.what), func(t *testing.T) {
			rpc := newCalls(t)
			b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RequireApproval: c.state == netcode.StateApproval})
			r := newRawPeer(t, b)
			if c.state != netcode.StateHandshake {
				r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
				b.tick(1)
				r.pass(b)
			}
			s := b.only()
			if s.State() != c.state {
				t.Fatalf("the server's side is %v", s.State())
			}
			s.SetInGame(true)
			r.say(t, b, c.pipeline, c.bytes)
			if got := b.receives(rpc, s); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if c.want.ends {
				b.update()
				if read(s, rpc.say) != nil || read(s, rpc.approve) != nil || s.State() != netcode.StateDisconnected {
					t.Error("it is still there")
				}
			}
		})
	}
}

// TestClientReceives is the same for what a server says.
func TestClientReceives(t *testing.T) {
	for _, c := range []struct {
		state    netcode.State
		what     string
		pipeline utp.PipelineID
		bytes    []byte
		want     received
	}{
		{netcode.StateHandshake, "ordinary", utp.EntitiesReliable, packet(named("say", 1)), received{ends: true}},
		{netcode.StateHandshake, "for approval", utp.EntitiesReliable, packet(named("approve", 1)), received{rpcs: "approve"}},
		{netcode.StateHandshake, "snapshot", utp.EntitiesUnreliable, snapshot, received{ignored: 1}},
		{netcode.StateHandshake, "ordinary behind the welcome", utp.EntitiesReliable, packet(approved, named("say", 1)), received{rpcs: "say"}},
		{netcode.StateApproval, "ordinary", utp.EntitiesReliable, packet(named("say", 1)), received{ends: true}},
		{netcode.StateApproval, "for approval", utp.EntitiesReliable, packet(named("approve", 1)), received{rpcs: "approve"}},
		{netcode.StateApproval, "the question again", utp.EntitiesReliable, packet(getApproved), received{ends: true}},
		{netcode.StateApproval, "snapshot", utp.EntitiesUnreliable, snapshot, received{ignored: 1}},
		{netcode.StateConnected, "ordinary", utp.EntitiesReliable, packet(named("say", 1)), received{rpcs: "say"}},
		{netcode.StateConnected, "for approval", utp.EntitiesReliable, packet(named("approve", 1)), received{rpcs: "approve"}},
		{netcode.StateConnected, "snapshot", utp.EntitiesUnreliable, snapshot, received{stream: true}},
		{netcode.StateConnected, "a large snapshot", utp.EntitiesFragmented, append(snapshot, make([]byte, 5000)...), received{stream: true}},
		{netcode.StateConnected, "command", utp.EntitiesUnreliable, command, received{ignored: 1}},
		{netcode.StateConnected, "the question", utp.EntitiesReliable, packet(getApproved), received{ends: true}},
		{netcode.StateConnected, "a second welcome", utp.EntitiesReliable, packet(approved), received{ends: true}},
	} {
		t.Run(fmt.Sprint(c.state, " ", c.what), func(t *testing.T) {
			rpc := newCalls(t)
			b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
			d, conn := b.join(netcode.Config{RPCs: rpc.reg})
			r := newRawServer(t, b, d)
			first := packet(versionRPC(d.Version()))
			switch c.state {
			case netcode.StateApproval:
				first = packet(versionRPC(d.Version()), getApproved)
			case netcode.StateConnected:
				first = packet(versionRPC(d.Version()), approved)
			}
			r.speak(t, b, utp.EntitiesReliable, first)
			b.tick(1)
			r.answer(b)
			if conn.State() != c.state {
				t.Fatalf("the client is %v", conn.State())
			}
			conn.SetInGame(true)
			r.speak(t, b, c.pipeline, c.bytes)
			if got := b.receives(rpc, conn); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// receives makes an Update of the network's server and returns its result.
func (b *testNetwork) receives(rpc calls, c netcode.Conn) (got received) {
	b.t.Helper()
	before, _ := c.Stats()
	b.update()
	for _, ev := range b.server.Events() {
		got.ends = got.ends || ev.State == netcode.StateDisconnected && ev.Reason == netcode.ReasonInvalidRPC
	}
	var names []string
	for r := range c.RPCs() {
		for name, call := range map[string]netcode.RPCType[[]byte]{"say": rpc.say, "approve": rpc.approve} {
			if _, ok := call.From(r); ok {
				names = append(names, name)
			}
		}
	}
	got.rpcs = strings.Join(names, " ")
	if st, ok := c.Stats(); ok {
		got.ignored = st.Ignored - before.Ignored
	}
	_, _, got.stream = c.Snapshot()
	for range c.Commands() {
		got.stream = true
	}
	return got
}

// TestSendInNoState: a connection that has ended sends nothing, and a broadcast
// ignores it.
func TestSendInNoState(t *testing.T) {
	b, rpc, s, c := rpcPair(t, false)
	c.Disconnect(netcode.ReasonConnectionClose, "")
	b.tick(3)
	for _, who := range []netcode.Conn{s, c} {
		for _, r := range []netcode.RPC{rpc.say.New(nil), rpc.approve.New(nil)} {
			if err := who.SendRPC(r); err != netcode.ErrGone {
				t.Errorf("%v: %v", who.State(), err)
			}
		}
	}
	if n := b.server.Broadcast(rpc.say.New(nil)); n != 0 {
		t.Errorf("a broadcast reached %d ended connections", n)
	}
}

// TestStreamsBeforeConnected: commands need more than a wish to be in game.
func TestStreamsBeforeConnected(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true})
	_, c := b.join(netcode.Config{})
	for range 6 {
		c.SetInGame(true)
		if err := c.SendCommand(1, nil); err != netcode.ErrNotAllowed {
			t.Errorf("%v: %v", c.State(), err)
		}
		for s := range b.server.Conns() {
			s.SetInGame(true)
			if err := s.SendSnapshot(1, nil); err != netcode.ErrNotAllowed {
				t.Errorf("server, %v: %v", s.State(), err)
			}
		}
		b.tick(1)
	}
	if c.State() != netcode.StateApproval {
		t.Errorf("the client is %v", c.State())
	}
}

// TestUnreadRPCsOfTheGone: what came with the end is not for the game.
func TestUnreadRPCsOfTheGone(t *testing.T) {
	b, rpc, s, c := rpcPair(t, false)
	if err := c.SendRPC(rpc.say.New([]byte("unread"))); err != nil {
		t.Fatal(err)
	}
	b.clients[0].Flush()
	s.Disconnect(netcode.ReasonConnectionClose, "")
	b.net.Step()
	b.update()
	if got := read(s, rpc.say); got != nil {
		t.Errorf("read %q", got)
	}
}
