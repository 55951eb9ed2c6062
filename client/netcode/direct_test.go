package netcode_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
)

// cable is a socket that can be cut.
type cable struct {
	link.Link
	cut bool
}

func (c *cable) Send(to address.Addr, b []byte) error {
	if c.cut {
		return nil
	}
	return c.Link.Send(to, b)
}

// directSide is a driver over a link with a direct path.
type directSide struct {
	*netcode.Driver
	link     link.Link
	relay    link.Link
	cable    *cable
	conn     netcode.Conn // of a client
	sent     int
	received []string
	events   []netcode.Event
}

func newDirectSide(t *testing.T, make func(netcode.Config) (*netcode.Driver, error), rpc calls, relay, socket link.Link) *directSide {
	t.Helper()
	s := &directSide{relay: relay, cable: &cable{Link: socket}}
	var err error
	if s.link, err = link.OpenDirect(relay, s.cable); err != nil {
		t.Fatal(err)
	}
	if s.Driver, err = make(netcode.Config{Link: s.link, RPCs: rpc.reg}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (s *directSide) connected() bool { return s.conn.State() == netcode.StateConnected }

func (s *directSide) direct() bool { return s.link.Stats().DirectPaths > 0 }

// directMatch is a server and its clients. The server sends every text back.
type directMatch struct {
	t       *testing.T
	rpc     calls
	server  *directSide
	clients []*directSide
	talking bool
	wait    func() // for the end of a tick
}

func (m *directMatch) tick(now time.Time) {
	m.t.Helper()
	for _, s := range append([]*directSide{m.server}, m.clients...) {
		if err := s.Update(now); err != nil {
			m.t.Fatal(err)
		}
		s.events = append(s.events, s.Events()...)
		if s == m.server {
			for c := range s.Conns() {
				for _, text := range read(c, m.rpc.say) {
					if err := c.SendRPC(m.rpc.say.New([]byte(text))); err != nil {
						m.t.Fatal(err)
					}
				}
			}
		} else {
			s.received = append(s.received, read(s.conn, m.rpc.say)...)
			if m.talking && s.conn.SendRPC(m.rpc.say.New(fmt.Append(nil, s.sent))) == nil {
				s.sent++
			}
		}
		s.Flush()
	}
	m.wait()
}

// check fails unless all texts came back in order, and no connection ended.
func (m *directMatch) check() {
	m.t.Helper()
	for i, c := range m.clients {
		for j, text := range c.received {
			if text != fmt.Sprint(j) {
				m.t.Fatalf("client %d: %s came instead of %d", i, text, j)
			}
		}
		if !c.connected() {
			m.t.Errorf("client %d is %v", i, c.conn.State())
		}
	}
	for _, s := range append([]*directSide{m.server}, m.clients...) {
		if i := slices.IndexFunc(s.events, func(ev netcode.Event) bool { return ev.State == netcode.StateDisconnected }); i >= 0 {
			m.t.Errorf("event %v", s.events[i])
		}
	}
}

func (m *directMatch) all(f func(*directSide) bool) bool {
	return !slices.ContainsFunc(m.clients, func(c *directSide) bool { return !f(c) })
}

// TestDirectPathDies: connections notice neither that datagrams leave the relay, nor that the direct
// path dies and comes back.
func TestDirectPathDies(t *testing.T) {
	relay, direct := &link.Network{Linked: true}, new(link.Network)
	m := &directMatch{t: t, rpc: newCalls(t)}
	side := func(make func(netcode.Config) (*netcode.Driver, error)) *directSide {
		r, err := relay.Open(address.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := direct.Open(address.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		return newDirectSide(t, make, m.rpc, r, s)
	}
	m.wait = func() { relay.Step(); direct.Step() }
	m.server = side(netcode.NewServer)
	if err := m.server.Listen(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c := side(netcode.NewClient)
		m.clients = append(m.clients, c)
		if err := relay.Link(m.server.link.Local(), c.link.Local()); err != nil {
			t.Fatal(err)
		}
		var err error
		if c.conn, err = c.Connect(m.server.link.Local()); err != nil {
			t.Fatal(err)
		}
	}
	now := start
	run := func(span time.Duration) {
		for range span / (20 * ms) {
			now = now.Add(20 * ms)
			m.tick(now)
		}
	}
	cut := func(cut bool) {
		for _, s := range append(m.clients, m.server) {
			s.cable.cut = cut
		}
	}
	run(2 * time.Second)
	if !m.all((*directSide).connected) || !m.all((*directSide).direct) {
		t.Fatal("not connected directly")
	}
	m.talking = true
	for round := range 3 {
		before := m.server.relay.Stats().Sent
		run(2 * time.Second)
		if used := m.server.relay.Stats().Sent - before; used > 3 { // an offer for each
			t.Errorf("round %d: %d datagrams over the relay", round, used)
		}
		cut(true)
		run(2200 * ms)
		if m.clients[0].direct() || m.server.direct() {
			t.Error("the path is used 2.2 s after it died")
		}
		at := len(m.clients[0].received)
		run(20 * time.Second)
		if got := len(m.clients[0].received) - at; got < 900 {
			t.Errorf("round %d: %d texts in 20 s over the relay", round, got)
		}
		cut(false)
		run(time.Minute)
		if !m.all((*directSide).direct) {
			t.Errorf("round %d: no path again; %+v", round, m.server.link.Stats())
		}
	}
	m.talking = false
	run(2 * time.Second)
	if !m.all(func(c *directSide) bool { return c.sent > 10_000 && len(c.received) == c.sent }) {
		t.Errorf("client 0: %d sent, %d received", m.clients[0].sent, len(m.clients[0].received))
	}
	m.check()
}

// TestDirectOverRelay: players behind a real relay reach their host over sockets.
func TestDirectOverRelay(t *testing.T) {
	m := &directMatch{t: t, rpc: newCalls(t), wait: func() { time.Sleep(ms) }}
	behind := &match{t: t, relay: enginetest.Start(t, engine.Config{})}
	side := func(make func(netcode.Config) (*netcode.Driver, error), res alloc.Reservation) *directSide {
		r := behind.open(res)
		if r == nil {
			t.FailNow()
		}
		socket, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		return newDirectSide(t, make, m.rpc, r, socket)
	}
	host := behind.relay.Host("host", 2)
	m.server = side(netcode.NewServer, host)
	if err := m.server.Listen(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c := side(netcode.NewClient, behind.relay.Joiner(fmt.Sprint("player", i), host.ID))
		m.clients = append(m.clients, c)
		var err error
		if c.conn, err = c.Connect(m.server.link.Local()); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for give := time.Now().Add(patience); !done(); m.tick(time.Now()) {
			if time.Now().After(give) {
				t.Fatalf("waited in vain for %s; %+v", what, m.server.link.Stats())
			}
		}
	}
	until("connections", func() bool { return m.all((*directSide).connected) })
	until("direct paths", func() bool {
		return m.all((*directSide).direct) && m.server.link.Stats().DirectPaths == 2
	})
	m.talking = true
	from := m.server.link.Stats()
	until("500 datagrams over direct paths", func() bool {
		st := m.server.link.Stats()
		return st.DirectReceived >= from.DirectReceived+500 && st.DirectSent >= from.DirectSent+500
	})
	for _, s := range append(m.clients, m.server) {
		s.cable.cut = true
	}
	until("the relay", func() bool { return !m.server.direct() && !m.all((*directSide).direct) })
	at := m.clients[0].sent
	until("texts over the relay", func() bool {
		return m.all(func(c *directSide) bool { return len(c.received) >= at+100 })
	})
	m.talking = false
	until("all texts", func() bool { return m.all(func(c *directSide) bool { return len(c.received) == c.sent }) })
	m.check()
}
