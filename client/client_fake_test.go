package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// fakeRelay is a small strict relay on loopback: it checks every MAC, nonce,
// endpoint and link, and takes nothing that a client may not send. Its lock
// guards all.
type fakeRelay struct {
	t    testing.TB
	conn *net.UDPConn
	addr netip.AddrPort

	mu     sync.Mutex
	places map[proto.AllocationID]*fakePlace
	seen   map[proto.Type]int
	nonces []uint16
	drop   func(proto.Message) bool // what the network loses
	refuse proto.Message            // the answer to every CONNECT_REQUEST
	write  func(to netip.AddrPort, pkt []byte)
	signer proto.Signer
}

// fakePlace is an allocation.
type fakePlace struct {
	ticket   Ticket
	endpoint netip.AddrPort
	nonce    int // of the newest BIND, -1 before
	links    map[proto.AllocationID]bool
	closed   bool
}

func newFakeRelay(t testing.TB) *fakeRelay {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(1 << 20)
	f := &fakeRelay{
		t: t, conn: conn, write: func(to netip.AddrPort, pkt []byte) { _, _ = conn.WriteToUDPAddrPort(pkt, to) },
		addr:   conn.LocalAddr().(*net.UDPAddr).AddrPort(),
		places: make(map[proto.AllocationID]*fakePlace),
		seen:   make(map[proto.Type]int),
	}
	f.place(hostTicket(f.addr))
	f.place(joinerTicket(f.addr, joinerID))
	f.place(joinerTicket(f.addr, otherID))
	return f
}

// startFakeRelay is newFakeRelay that serves until the test ends.
func startFakeRelay(t testing.TB) *fakeRelay {
	t.Helper()
	f := newFakeRelay(t)
	var served sync.WaitGroup
	served.Go(f.serve)
	t.Cleanup(func() {
		_ = f.conn.Close()
		served.Wait()
	})
	return f
}

func (f *fakeRelay) place(ticket Ticket) {
	f.places[ticket.ID] = &fakePlace{ticket: ticket, nonce: -1, links: make(map[proto.AllocationID]bool)}
}

func (f *fakeRelay) serve() {
	buf := make([]byte, 2048)
	for {
		n, from, err := f.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		m, err := proto.Decode(buf[:n])
		if err != nil {
			f.t.Errorf("fake relay got %x: %v", buf[:n], err)
			continue
		}
		f.mu.Lock()
		f.step(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buf[:n], m)
		f.mu.Unlock()
	}
}

func (f *fakeRelay) step(from netip.AddrPort, pkt []byte, m proto.Message) {
	kind := proto.Type(pkt[3])
	f.seen[kind]++
	if b, ok := m.(proto.Bind); ok {
		f.nonces = append(f.nonces, b.Nonce)
	}
	if f.drop != nil && f.drop(m) {
		return
	}
	switch m := m.(type) {
	case proto.Bind:
		f.bind(from, pkt, m)
	case proto.Ping:
		if f.owns(from, m.ID) {
			f.send(from, m)
		}
	case proto.ConnectRequest:
		if f.owns(from, m.ID) {
			f.connect(from, m)
		}
	case proto.Relay:
		if f.owns(from, m.From) {
			f.relay(from, pkt, m)
		}
	case proto.Disconnect:
		if f.owns(from, m.From) {
			f.disconnect(from, m)
		}
	case proto.Close:
		if p := f.places[m.ID]; p != nil && p.endpoint == from {
			p.closed, p.endpoint = true, netip.AddrPort{}
		}
	default:
		f.t.Errorf("a client sent %v", m)
	}
}

func (f *fakeRelay) bind(from netip.AddrPort, pkt []byte, b proto.Bind) {
	for id, p := range f.places {
		if !bytes.Equal(p.ticket.ConnectionData, b.ConnectionData) {
			continue
		}
		switch {
		case !f.signer.Verify(pkt, &p.ticket.Key):
			f.t.Errorf("BIND with a wrong MAC")
		case p.closed:
			f.send(from, proto.Error{ID: id, Code: proto.ErrorNotFound})
		case int(b.Nonce) > p.nonce || int(b.Nonce) == p.nonce && p.endpoint == from:
			p.nonce, p.endpoint = int(b.Nonce), from
			f.send(from, proto.BindReceived{})
		}
		return
	}
	f.t.Errorf("BIND with unknown connection data")
}

// owns reports whether the endpoint is bound to the id, and answers if not.
func (f *fakeRelay) owns(from netip.AddrPort, id proto.AllocationID) bool {
	if p := f.places[id]; p != nil && p.endpoint == from {
		return true
	}
	f.send(from, proto.Error{ID: id, Code: proto.ErrorMismatch})
	return false
}

func (f *fakeRelay) connect(from netip.AddrPort, m proto.ConnectRequest) {
	host := f.places[hostID]
	switch {
	case f.refuse != nil:
		f.send(from, f.refuse)
	case !bytes.Equal(m.ConnectionData, host.ticket.ConnectionData):
		f.t.Errorf("CONNECT_REQUEST with unknown data")
	case host.closed:
		f.send(from, proto.Error{ID: m.ID, Code: proto.ErrorNotFound})
	case host.endpoint.IsValid():
		host.links[m.ID], f.places[m.ID].links[hostID] = true, true
		f.send(from, proto.Accepted{From: hostID, To: m.ID})
	}
}

func (f *fakeRelay) relay(from netip.AddrPort, pkt []byte, m proto.Relay) {
	if !f.places[m.From].links[m.To] {
		f.send(from, proto.Error{ID: m.From, Code: proto.ErrorNotConnected})
		return
	}
	if to := f.places[m.To].endpoint; to.IsValid() {
		f.write(to, pkt)
	}
}

func (f *fakeRelay) disconnect(from netip.AddrPort, m proto.Disconnect) {
	peer := f.places[m.To]
	if f.places[m.From].links[m.To] {
		delete(f.places[m.From].links, m.To)
		delete(peer.links, m.From)
		if peer.endpoint.IsValid() {
			f.send(peer.endpoint, m)
		}
	}
	f.send(from, m)
}

func (f *fakeRelay) send(to netip.AddrPort, m proto.Message) {
	f.write(to, m.Append(nil))
}

// with runs a function under the relay's lock.
func (f *fakeRelay) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// lose sets what the network loses from now on.
func (f *fakeRelay) lose(drop func(proto.Message) bool) { f.with(func() { f.drop = drop }) }

func (f *fakeRelay) count(kind proto.Type) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[kind]
}

func (f *fakeRelay) binds() []uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.nonces)
}

// brisk is a configuration with short periods, for tests in which something is
// lost. A slow machine makes its sessions repeat requests that were answered.
func brisk(ticket Ticket) Config {
	return Config{Ticket: ticket, PingPeriod: 200 * time.Millisecond, RetryPeriod: 40 * time.Millisecond}
}

// calm is a configuration with which nothing is repeated on a slow machine. An
// answer to a repeated BIND or DISCONNECT may be taken for that to a later one,
// since neither has a number that the other side returns.
func calm(ticket Ticket) Config {
	return Config{Ticket: ticket, PingPeriod: patience, RetryPeriod: patience}
}

// running starts a session and ends it with the test.
func running(t testing.TB, cfg Config) *Session {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		err := s.Run(context.Background())
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, ErrBindTimeout) {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		_ = s.Close()
		done.Wait()
	})
	return s
}

// pair returns a bound host, a joiner, and the joiner's end of their link.
func pair(t testing.TB, f *fakeRelay) (host, joiner *Session, toHost *Peer) {
	t.Helper()
	return pairAs(t, f, brisk)
}

func pairAs(t testing.TB, f *fakeRelay, config func(Ticket) Config) (host, joiner *Session, toHost *Peer) {
	t.Helper()
	host = running(t, config(hostTicket(f.addr)))
	joiner = running(t, config(joinerTicket(f.addr, joinerID)))
	if err := host.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	toHost, err := joiner.Connect(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return host, joiner, toHost
}

// linked returns both ends of a link that has carried one datagram.
func linked(t testing.TB, f *fakeRelay) (atHost, atJoiner *Peer) {
	t.Helper()
	return linkedAs(t, f, calm)
}

func linkedAs(t testing.TB, f *fakeRelay, config func(Ticket) Config) (atHost, atJoiner *Peer) {
	t.Helper()
	host, _, atJoiner := pairAs(t, f, config)
	if _, err := atJoiner.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	atHost, err := host.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, atHost); got != "hello" {
		t.Fatalf("host reads %q", got)
	}
	return atHost, atJoiner
}

func read(t testing.TB, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, proto.MaxContent)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}
