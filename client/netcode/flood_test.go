package netcode_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// attacker sends requests with tokens of its choice and heartbeats for them, and never
// reads. It has as many addresses as nodes.
type attacker struct {
	t      *testing.T
	to     address.Addr
	nodes  []link.Link
	tokens uint64
	sent   int // bytes
}

func newAttacker(t *testing.T, b *testNetwork, sources int) *attacker {
	t.Helper()
	a := &attacker{t: t, to: b.node.Local()}
	for i := range sources {
		node, err := b.net.Open(link.NodeAddr(uint32(1_000_000 + i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		a.nodes = append(a.nodes, node)
	}
	return a
}

// message is the header of a message with the token of request n.
func message(kind byte, n uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{kind}, 1<<63|n)
}

func (a *attacker) send(n uint64, datagrams ...[]byte) {
	for _, d := range datagrams {
		if err := a.nodes[n%uint64(len(a.nodes))].Send(a.to, d); err != nil {
			a.t.Fatal(err)
		}
		a.sent += len(d)
	}
}

func (a *attacker) request() {
	a.tokens++
	a.send(a.tokens, append([]byte("UTP\x01\x01"), message(0, a.tokens)[1:]...))
}

// heartbeats sends one for each of the newest n requests.
func (a *attacker) heartbeats(n uint64) {
	for i := a.tokens - min(n, a.tokens) + 1; i <= a.tokens; i++ {
		a.send(i, message(3, i))
	}
}

// received returns the datagrams and bytes that reached the attacker's addresses.
func (a *attacker) received() (datagrams, bytes int) {
	for _, n := range a.nodes {
		buf := make([]byte, link.MaxDatagram)
		for ev := n.Receive(buf); ev.Kind == link.Datagram; ev = n.Receive(buf) {
		}
		after := n.Stats()
		datagrams, bytes = datagrams+int(after.Received), bytes+int(after.ReceivedBytes)
	}
	return datagrams, bytes
}

// guest is an honest client that leaves when it is connected.
type guest struct {
	*netcode.Driver
	conn  netcode.Conn
	since time.Time
}

// TestFlood: honest clients with a round trip of 300 ms come all the time, and all of them
// get in, whatever requests come from one source or from forged ones.
func TestFlood(t *testing.T) {
	for _, c := range []struct{ rate, sources, honest int }{
		{60, 1, 375}, {200, 1, 447}, {200, 2000, 300}, {5000, 2000, 50},
	} {
		t.Run(fmt.Sprintf("%d per second from %d", c.rate, c.sources), func(t *testing.T) {
			b := newTestNetwork(t, netcode.Config{})
			a := newAttacker(t, b, c.sources)
			var guests []guest
			came, refused, slowest := 0, 0, time.Duration(0)
			for tick := 0; came < c.honest || len(guests) > 0; tick++ {
				if tick%10 == 0 && came < c.honest && a.tokens >= 600 { // The flood has begun before.
					came++
					guests = append(guests, b.guest(byte(came)))
				}
				for range c.rate*(tick+1)/50 - c.rate*tick/50 {
					a.request()
				}
				a.heartbeats(uint64(c.rate/50 + 1))
				b.update()
				kept := guests[:0]
				for _, g := range guests {
					if err := g.Update(b.now); err != nil {
						t.Fatal(err)
					}
					g.Flush()
					waited := b.now.Sub(g.since)
					switch st := g.conn.State(); {
					case st == netcode.StateConnected:
						slowest = max(slowest, waited)
					case st == netcode.StateDisconnected, waited > 5*time.Second:
						refused++
					default:
						kept = append(kept, g)
						continue
					}
					if err := g.Close(); err != nil {
						t.Error(err)
					}
				}
				guests = kept
				b.flush()
				b.log = b.log[:0]
			}
			t.Logf("%d of %d clients refused, the slowest took %v; %d requests", refused, came, slowest, a.tokens)
			if refused > 0 || slowest > time.Second {
				t.Errorf("%d of %d clients refused, the slowest took %v", refused, came, slowest)
			}
		})
	}
}

// guest makes a client behind a line of 150 ms in each direction, which connects.
func (b *testNetwork) guest(seed byte) guest {
	b.t.Helper()
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		b.t.Fatal(err)
	}
	far := link.Conditions{Delay: 150 * ms}
	sim, err := simulation.New(node, simulation.Config{Seed: uint64(seed), In: far, Out: far})
	if err != nil {
		b.t.Fatal(err)
	}
	d, err := netcode.NewClient(netcode.Config{Link: sim})
	if err != nil {
		b.t.Fatal(err)
	}
	return guest{Driver: d, conn: b.connect(d), since: b.now}
}

// TestAmplification: a peer that has not proven its address gets three times its bytes at
// most, and no more datagrams than it sends, whatever else it sends blindly.
func TestAmplification(t *testing.T) {
	full := netcode.Config{MaxConnections: 1}
	for name, c := range map[string]struct {
		cfg      netcode.Config
		occupied bool // a client is connected, or waits for its approval
		blind    func(a *attacker)
	}{
		"request":           {blind: func(*attacker) {}},
		"request, approval": {cfg: netcode.Config{RequireApproval: true}, blind: func(*attacker) {}},
		"requests":          {blind: (*attacker).request},
		"heartbeats":        {blind: func(a *attacker) { a.heartbeats(1) }},
		"disconnect":        {blind: func(a *attacker) { a.send(a.tokens, message(2, a.tokens)) }},
		"version":           {blind: func(a *attacker) { a.send(a.tokens, a.version(0)) }},
		"acknowledgement":   {blind: func(a *attacker) { a.send(a.tokens, a.ack()) }},
		"version, ack":      {blind: func(a *attacker) { a.send(a.tokens, a.version(0), a.ack()) }},
		"invalid RPC":       {blind: func(a *attacker) { a.send(a.tokens, a.version(7)) }},
		"wrong cookies":     {blind: (*attacker).guess},
		"full server":       {cfg: full, occupied: true, blind: (*attacker).request},
		"no handshake is free": {
			cfg: netcode.Config{Limits: netcode.Limits{MaxHandshaking: 1}, RequireApproval: true}, occupied: true, blind: (*attacker).request,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNetwork(t, c.cfg)
			if c.occupied {
				b.join(netcode.Config{})
				b.tick(5)
			}
			a := newAttacker(t, b, 1)
			a.request()
			sent := 1
			for tick := range 500 { // 10 s, longer than any handshake takes.
				if tick%25 == 1 {
					before := a.sent
					c.blind(a)
					if a.sent > before {
						sent += 2 // The most that one call sends.
					}
				}
				b.tick(1)
			}
			datagrams, bytes := a.received()
			t.Logf("%d bytes were answered with %d datagrams of %d bytes", a.sent, datagrams, bytes)
			if bytes > 3*a.sent || datagrams > sent {
				t.Errorf("%d bytes were answered with %d datagrams of %d bytes", a.sent, datagrams, bytes)
			}
		})
	}
}

func (a *attacker) version(game int32) []byte {
	b := append(message(1, a.tokens), 2, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF)
	return append(b, packet(versionRPC(netcode.ProtocolVersion{Protocol: netcode.WireVersion, Game: game}))...)
}

func (a *attacker) ack() []byte {
	return append(message(1, a.tokens), 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)
}

// guess sends the request again, with a cookie that is wrong.
func (a *attacker) guess() {
	b := append([]byte("UTP\x01\x01"), message(0, a.tokens)[1:]...)
	a.send(a.tokens, append(b, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8))
}

// lossy is a link that loses one datagram: the n-th that is sent, or received.
type lossy struct {
	link.Link
	send, receive int
	sends, takes  int
}

func (l *lossy) Send(to address.Addr, b []byte) error {
	if l.sends++; l.sends == l.send {
		return nil
	}
	return l.Link.Send(to, b)
}

func (l *lossy) Receive(b []byte) link.Event {
	ev := l.Link.Receive(b)
	if ev.Kind != link.Datagram {
		return ev
	}
	if l.takes++; l.takes == l.receive {
		return l.Link.Receive(b)
	}
	return ev
}

// TestHandshakeLosesOne: whatever single datagram is lost, the client repeats it in time.
func TestHandshakeLosesOne(t *testing.T) {
	for _, approval := range []bool{false, true} {
		for n := 1; n <= 8; n++ {
			for _, l := range []lossy{{send: n}, {receive: n}} {
				b := newTestNetwork(t, netcode.Config{RequireApproval: approval})
				node, err := b.net.Open(address.Addr{})
				if err != nil {
					t.Fatal(err)
				}
				l.Link = node
				d := b.driver(netcode.NewClient, netcode.Config{Link: &l})
				b.clients = append(b.clients, d)
				c := b.connect(d)
				for b.ticks < 75 && c.State() != netcode.StateConnected {
					b.update()
					for s := range b.server.Conns() {
						if approval {
							_ = s.Approve()
						}
					}
					b.flush()
				}
				if c.State() != netcode.StateConnected {
					t.Errorf("approval %v, sent %d or received %d lost: %v after 1.5 s", approval, l.send, l.receive, c.State())
				}
			}
		}
	}
}

// TestClientsOfOneAddress: those above the bound of a source get no answer and ask again,
// and get in when the ones before them are connected. Other sources do not wait.
func TestClientsOfOneAddress(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{RequireApproval: true, Limits: netcode.Limits{MaxHandshakingPerSource: 2}})
	school := netip.MustParseAddr("2001:db8:ffff::1")
	var conns []netcode.Conn
	for i := range 4 {
		at := address.FromUDP(netip.AddrPortFrom(school, uint16(1000+i)))
		if i == 3 {
			at = address.Addr{}
		}
		node, err := b.net.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		d := b.driver(netcode.NewClient, netcode.Config{Link: node})
		b.clients = append(b.clients, d)
		conns = append(conns, b.connect(d))
	}
	b.tick(100)
	for i, want := range []netcode.State{netcode.StateApproval, netcode.StateApproval, netcode.StateHandshake, netcode.StateApproval} {
		if st := conns[i].State(); st != want {
			t.Errorf("client %d is %v, want %v", i, st, want)
		}
	}
	for range 100 {
		b.update()
		for c := range b.server.Conns() {
			_ = c.Approve()
		}
		b.flush()
	}
	for i, c := range conns {
		if c.State() != netcode.StateConnected {
			t.Errorf("client %d is %v", i, c.State())
		}
	}
}
