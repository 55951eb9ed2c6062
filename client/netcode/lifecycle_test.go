package netcode_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// witness knows where each connection of one side stands, by its events alone.
type witness struct {
	server bool
	states map[netcode.Conn]netcode.State
	ids    map[netcode.NetworkID]netcode.Conn // of those that are connected
	seen   map[netcode.State]int

	stalled map[netcode.Conn]bool
}

// takes says what is wrong with an event, "" if nothing is.
func (w *witness) takes(ev netcode.Event) string {
	before := w.states[ev.Conn]
	w.seen[ev.State]++
	if ev.State > netcode.StateConnected { // Stalled and resumed, after each other.
		if before != netcode.StateConnected || w.stalled[ev.Conn] != (ev.State == netcode.StateResumed) {
			return "a stall that cannot be"
		}
		w.stalled[ev.Conn] = !w.stalled[ev.Conn]
		return ""
	}
	w.states[ev.Conn] = ev.State
	switch {
	case before == netcode.StateDisconnected:
		return "an event after the end"
	case ev.State == netcode.StateUnknown, w.server && ev.State == netcode.StateConnecting:
		return "a state that has no event"
	case ev.State != netcode.StateDisconnected && ev.State <= before:
		return "a state that was left behind, or comes twice"
	case w.server && before == netcode.StateUnknown && ev.State != netcode.StateHandshake,
		!w.server && before == netcode.StateUnknown && ev.State != netcode.StateConnecting:
		return "the first event is another one"
	case ev.State < netcode.StateConnected && ev.State != netcode.StateDisconnected && ev.NetworkID != 0:
		return "an id before it is connected"
	case ev.State == netcode.StateConnected && ev.NetworkID == 0:
		return "connected without an id"
	case ev.State == netcode.StateDisconnected && (before == netcode.StateConnected) != (ev.NetworkID != 0):
		return "an id that it did not have, or the loss of one that it had"
	}
	if ev.State == netcode.StateConnected {
		if _, taken := w.ids[ev.NetworkID]; taken && w.server {
			return "the id of another one"
		}
		w.ids[ev.NetworkID] = ev.Conn
	}
	if ev.State == netcode.StateDisconnected {
		delete(w.ids, ev.NetworkID)
	}
	return ""
}

// TestEventsAreLegal plays a wild hour of a lobby over a bad network: whatever
// comes and goes, no side sees what cannot be.
func TestEventsAreLegal(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RequireApproval: true})
	bad := link.Conditions{Loss: 15, Duplicate: 15, Delay: 30 * ms, Jitter: 40 * ms, Corrupt: 1}
	for i := range 5 {
		node, err := b.net.Open(address.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		sim, err := simulation.New(node, simulation.Config{Seed: uint64(i), In: bad, Out: bad})
		if err != nil {
			t.Fatal(err)
		}
		b.clients = append(b.clients, b.driver(netcode.NewClient, netcode.Config{
			RPCs: rpc.reg, Link: sim, Rand: newChance(byte(i + 1)),
		}))
	}
	sides := append([]*netcode.Driver{b.server}, b.clients...)
	witnesses := make([]witness, len(sides))
	for i := range witnesses {
		witnesses[i] = witness{i == 0, map[netcode.Conn]netcode.State{}, map[netcode.NetworkID]netcode.Conn{}, map[netcode.State]int{},
			map[netcode.Conn]bool{}}
	}
	chance := rand.New(rand.NewPCG(7, 7))
	for range 20_000 {
		b.update()
		for i, d := range sides {
			for _, ev := range d.Events() {
				if wrong := witnesses[i].takes(ev); wrong != "" {
					t.Fatalf("tick %d, side %d: %v: %s", b.ticks, i, ev, wrong)
				}
			}
			for c := range d.Conns() {
				switch chance.IntN(400) {
				case 0:
					c.Disconnect(netcode.ReasonConnectionClose, "enough")
				case 1, 2, 3, 4, 5, 6, 7, 8:
					_ = c.Approve()
				}
			}
			if i > 0 && chance.IntN(50) == 0 {
				_, _ = d.Connect(b.node.Local())
			}
		}
		b.flush()
		b.log = b.log[:0]
	}
	for i, w := range witnesses {
		for st := netcode.StateDisconnected; st <= netcode.StateConnected; st++ {
			if w.seen[st] == 0 && (i > 0 || st != netcode.StateConnecting) {
				t.Errorf("side %d never saw %v", i, st)
			}
		}
	}
}

// TestDeny: a denied client gets the reason, and uses no id.
func TestDeny(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RequireApproval: true})
	d, _ := b.join(netcode.Config{RPCs: rpc.reg})
	b.tick(5)
	s := b.only()
	s.Disconnect(netcode.ReasonApprovalFailure, "wrong password")
	if err := s.Approve(); err != netcode.ErrNotAllowed {
		t.Errorf("approval of a denied client: %v", err)
	}
	b.tick(5)
	b.expect("1 C1: 0 connecting", "3 C1: 0 handshake", "4 S: 0 handshake", "4 S: 0 approval", "5 C1: 0 approval",
		"6 S: 0 disconnected, approval failure", "7 C1: 0 disconnected, closed by remote (approval failure: wrong password)")
	c := b.connect(d)
	for range 8 {
		b.update()
		for s := range b.server.Conns() {
			_ = s.Approve()
		}
		b.flush()
	}
	if c.NetworkID() != 1 {
		t.Errorf("the first approved client has id %d", c.NetworkID())
	}
}

// TestNetworkIDIsFreed: however a connection ends, its id is the next one's.
func TestNetworkIDIsFreed(t *testing.T) {
	for name, end := range map[string]func(b *testNetwork, s, c netcode.Conn){
		"kick":  func(_ *testNetwork, s, _ netcode.Conn) { s.Disconnect(netcode.ReasonConnectionClose, "") },
		"leave": func(_ *testNetwork, _, c netcode.Conn) { c.Disconnect(netcode.ReasonConnectionClose, "") },
		"close": func(b *testNetwork, _, _ netcode.Conn) {
			if err := b.clients[0].Close(); err != nil {
				t.Error(err)
			}
			b.clients = nil
		},
		"silence": func(b *testNetwork, _, _ netcode.Conn) {
			b.clients = nil
			b.tick(1) // What the client sent last arrives.
			b.now = b.now.Add(31 * time.Second)
		},
		"both at once": func(_ *testNetwork, s, c netcode.Conn) {
			s.Disconnect(netcode.ReasonConnectionClose, "")
			c.Disconnect(netcode.ReasonConnectionClose, "")
		},
	} {
		b, s, c := pair(t, netcode.Config{}, netcode.Config{})
		end(b, s, c)
		b.tick(2)
		_, next := b.join(netcode.Config{})
		b.tick(5)
		if next.NetworkID() != 1 || s.State() != netcode.StateDisconnected {
			t.Errorf("%s: the next one has id %d, the first is %v", name, next.NetworkID(), s.State())
		}
	}
	b := newTestNetwork(t, netcode.Config{})
	r := newRawPeer(t, b)
	r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
	b.tick(1)
	r.pass(b)
	r.say(t, b, utp.EntitiesReliable, packet(getApproved))
	b.tick(1)
	b.expect("2 S: 0 handshake", "3 S: 1 connected", "4 S: 1 disconnected, invalid RPC")
	_, next := b.join(netcode.Config{})
	b.tick(5)
	if next.NetworkID() != 1 {
		t.Errorf("invalid RPC: the next one has id %d", next.NetworkID())
	}
}

// TestRPCLength: one whose codec leaves something over, or wants more, is not
// for the game.
func TestRPCLength(t *testing.T) {
	four := netcode.Codec[[4]byte]{
		Append: func(dst []byte, v [4]byte) []byte { return append(dst, v[:]...) },
		Parse: func(b []byte) (v [4]byte, rest []byte, err error) {
			if len(b) < 4 {
				return v, nil, errors.New("too short")
			}
			return [4]byte(b), b[4:], nil
		},
	}
	for size := range 7 {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			reg := new(netcode.RPCRegistry)
			call, err := netcode.RegisterRPC(reg, "four", four)
			if err != nil {
				t.Fatal(err)
			}
			b := newTestNetwork(t, netcode.Config{RPCs: reg})
			r := newRawPeer(t, b)
			r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
			b.tick(1)
			r.pass(b)
			s := b.only()
			r.say(t, b, utp.EntitiesReliable, packet(named("four", make([]byte, size)...)))
			b.update()
			got := 0
			for rpc := range s.RPCs() {
				if _, ok := call.From(rpc); ok {
					got++
				}
			}
			if alive := s.State() == netcode.StateConnected; alive != (size == 4) || got == 1 != alive {
				t.Errorf("%v, %d RPCs", s.State(), got)
			}
		})
	}
}

// TestIDIsNotReusedInOneUpdate: a client that connects in the Update in which another one
// leaves has another id, so a game that deletes the player of a Disconnected event by its
// id does not delete the new one. What the game kept for the old one is in its event.
func TestIDIsNotReusedInOneUpdate(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true})
	b.join(netcode.Config{})
	b.tick(5)
	old := b.only()
	if err := old.Approve(); err != nil {
		t.Fatal(err)
	}
	b.tick(3)
	old.SetUserData("the old player")
	b.join(netcode.Config{})
	b.tick(5)
	b.log = b.log[:0]

	old.Disconnect(netcode.ReasonConnectionClose, "")
	for c := range b.server.Conns() {
		if c.State() == netcode.StateApproval {
			if err := c.Approve(); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.update()
	ended, connected := netcode.NetworkID(0), netcode.NetworkID(0)
	for _, ev := range b.server.Events() {
		switch ev.State {
		case netcode.StateDisconnected:
			ended = ev.NetworkID
			if ev.UserData != "the old player" {
				t.Errorf("the event has user data %v", ev.UserData)
			}
		case netcode.StateConnected:
			connected = ev.NetworkID
		}
	}
	if ended != 1 || connected != 2 {
		t.Errorf("%d ended and %d connected in one Update, want 1 and 2", ended, connected)
	}
	b.flush()
	b.join(netcode.Config{})
	b.tick(5)
	for c := range b.server.Conns() {
		if c.State() == netcode.StateApproval {
			if err := c.Approve(); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.log = b.log[:0]
	b.tick(1)
	if len(b.log) == 0 || !strings.HasSuffix(b.log[0], "S: 1 connected") {
		t.Errorf("a later client gets another id than the one that is free: %q", b.log)
	}
}

// TestClockJumpsAndReturns: an Update whose time is a minute back, and one that is right
// again, end no connection; nor does a clock that is set back for good.
func TestClockJumpsAndReturns(t *testing.T) {
	b, s, c := pair(t, netcode.Config{}, netcode.Config{})
	right := b.now
	b.now = right.Add(-time.Minute)
	b.tick(1)
	b.now = right
	b.tick(50)
	b.now = b.now.Add(-time.Hour)
	b.tick(200)
	b.expect()
	if s.State() != netcode.StateConnected || c.State() != netcode.StateConnected {
		t.Errorf("server %v, client %v", s.State(), c.State())
	}
}

// TestThousandClients: a server with the default settings has 1,000 clients at a time, whose
// commands and snapshots all arrive, in every tick; half of them leave, and others come.
func TestThousandClients(t *testing.T) {
	const clients, ticks = 1000, 20
	b := newTestNetwork(t, netcode.Config{})
	conns := make(map[*netcode.Driver]netcode.Conn)
	add := func(n int) {
		for i := range n {
			if i%200 == 0 {
				b.tick(10) // or Limits.MaxHandshaking refuses some
			}
			node, err := b.net.Open(address.Addr{})
			if err != nil {
				t.Fatal(err)
			}
			d := b.driver(netcode.NewClient, netcode.Config{Link: node})
			b.clients = append(b.clients, d)
			conns[d] = b.connect(d)
		}
		b.tick(10)
	}
	play := func() {
		t.Helper()
		ids := make(map[netcode.NetworkID]bool)
		for c := range b.server.Conns() {
			ids[c.NetworkID()] = true
			c.SetInGame(true)
		}
		for _, c := range conns {
			if c.State() != netcode.StateConnected || !ids[c.NetworkID()] {
				t.Fatalf("a client is %v with id %d", c.State(), c.NetworkID())
			}
			c.SetInGame(true)
		}
		if len(ids) != clients {
			t.Fatalf("%d clients have an id", len(ids))
		}
		commands, snapshots := 0, 0
		for range ticks {
			b.update()
			tick := uint32(b.ticks)
			for c := range b.server.Conns() {
				for range c.Commands() {
					commands++
				}
				if err := c.SendSnapshot(tick, []byte("where all are")); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range conns {
				if _, _, ok := c.Snapshot(); ok {
					snapshots++
				}
				if err := c.SendCommand(tick, []byte("go")); err != nil {
					t.Fatal(err)
				}
			}
			b.flush()
		}
		// Those of the last tick are on their way.
		if want := clients * (ticks - 1); commands != want || snapshots != want {
			t.Errorf("%d commands and %d snapshots, want %d of each", commands, snapshots, want)
		}
	}
	add(clients)
	play()
	for _, d := range b.clients[:clients/2] {
		conns[d].Disconnect(netcode.ReasonConnectionClose, "")
		delete(conns, d)
	}
	b.tick(5)
	b.clients = b.clients[clients/2:]
	add(clients / 2)
	play()
	if st := b.server.Stats(); st.Connections != clients || st.Handshaking != 0 {
		t.Errorf("%+v", st)
	}
}

// TestCloseOfZero: what no constructor has made has nothing to close.
func TestCloseOfZero(t *testing.T) {
	t.Parallel()
	var d netcode.Driver
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
