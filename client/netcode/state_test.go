package netcode_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/internal/utp"
)

func TestScheduleWithoutApproval(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	_, c := b.join(netcode.Config{})
	b.tick(20)
	b.expect("1 C1: 0 connecting", "3 C1: 0 handshake",
		"4 S: 0 handshake", "4 S: 1 connected", "5 C1: 1 connected")
	if c.NetworkID() != 1 || b.only().NetworkID() != 1 || c.State() != netcode.StateConnected {
		t.Errorf("client %v %d", c.State(), c.NetworkID())
	}
	if b.server.Stats().Handshaking != 0 {
		t.Error("a connection is still in handshake")
	}
}

func TestScheduleWithApproval(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RequireApproval: true, RPCs: rpc.reg})
	_, c := b.join(netcode.Config{RPCs: rpc.reg})
	for range 12 {
		b.update()
		if b.ticks == 5 {
			if err := c.SendRPC(rpc.approve.New([]byte("it is me"))); err != nil {
				t.Fatal(err)
			}
		}
		for s := range b.server.Conns() {
			if got := read(s, rpc.approve); len(got) == 1 && got[0] == "it is me" {
				b.log = append(b.log, "game approves")
				for range 2 {
					if err := s.Approve(); err != nil {
						t.Errorf("approval: %v", err)
					}
				}
			}
		}
		b.flush()
	}
	b.expect("1 C1: 0 connecting", "3 C1: 0 handshake", "4 S: 0 handshake", "4 S: 0 approval",
		"5 C1: 0 approval", "game approves", "7 S: 1 connected", "8 C1: 1 connected")
}

// TestScheduleOfThree: the order is that of the connections, whatever order
// their datagrams came in.
func TestScheduleOfThree(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true})
	for range 3 {
		b.join(netcode.Config{})
	}
	for range 9 {
		b.update()
		if b.ticks == 4 {
			for c := range b.server.Conns() {
				if err := c.Approve(); err != nil {
					t.Error(err)
				}
			}
		}
		b.flush()
	}
	b.expect("1 C1: 0 connecting", "1 C2: 0 connecting", "1 C3: 0 connecting",
		"3 C1: 0 handshake", "3 C2: 0 handshake", "3 C3: 0 handshake",
		"4 S: 0 handshake", "4 S: 0 handshake", "4 S: 0 handshake", "4 S: 0 approval", "4 S: 0 approval", "4 S: 0 approval",
		"5 S: 1 connected", "5 S: 2 connected", "5 S: 3 connected", "5 C1: 0 approval", "5 C2: 0 approval", "5 C3: 0 approval",
		"6 C1: 1 connected", "6 C2: 2 connected", "6 C3: 3 connected")
}

// TestApprovalInHandshake: approval before the client's version has come is not lost.
func TestApprovalInHandshake(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true})
	r := newRawPeer(t, b)
	if err := b.only().Approve(); err != nil {
		t.Fatal(err)
	}
	r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
	b.tick(1)
	b.expect("2 S: 0 handshake", "3 S: 0 approval", "3 S: 1 connected")
}

func TestEventsAreOfOneTick(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	d, c := b.join(netcode.Config{})
	b.update()
	first, second := d.Events(), d.Events()
	if len(first) != 1 || len(second) != 1 || first[0] != second[0] || first[0].Conn != c {
		t.Errorf("%v, %v", first, second)
	}
	b.flush()
	b.update()
	if len(d.Events()) != 0 {
		t.Error("an event stays")
	}
	b.flush()
	b.tick(3)
	c.Disconnect(netcode.ReasonConnectionClose, "")
	b.update()
	ev := d.Events()
	if len(ev) != 1 || ev[0].Conn != c || c.State() != netcode.StateDisconnected || c.NetworkID() != 0 {
		t.Errorf("%v, the connection is %v", ev, c.State())
	}
}

func TestHandshakeTimeout(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	newRawPeer(t, b) // It has returned the cookie in tick 2, and falls silent.
	b.log = b.log[:0]
	b.step = 4999 * ms
	b.tick(1)
	b.expect()
	b.step = ms
	b.tick(1)
	b.expect("4 S: 0 disconnected, handshake timeout")
	b.tick(600)
	b.expect()
}

// TestApprovalTimeout: one budget for handshake and approval, and an approval
// that is too late returns an error.
func TestApprovalTimeout(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true})
	r := newRawPeer(t, b)
	b.tick(1)
	r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
	b.tick(1)
	c := b.only()
	b.log = b.log[:0]
	b.step = 4959 * ms // 40 ms of it are over.
	b.tick(1)
	b.expect()
	b.step = ms
	b.tick(1)
	b.expect("6 S: 0 disconnected, approval timeout")
	if err := c.Approve(); err != netcode.ErrGone {
		t.Errorf("late approval: %v", err)
	}
}

func TestApprovalTimeoutOfClient(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true, Timeouts: netcode.Timeouts{HandshakeApproval: time.Minute}})
	b.join(netcode.Config{})
	b.tick(5)
	b.log = b.log[:0]
	b.step = 10 * ms
	for range 600 {
		b.tick(1)
	}
	// Asked for an approval in the fifth tick.
	b.expect("505 C1: 0 disconnected, approval timeout",
		"506 S: 0 disconnected, closed by remote (approval timeout)")
}

func TestHandshakeGuardOfClient(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	d, c := b.join(netcode.Config{Timeouts: netcode.Timeouts{Disconnect: netcode.NoTimeout}})
	b.tick(2)
	for i := range 18 { // The server has accepted, and sends nothing more.
		if want := i > 0; (c.State() == netcode.StateHandshake) != want {
			t.Fatalf("tick %d: %v", i, c.State())
		}
		b.now = b.now.Add(300 * ms)
		if err := d.Update(b.now); err != nil {
			t.Fatal(err)
		}
		d.Flush()
	}
	ev := d.Events()
	if len(ev) != 1 || ev[0].Reason != netcode.ReasonHandshakeTimeout {
		t.Errorf("after 5.1 s: %v", ev)
	}
}

func TestVersions(t *testing.T) {
	other := newCalls(t)
	for _, c := range []struct {
		name          string
		cfg           netcode.Config
		field, detail string
	}{
		{"game", netcode.Config{GameVersion: 7}, "game version", "game version is 7, the peer's is 0"},
		{"rpcs", netcode.Config{RPCs: other.reg}, "RPC collection", "RPC collection"},
		{"components", netcode.Config{ComponentsHash: 5}, "components hash", "components hash"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestNetwork(t, netcode.Config{})
			d, _ := b.join(c.cfg)
			found := map[*netcode.Driver]*netcode.VersionError{}
			for range 30 {
				b.tick(1)
				for _, side := range []*netcode.Driver{b.server, d} {
					for _, ev := range side.Events() {
						if err, ok := errors.AsType[*netcode.VersionError](ev.Cause); ok {
							found[side] = err
						}
					}
				}
			}
			atServer, atClient := found[b.server], found[d]
			if atServer == nil || atClient == nil || atServer.Field != c.field || atClient.Field != c.field || atServer.Local != atClient.Remote {
				t.Fatalf("the server found %v, the client %v; want %s", atServer, atClient, c.field)
			}
			b.expect("1 C1: 0 connecting", "3 C1: 0 handshake", "4 S: 0 handshake",
				"4 S: 0 disconnected, bad protocol version: "+atServer.Error(), "5 C1: 0 disconnected, bad protocol version: "+atClient.Error())
			if !strings.HasPrefix(atClient.Error(), c.detail) {
				t.Errorf("text %q", atClient)
			}
			relaxed := newTestNetwork(t, netcode.Config{RelaxedVersion: true})
			c.cfg.RelaxedVersion = true
			relaxed.join(c.cfg)
			relaxed.tick(5)
			connected := strings.Contains(strings.Join(relaxed.log, "\n"), "C1: 1 connected")
			if want := c.name != "game"; connected != want {
				t.Errorf("relaxed: connected is %v, want %v", connected, want)
			}
		})
	}
}

// TestVersionFields lets a peer differ in each field alone, and says which on
// the wire: with the relaxed version only the first two count.
func TestVersionFields(t *testing.T) {
	for _, c := range []struct {
		change  func(*netcode.ProtocolVersion)
		detail  string
		relaxed bool // it matters then, too
	}{
		{func(v *netcode.ProtocolVersion) { v.Protocol++ }, "protocol version is 3, the peer's is 4", true},
		{func(v *netcode.ProtocolVersion) { v.Game = -3 }, "game version is 0, the peer's is -3", true},
		{func(v *netcode.ProtocolVersion) { v.RPCs = 5 }, "RPC collection is ", false},
		{func(v *netcode.ProtocolVersion) { v.Components = 6 }, "components hash is 0000000000000000, the peer's is 0000000000000006", false},
	} {
		for _, relaxed := range []bool{false, true} {
			b := newTestNetwork(t, netcode.Config{RelaxedVersion: relaxed})
			r := newRawPeer(t, b)
			v := b.server.Version()
			c.change(&v)
			r.say(t, b, utp.EntitiesReliable, packet(versionRPC(v)))
			b.tick(1)
			r.pass(b)
			if relaxed && !c.relaxed {
				b.expect("2 S: 0 handshake", "3 S: 1 connected")
				continue
			}
			var differs *netcode.VersionError
			if ev := b.server.Events(); len(ev) != 1 || !errors.As(ev[0].Cause, &differs) || !strings.HasPrefix(c.detail, differs.Field) {
				t.Fatalf("relaxed %v: %v", relaxed, ev)
			}
			b.expect("2 S: 0 handshake", "3 S: 0 disconnected, bad protocol version: "+differs.Error())
			if text := r.closeText(); !strings.Contains(text, c.detail) || text != differs.Error() {
				t.Errorf("relaxed %v: the peer gets %q, want %q", relaxed, text, c.detail)
			}
		}
	}
}

// TestVersionOnAClient: the client looks as well, whatever the server thinks.
func TestVersionOnAClient(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	d, _ := b.join(netcode.Config{})
	r := newRawServer(t, b, d)
	v := d.Version()
	v.Protocol = 0
	r.speak(t, b, utp.EntitiesReliable, packet(versionRPC(v), approved))
	b.tick(1)
	b.expect("1 S: 0 connecting", "2 S: 0 handshake", "2 S: 0 disconnected, bad protocol version: protocol version is 3, the peer's is 0")
}

func TestNetworkIDsAreReused(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	var conns []netcode.Conn
	for range 3 {
		_, c := b.join(netcode.Config{})
		conns = append(conns, c)
	}
	b.tick(5)
	for _, i := range []int{1, 0} { // 2 is freed before 1
		conns[i].Disconnect(netcode.ReasonConnectionClose, "")
		b.tick(5)
	}
	for i, want := range []netcode.NetworkID{2, 1} {
		c := b.connect(b.clients[i])
		b.tick(5)
		if c.NetworkID() != want {
			t.Errorf("id %d, want %d", c.NetworkID(), want)
		}
	}
	_, c := b.join(netcode.Config{})
	b.tick(5)
	if c.NetworkID() != 4 {
		t.Errorf("a fourth client has id %d", c.NetworkID())
	}
}

func TestReconnects(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	d, c := b.join(netcode.Config{})
	for range 10_000 {
		b.tick(5)
		if c.NetworkID() != 1 {
			t.Fatalf("tick %d: id is %d", b.ticks, c.NetworkID())
		}
		c.Disconnect(netcode.ReasonConnectionClose, "")
		b.tick(3)
		c = b.connect(d)
		b.log = b.log[:0]
	}
	b.tick(5)
	if n := b.server.Stats().Connections; n != 1 {
		t.Errorf("%d connections are left", n)
	}
}

// TestClientApprovalLimit: a client waits for the approval for as long as its limit says
// since it was asked for one, whatever the way there took.
func TestClientApprovalLimit(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true, Timeouts: netcode.Timeouts{HandshakeApproval: time.Minute}})
	b.step = 600 * ms // so that a round trip takes 1.2 s
	_, c := b.join(netcode.Config{Timeouts: netcode.Timeouts{HandshakeApproval: 2 * time.Second}})
	var asked time.Time
	for range 30 {
		b.tick(1)
		switch c.State() {
		case netcode.StateApproval:
			if asked.IsZero() {
				asked = b.now
			}
		case netcode.StateDisconnected:
			if waited := b.now.Sub(asked); waited < 2*time.Second || waited > 2*time.Second+b.step {
				t.Errorf("waited %v for an approval, want 2s and a tick at most", waited)
			}
			return
		}
	}
	t.Errorf("the client is %v", c.State())
}
