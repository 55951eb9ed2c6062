package netcode_test

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

func TestKick(t *testing.T) {
	b, s, c := pair(t, netcode.Config{}, netcode.Config{})
	s.SetUserData("user data")
	if s.UserData() != "user data" {
		t.Error("user data is lost")
	}
	s.Disconnect(netcode.ReasonApprovalFailure, "go away")
	s.Disconnect(netcode.ReasonTimeout, "second thoughts")
	if s.State() != netcode.StateConnected {
		t.Error("it ends inside the call")
	}
	b.tick(10)
	b.expect("6 S: 1 disconnected, approval failure", "7 C1: 1 disconnected, closed by remote (approval failure: go away)")
	if s.UserData() != nil || c.State() != netcode.StateDisconnected {
		t.Error("something is left")
	}
	for _, err := range []error{s.Approve(), s.SendRPC(netcode.RPC{}), s.SendSnapshot(1, nil), c.SendCommand(1, nil)} {
		if err != netcode.ErrGone {
			t.Errorf("a call after the end: %v", err)
		}
	}
	if n := b.server.Stats().Connections; n != 0 {
		t.Errorf("%d connections linger", n)
	}
}

// TestNoticeIsLost: what the notice lacks, the disconnects of the transport
// still bring, within the linger time.
func TestNoticeIsLost(t *testing.T) {
	b, s, _ := pair(t, netcode.Config{Timeouts: netcode.Timeouts{MaxResend: 10 * time.Second}}, netcode.Config{})
	s.Disconnect(netcode.ReasonServerFull, "lost")
	b.update()
	at := b.nodes[0].Local()
	if err := b.net.Move(b.nodes[0].Local(), link.NodeAddr(99)); err != nil {
		t.Fatal(err)
	}
	b.flush()
	b.log = b.log[:0]
	for range 2 {
		b.now = b.now.Add(200 * ms)
		if err := b.server.Update(b.now); err != nil {
			t.Fatal(err)
		}
		if b.now.Sub(start) > 500*ms { // 250 ms are over
			if err := b.net.Move(link.NodeAddr(99), at); err != nil {
				t.Fatal(err)
			}
		}
		b.server.Flush()
		b.net.Step()
	}
	b.tick(2)
	b.expect("7 C1: 1 disconnected, closed by remote")
}

// TestNoticeIsLate: a notice after the end of the transport belongs to no connection.
func TestNoticeIsLate(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	r := newRawPeer(t, b)
	r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
	b.tick(1)
	r.pass(b)
	if err := r.Send(r.conn, utp.EntitiesReliable, packet(system(0xFFFB, 101, 'l', 'a', 't', 'e'))); err != nil {
		t.Fatal(err)
	}
	var late [][]byte
	for _, data, ok := r.Next(); ok; _, data, ok = r.Next() {
		late = append(late, bytes.Clone(data))
	}
	if len(late) != 1 {
		t.Fatalf("the notice has %d packets", len(late))
	}
	r.Disconnect(r.conn)
	r.pass(b)
	before := dropped(b.server, "token")
	if err := r.node.Send(b.node.Local(), late[0]); err != nil {
		t.Fatal(err)
	}
	b.net.Step()
	b.tick(2)
	b.expect("2 S: 0 handshake", "3 S: 1 connected", "4 S: 1 disconnected, closed by remote")
	if got := dropped(b.server, "token"); got <= before {
		t.Errorf("%d datagrams without a connection, as before", got)
	}
}

// dropped returns how many datagrams a driver dropped for a reason.
func dropped(d *netcode.Driver, reason string) uint64 {
	return d.Stats().Drops[reason]
}

func TestSilence(t *testing.T) {
	b, _, _ := pair(t, netcode.Config{}, netcode.Config{})
	b.clients = nil
	b.tick(1) // What the client sent last arrives.
	b.step = 30 * time.Second
	b.tick(1)
	b.expect("7 S: 1 stalled")
	b.step = ms
	b.tick(1)
	b.expect("8 S: 1 disconnected, timeout")
}

func TestNobodyAnswers(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	d, _ := b.join(netcode.Config{Timeouts: netcode.Timeouts{ConnectAttempts: 2}})
	b.server, b.clients = d, nil // The server is not there.
	b.step = 501 * ms
	b.tick(6)
	b.expect("1 S: 0 connecting", "5 S: 0 disconnected, too many connection attempts")
	if _, err := d.Connect(b.node.Local()); err != nil {
		t.Errorf("another try: %v", err)
	}
}

// TestTransportsDiffer: the headers of another window differ in size. The acknowledgement of the
// first message shows that, or the first message, which is not even an RPC packet.
func TestTransportsDiffer(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	cfg := utp.NetcodeForEntities()
	cfg.Window = 64
	newRawPeerOf(t, b, cfg)
	b.tick(1)
	b.expect("2 S: 0 handshake", "3 S: 0 disconnected, protocol error: "+utp.ErrWindowMismatch.Error())

	b = newTestNetwork(t, netcode.Config{})
	r := newRawPeer(t, b)
	r.say(t, b, utp.EntitiesReliable, []byte{0, 0, 0, 0})
	b.tick(1)
	r.pass(b)
	b.expect("2 S: 0 handshake", "3 S: 0 disconnected, protocol error")
	if text := r.closeText(); !strings.Contains(text, "the transports differ") {
		t.Errorf("the peer gets %q", text)
	}
}

// TestLinkLosesPeers: over a link that knows its peers, as a relay does.
func TestLinkLosesPeers(t *testing.T) {
	b, at := linkedPair(t)
	d := b.clients[0]
	c := b.connect(d)
	b.tick(6)
	b.log = b.log[:0]
	b.node.Disconnect(at.Local())
	b.net.Step()
	b.update()
	ev := d.Events()
	if len(ev) != 1 || ev[0].Reason != netcode.ReasonProtocolError || ev[0].Cause != utp.ErrPeerGone || ev[0].Conn != c {
		t.Errorf("%v", ev)
	}
}

// dialling is a node of a Linked network that gets its link when it dials, one
// step later.
type dialling struct {
	link.Link
	dial  func() error
	dials int
}

func (d *dialling) Dial() error {
	d.dials++
	return d.dial()
}

// linkedPair is a server and a client that is not connected yet, over a network
// that plays a relay.
func linkedPair(t *testing.T) (b *testNetwork, at *dialling) {
	t.Helper()
	w := &link.Network{Linked: true}
	host, _ := w.Open(address.Addr{})
	player, _ := w.Open(address.Addr{})
	b = &testNetwork{t: t, net: w, node: host, now: start, step: 20 * ms}
	b.server = b.driver(netcode.NewServer, netcode.Config{Link: host, Rand: newChance(0)})
	if err := b.server.Listen(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	at = &dialling{Link: player, dial: func() error { return w.Link(host.Local(), player.Local()) }}
	b.clients = []*netcode.Driver{b.driver(netcode.NewClient, netcode.Config{Link: at, Rand: newChance(1)})}
	return b, at
}

// TestAttemptSurvivesTheOldLink: the relay's word about a former connection
// does not end the attempt that came after it.
func TestAttemptSurvivesTheOldLink(t *testing.T) {
	b, at := linkedPair(t)
	d := b.clients[0]
	b.connect(d)
	b.tick(5)
	b.only().Disconnect(netcode.ReasonConnectionClose, "")
	b.tick(2)
	b.expect("1 C1: 0 connecting", "4 C1: 0 handshake", "5 S: 0 handshake", "5 S: 1 connected",
		"6 S: 1 disconnected, connection closed", "6 C1: 1 connected", "7 C1: 1 disconnected, closed by remote (connection closed)")
	c := b.connect(d)
	b.node.Disconnect(at.Local()) // The relay gets the DISCONNECT now.
	b.net.Step()
	b.tick(8) // The first request finds no link, the second leaves with it.
	b.expect("8 C1: 0 connecting", "11 C1: 0 handshake", "12 S: 0 handshake", "12 S: 1 connected", "13 C1: 1 connected")
	if at.dials != 3 || c.State() != netcode.StateConnected {
		t.Errorf("%d dials, the connection is %v", at.dials, c.State())
	}
}

// TestAttemptOverNoLink: a server whose relay ends each link at once is given up.
func TestAttemptOverNoLink(t *testing.T) {
	b, at := linkedPair(t)
	link := at.dial
	at.dial = func() error {
		if err := link(); err != nil {
			return err
		}
		b.node.Disconnect(at.Local())
		return nil
	}
	b.connect(b.clients[0])
	for range 20 {
		b.node.Disconnect(at.Local())
		b.tick(1)
	}
	if at.dials != 4 || len(b.log) != 2 || !strings.HasSuffix(b.log[1], "C1: 0 disconnected, protocol error: utp: the link lost the peer") {
		t.Errorf("%d dials, events %q", at.dials, b.log)
	}
}

func TestClose(t *testing.T) {
	b, _, _ := pair(t, netcode.Config{}, netcode.Config{})
	server := b.server
	for range 2 {
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := server.Update(b.now); err != net.ErrClosed {
		t.Errorf("update after close: %v", err)
	}
	server.Flush()
	b.net.Step()
	b.server, b.clients = b.clients[0], nil
	b.tick(1)
	b.expect("6 S: 1 disconnected, closed by remote (connection closed)")
	if err := server.Listen(address.Addr{}); err == nil {
		t.Error("a closed server listens")
	}
}

func TestCaps(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{MaxConnections: 3, Limits: netcode.Limits{MaxHandshaking: 2}, RequireApproval: true})
	for range 4 {
		b.join(netcode.Config{})
	}
	b.tick(6)
	counts := map[netcode.State]int{}
	for _, d := range b.clients {
		st := netcode.StateDisconnected
		for c := range d.Conns() {
			st = c.State()
		}
		counts[st]++
	}
	if counts[netcode.StateApproval] != 2 || counts[netcode.StateDisconnected] != 2 {
		t.Errorf("%v", counts)
	}
	st := b.server.Stats()
	if st.Handshaking != 2 || st.Refused == 0 {
		t.Errorf("%+v", st)
	}
	for _, line := range b.log {
		if strings.Contains(line, "S: 0 disconnected") {
			t.Errorf("a refused client is an event: %s", line)
		}
	}
}

// TestRPCsBeforeTheEnd: RPCs before the end of a connection arrive, whatever the order of the calls,
// whichever side ends it, and however seldom the other side makes its ticks.
func TestRPCsBeforeTheEnd(t *testing.T) {
	const kicked = "closed by remote (server full: no room)"
	const closed = "closed by remote (connection closed)"
	type side struct {
		*netcode.Driver
		conn netcode.Conn
	}
	for name, k := range map[string]struct {
		do   func(b *testNetwork, from side, send, end func())
		want string // the other side's end
	}{
		"in the game's turn": {func(b *testNetwork, from side, send, end func()) {
			b.update()
			send()
			end()
			from.Flush()
		}, kicked},
		"before Update":          {func(_ *testNetwork, _ side, send, end func()) { send(); end() }, kicked},
		"Flush, then Disconnect": {func(_ *testNetwork, from side, send, end func()) { send(); from.Flush(); end() }, kicked},
		"Flush, then Close": {func(b *testNetwork, from side, send, _ func()) {
			send()
			from.Flush()
			closeDriver(t, b, from.Driver)
		}, closed},
		"Close": {func(b *testNetwork, from side, send, _ func()) { send(); closeDriver(t, b, from.Driver) }, closed},
		"Disconnect, then Close": {func(b *testNetwork, from side, send, end func()) {
			send()
			end()
			closeDriver(t, b, from.Driver)
		}, kicked},
	} {
		for _, slow := range []int{1, 2, 7} { // ticks of one side to one of the other
			for _, byServer := range []bool{true, false} {
				b, rpc, s, c := rpcPair(t, false)
				from, to := side{b.server, s}, side{b.clients[0], c}
				if !byServer {
					from, to = to, from
				}
				send := func() {
					if err := from.conn.SendRPC(rpc.say.New([]byte("the last one"))); err != nil {
						t.Fatal(err)
					}
				}
				k.do(b, from, send, func() { from.conn.Disconnect(netcode.ReasonServerFull, "no room") })
				rpcs, ends := b.endOf(from.Driver, to.Driver, to.conn, rpc, slow)
				if len(rpcs) != 1 || rpcs[0] != "the last one" || len(ends) != 1 || ends[0] != "1 disconnected, "+k.want {
					t.Errorf("%s, server %v, 1 tick of %d: the other side got %q and then %q", name, byServer, slow, rpcs, ends)
				}
				if left := read(to.conn, rpc.say); len(left) != 0 {
					t.Errorf("%s: RPCs are left after the tick: %q", name, left)
				}
			}
		}
	}
}

// endOf makes ticks of a side that ends a connection, slow of them to one of the other side, and
// returns the RPCs and events of the latter.
func (b *testNetwork) endOf(from, to *netcode.Driver, c netcode.Conn, rpc calls, slow int) (rpcs, ends []string) {
	b.t.Helper()
	for range 10 {
		for range slow {
			b.now = b.now.Add(b.step)
			if err := from.Update(b.now); err != nil && !errors.Is(err, net.ErrClosed) {
				b.t.Fatal(err)
			}
			from.Flush()
			b.net.Step()
		}
		if err := to.Update(b.now); err != nil {
			b.t.Fatal(err)
		}
		rpcs = append(rpcs, read(c, rpc.say)...)
		for _, ev := range to.Events() {
			ends = append(ends, ev.String())
		}
		to.Flush()
		b.net.Step()
	}
	return rpcs, ends
}

func closeDriver(t *testing.T, b *testNetwork, d *netcode.Driver) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	b.net.Step()
}

// TestServerFull: a client that finds no room learns the reason, from one datagram of the server, since its
// address may be forged.
func TestServerFull(t *testing.T) {
	for name, cfg := range map[string]netcode.Config{
		"connections": {MaxConnections: 1}, "handshakes": {Limits: netcode.Limits{MaxHandshaking: 1}, RequireApproval: true},
	} {
		t.Run(name, func(t *testing.T) {
			b, _, _ := pair(t, cfg, netcode.Config{})
			b.join(netcode.Config{})
			b.tick(4)
			b.expect("6 C2: 0 connecting", "8 C2: 0 disconnected, closed by remote (server full)")
		})
	}
}
