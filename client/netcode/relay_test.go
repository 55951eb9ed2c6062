package netcode_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
)

// patience bounds what a test waits for; none waits that long when all is well.
const patience = 60 * time.Second

type match struct {
	t        testing.TB
	rpc      calls
	relay    *enginetest.Relay
	host     link.Link
	at       address.Addr
	server   *netcode.Driver
	players  []*player
	bad      link.Conditions // on both hops, in both directions
	sims     []*simulation.Link
	events   []netcode.Event
	received map[netcode.NetworkID][]uint32 // numbers that the server got, by player
}

type player struct {
	*netcode.Driver
	relay    link.Link
	conn     netcode.Conn
	received []uint32
	sent     uint32
	events   []netcode.Event
}

func newMatch(t testing.TB, cfg engine.Config, players int, bad link.Conditions, approval bool) *match {
	t.Helper()
	m := &match{t: t, rpc: newCalls(t), relay: enginetest.Start(t, cfg), bad: bad, received: map[netcode.NetworkID][]uint32{}}
	res := m.relay.Host("host", players)
	m.host = m.open(res)
	m.at = m.host.Local()
	d, err := netcode.NewServer(netcode.Config{
		Link: m.sim(m.host, 1), RPCs: m.rpc.reg, RequireApproval: approval, Timeouts: netcode.Timeouts{HandshakeApproval: patience},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.server = d
	t.Cleanup(m.close)
	if err := d.Listen(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	m.join(res, players)
	return m
}

// join opens the players, eight at a time, and makes all of them connect.
func (m *match) join(host alloc.Reservation, n int) {
	m.t.Helper()
	relays := make([]link.Link, n)
	gate := make(chan struct{}, 8)
	var work sync.WaitGroup
	for i := range n {
		gate <- struct{}{} // What is reserved has to be bound within ten seconds.
		res := m.relay.Joiner(fmt.Sprint("player", i), host.ID)
		work.Go(func() {
			relays[i] = m.open(res)
			<-gate
		})
	}
	work.Wait()
	for i, r := range relays {
		if r == nil {
			m.t.Fatal("a player has no link")
		}
		d, err := netcode.NewClient(netcode.Config{
			Link: m.sim(r, uint64(i+2)), RPCs: m.rpc.reg, Timeouts: netcode.Timeouts{HandshakeApproval: patience},
		})
		if err != nil {
			m.t.Fatal(err)
		}
		p := &player{Driver: d, relay: r}
		m.players = append(m.players, p)
		if p.conn, err = d.Connect(m.at); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *match) open(res alloc.Reservation) link.Link {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticket := client.Ticket{Server: m.relay.Addr(), ID: res.ID, Key: res.Key, ConnectionData: res.ConnectionData[:]}
	if res.HostConnectionData != res.ConnectionData {
		ticket.HostConnectionData = res.HostConnectionData[:]
	}
	r, _, err := link.OpenRelay(ctx, client.Config{Ticket: ticket, RetryPeriod: 200 * ms})
	if err != nil {
		m.t.Error(err)
		return nil
	}
	return r
}

func (m *match) sim(l link.Link, seed uint64) link.Link {
	m.t.Helper()
	sim, err := simulation.New(l, simulation.Config{Seed: seed, In: m.bad, Out: m.bad})
	if err != nil {
		m.t.Fatal(err)
	}
	m.sims = append(m.sims, sim)
	return sim
}

// weather changes the network on both hops, in both directions.
func (m *match) weather(p link.Conditions) {
	m.t.Helper()
	for _, sim := range m.sims {
		if err := errors.Join(sim.SetIn(p), sim.SetOut(p)); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *match) close() {
	var work sync.WaitGroup
	for _, p := range m.players {
		work.Go(func() { _ = p.Close() })
	}
	_ = m.server.Close()
	work.Wait()
}

// turn makes one tick on all sides. The host approves all clients that send a
// name, and sends every number back.
func (m *match) turn() {
	now := time.Now()
	_ = m.server.Update(now)
	m.events = append(m.events, m.server.Events()...)
	for c := range m.server.Conns() {
		for r := range c.RPCs() {
			if _, ok := m.rpc.approve.From(r); ok {
				_ = c.Approve()
			}
			if v, ok := m.rpc.say.From(r); ok && len(v) == 4 {
				m.received[c.NetworkID()] = append(m.received[c.NetworkID()], binary.LittleEndian.Uint32(v))
				_ = c.SendRPC(r)
			}
		}
	}
	m.server.Flush()
	for _, p := range m.players {
		p.turn(m, now)
	}
	time.Sleep(ms)
}

func (p *player) turn(m *match, now time.Time) {
	_ = p.Update(now)
	for _, ev := range p.Events() {
		p.events = append(p.events, ev)
		if ev.State == netcode.StateApproval {
			_ = ev.Conn.SendRPC(m.rpc.approve.New(nil))
		}
	}
	for _, v := range read(p.conn, m.rpc.say) {
		p.received = append(p.received, binary.LittleEndian.Uint32([]byte(v)))
	}
	p.Flush()
}

func (m *match) wait(what string, done func() bool) {
	m.t.Helper()
	for give := time.Now().Add(patience); !done(); m.turn() {
		if time.Now().After(give) {
			m.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (m *match) all(f func(*player) bool) func() bool {
	return func() bool { return !slices.ContainsFunc(m.players, func(p *player) bool { return !f(p) }) }
}

func (p *player) connected() bool { return p.conn.State() == netcode.StateConnected }

// talk makes every player that is connected send numbers, and waits until all
// have them back.
func (m *match) talk(n int) {
	m.t.Helper()
	for range n {
		for _, p := range m.players {
			if p.connected() && p.conn.SendRPC(m.rpc.say.New(binary.LittleEndian.AppendUint32(nil, p.sent))) == nil {
				p.sent++
			}
		}
		m.turn()
	}
	m.wait("all numbers", m.all(func(p *player) bool { return !p.connected() || len(p.received) == int(p.sent) }))
	for i, p := range m.players {
		for want, got := range p.received {
			if got != uint32(want) {
				m.t.Fatalf("player %d: %d came instead of %d", i, got, want)
			}
		}
	}
}

func (p *player) last() netcode.Event { return p.events[len(p.events)-1] }

func TestRelayMatch(t *testing.T) {
	m := newMatch(t, engine.Config{}, 8, link.Conditions{Loss: 2}, true)
	m.wait("eight players", m.all((*player).connected))
	m.talk(100)
	if overhead := m.host.Overhead(); overhead != 38 || m.server.MaxRPC() != 1340-5-4 {
		t.Errorf("overhead %d, largest RPC %d", overhead, m.server.MaxRPC())
	}

	roaming := m.players[5]
	if err := link.Session(roaming.relay).Roam(); err != nil {
		t.Fatal(err)
	}
	m.talk(50)

	// A notice that is lost is said again for 250 ms, which on a slow machine may
	// be one tick.
	m.weather(link.Conditions{})
	kicked := m.players[3]
	for c := range m.server.Conns() {
		if c.NetworkID() == kicked.conn.NetworkID() {
			c.Disconnect(netcode.ReasonApprovalFailure, "cheater")
		}
	}
	m.wait("the kick", func() bool { return !kicked.connected() })
	if ev := kicked.last(); ev.Reason != netcode.ReasonClosedByRemote || ev.PeerText != "cheater" {
		t.Errorf("kicked: %+v", ev)
	}
	var lost uint64
	for _, sim := range m.sims {
		out, in := sim.Counts()
		lost += out.Lost + in.Lost
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
	leaver := m.players[6]
	leaver.conn.Disconnect(netcode.ReasonConnectionClose, "bye")
	m.wait("six players", func() bool { return len(slices.Collect(m.server.Conns())) == 6 })
	if ev := m.events[len(m.events)-1]; ev.Reason != netcode.ReasonClosedByRemote || ev.PeerText != "bye" {
		t.Errorf("left: %+v", ev)
	}
	m.weather(m.bad)
	m.talk(50)

	if err := m.server.Close(); err != nil {
		t.Error(err)
	}
	m.wait("the end", m.all(func(p *player) bool { return p.conn.State() == netcode.StateDisconnected }))
	for i, p := range m.players {
		ev := p.last()
		gone := ev.Reason == netcode.ReasonClosedByRemote || ev.Reason == netcode.ReasonProtocolError
		if p != leaver && !gone {
			t.Errorf("player %d: %v, %v", i, ev.State, ev.Reason)
		}
	}
}

// TestRelayReconnect: a kicked client may connect again at once over the same link.
// The host closes the link three flushes later, during the new attempt, and that
// attempt survives it.
func TestRelayReconnect(t *testing.T) {
	m := newMatch(t, engine.Config{}, 1, link.Conditions{}, false)
	p := m.players[0]
	const kicks = 5
	for kick := range kicks {
		m.wait("the player", p.connected)
		m.wait("the server", func() bool { return len(slices.Collect(m.server.Conns())) == 1 })
		for c := range m.server.Conns() {
			c.Disconnect(netcode.ReasonConnectionClose, "")
		}
		m.wait("the end", func() bool { return !p.connected() })
		for range 3 * kick {
			m.turn() // The attempt begins before, with and after the end of the link.
		}
		var err error
		if p.conn, err = p.Connect(m.at); err != nil {
			t.Fatal(err)
		}
	}
	m.wait("the player", p.connected)
	ends := 0
	for _, ev := range p.events {
		if ev.State == netcode.StateDisconnected {
			ends++
		}
	}
	if ends != kicks {
		t.Errorf("%d kicks, and %d ends", kicks, ends)
	}
}

func TestRelay200Players(t *testing.T) {
	if testing.Short() {
		t.Skip("opens 200 sessions")
	}
	const players = 200
	before := heapInUse()
	m := newMatch(t, engine.Config{MaxConnections: players, Unlimited: true}, players, link.Conditions{}, false)
	m.wait("200 players", m.all((*player).connected))
	ids := map[netcode.NetworkID]bool{}
	for _, p := range m.players {
		ids[p.conn.NetworkID()] = true
	}
	if len(ids) != players {
		t.Errorf("%d ids", len(ids))
	}
	m.talk(5)
	if n := m.server.Stats().Connections; n != players {
		t.Errorf("%d connections", n)
	}
	// Both sides of each player with their sessions, sockets and queues, and the
	// relay. A goroutine or a queue too many shows.
	const limit = 128 << 10
	if each := (heapInUse() - before) / players; each > limit {
		t.Errorf("%d bytes per player, limit %d", each, limit)
	} else {
		t.Logf("%d bytes per player", each)
	}
}

// heapInUse is what is left after a collection, in bytes.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
