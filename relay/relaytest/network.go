package relaytest

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
)

// Network is a network in memory with delay and loss. Sessions reach a relay through it if the relay has
// [Network.Transport] in engine.Config.Transports, and their configuration is that of
// [Network.Client]. Conns of [Network.Listen] reach each other, also in a bubble of
// testing/synctest, where a relay cannot run since it waits for its UDP sockets. The zero value
// loses and delays nothing. Its methods may be called by any goroutine.
type Network struct {
	// Delay is how long each datagram takes. Loss is the share that is lost, from 0 to 1. They
	// must not change while the network is in use.
	Delay time.Duration
	Loss  float64

	mu     sync.Mutex // guards what follows
	conns  map[netip.AddrPort]*networkConn
	last   uint64        // serial of the newest conn
	intake engine.Intake // nil: no relay runs
}

// relayAddr is where players reach the relay of a network (RFC 5737).
var relayAddr = netip.MustParseAddrPort("192.0.2.1:7777")

// Client returns a configuration by which a session with this ticket uses the network.
func (n *Network) Client(t client.Ticket) client.Config {
	t.Server, t.Alternatives = relayAddr, nil
	return client.Config{Ticket: t, Listen: func(netip.AddrPort) (client.Conn, error) { return n.Listen(), nil }}
}

// Listen returns a Conn with an address of its own.
func (n *Network) Listen() client.Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	ip := netip.AddrFrom4([4]byte{198, 18, byte(n.last >> 8), byte(n.last)}) // RFC 2544
	c := &networkConn{
		network: n, serial: n.last, addr: netip.AddrPortFrom(ip, uint16(1024+n.last>>16)),
		arrived: make(chan networkDatagram, 1024), closed: make(chan struct{}),
	}
	if n.conns == nil {
		n.conns = make(map[netip.AddrPort]*networkConn)
	}
	n.conns[c.addr] = c
	return c
}

// send carries a datagram to deliver, which gets a copy.
func (n *Network) send(b []byte, deliver func([]byte)) {
	if rand.Float64() < n.Loss {
		return
	}
	b = append([]byte(nil), b...)
	if n.Delay == 0 {
		deliver(b)
		return
	}
	time.AfterFunc(n.Delay, func() { deliver(b) })
}

type networkDatagram struct {
	content []byte
	from    netip.AddrPort
}

// networkConn is a client.Conn.
type networkConn struct {
	network *Network
	serial  uint64
	addr    netip.AddrPort
	arrived chan networkDatagram
	once    sync.Once
	closed  chan struct{}
}

func (c *networkConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case d := <-c.arrived:
		return copy(b, d.content), d.from, nil
	case <-c.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (c *networkConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	n := c.network
	n.mu.Lock()
	intake, peer := n.intake, n.conns[to]
	n.mu.Unlock()
	switch {
	case to == relayAddr && intake != nil && len(b) > 0: // An empty message is one of the transport.
		n.send(b, func(b []byte) { intake.Deliver(c.serial, b) })
	case peer != nil:
		n.send(b, func(b []byte) { peer.put(b, c.addr) })
	}
	return len(b), nil
}

// put queues a datagram, or drops it.
func (c *networkConn) put(b []byte, from netip.AddrPort) {
	select {
	case c.arrived <- networkDatagram{b, from}:
	default:
	}
}

func (c *networkConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.addr) }

func (c *networkConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.network.mu.Lock()
		defer c.network.mu.Unlock()
		delete(c.network.conns, c.addr)
	})
	return nil
}

// Transport returns the relay's side of the network.
func (n *Network) Transport() engine.Transport { return networkTransport{n} }

type networkTransport struct{ network *Network }

// Name implements engine.Transport.
func (networkTransport) Name() string { return "simulated" }

// MaxMessage returns the size of the largest message of the protocol.
func (networkTransport) MaxMessage() int { return 1472 }

func (t networkTransport) conn(serial uint64) *networkConn {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	for _, c := range t.network.conns {
		if c.serial == serial {
			return c
		}
	}
	return nil
}

// IsOpen implements engine.Transport.
func (t networkTransport) IsOpen(serial uint64) bool { return t.conn(serial) != nil }

// Send implements engine.Transport.
func (t networkTransport) Send(serial uint64, pkt []byte) bool {
	c := t.conn(serial)
	if c == nil {
		return false
	}
	if len(pkt) > 0 {
		t.network.send(pkt, func(b []byte) { c.put(b, relayAddr) })
	}
	return true
}

// Run implements engine.Transport.
func (t networkTransport) Run(ctx context.Context, in engine.Intake) error {
	set := func(in engine.Intake) {
		t.network.mu.Lock()
		defer t.network.mu.Unlock()
		t.network.intake = in
	}
	set(in)
	<-ctx.Done()
	set(nil)
	return nil
}
