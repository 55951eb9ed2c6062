package client

import (
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

type packetConn struct {
	s        *Session
	local    net.Addr      // Addr of the session, boxed once
	readable chan struct{} // a datagram may be waiting for ReadFrom
	out      outgoing
	deadline deadline
	limit    atomic.Int64 // write deadline, Unix nanoseconds; 0: none

	requested bool // the caller has it; the session's lock guards this
}

func newPacketConn(s *Session) *packetConn {
	return &packetConn{s: s, local: Addr{s.own}, readable: make(chan struct{}, 1), deadline: newDeadline()}
}

// PacketConn returns the session as a net.PacketConn, the same one each time, whose
// addresses are Addr values. ReadFrom returns the datagrams of all peers, each peer
// in turn. WriteTo takes any Addr; the relay drops what has no link behind it. It
// fails with ErrTooLarge, ErrNotBound, os.ErrDeadlineExceeded or why the
// session ended, and never because of the network. Of a joiner, which still has to
// Connect first, both fail with ErrLinkLost until the next Connect. Close closes the
// session.
func (s *Session) PacketConn() net.PacketConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packets.requested = true
	return s.packets
}

func (c *packetConn) LocalAddr() net.Addr { return c.local }

func (c *packetConn) Close() error { return c.s.Close() }

func (c *packetConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *packetConn) SetReadDeadline(t time.Time) error {
	c.deadline.set(t)
	return nil
}

func (c *packetConn) SetWriteDeadline(t time.Time) error {
	c.limit.Store(unixNano(t))
	return nil
}

// SetReadBuffer asks for a receive buffer of the UDP socket, as QUIC does.
func (c *packetConn) SetReadBuffer(n int) error {
	return setReadBuffer(c.s.transport.socket.Load().Conn, n)
}

// SetWriteBuffer asks for a send buffer of the UDP socket, in bytes.
func (c *packetConn) SetWriteBuffer(n int) error {
	return setWriteBuffer(c.s.transport.socket.Load().Conn, n)
}

func (c *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		expired := c.deadline.done()
		if isClosed(expired) {
			return 0, nil, os.ErrDeadlineExceeded
		}
		n, from, err := c.next(b)
		if from != nil || err != nil {
			return n, from, err
		}
		select {
		case <-c.readable:
		case <-expired:
		case <-c.s.done:
		}
	}
}

func (c *packetConn) next(b []byte) (int, net.Addr, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, nil, s.err
	}
	p := s.peers.ready.first
	if lost := s.connect.lost.Load(); p == nil && lost != nil {
		return 0, nil, lost.cause
	} else if p == nil {
		return 0, nil, nil
	}
	s.peers.ready.remove(p)
	d := p.queue.pop()
	n := copy(b, d.content())
	s.peers.give(d)
	if p.queue.count > 0 {
		s.peers.ready.add(p)
	}
	if s.peers.ready.first != nil {
		signal(c.readable)
	}
	return n, p.remote, nil
}

func (c *packetConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	to, ok := addr.(Addr)
	if !ok {
		return 0, errAddr
	}
	if past(&c.limit) {
		return 0, os.ErrDeadlineExceeded
	}
	if lost := c.s.connect.lost.Load(); lost != nil && lost.id == to.ID {
		return 0, lost.writeError()
	}
	return c.s.send(&c.out, to.ID, b)
}

// Addr is the address of a player on the relay: its allocation id. It is
// comparable.
type Addr struct {
	ID proto.AllocationID
}

// Network returns "ferry".
func (Addr) Network() string { return "ferry" }

// String returns the id as the text of a UUID.
func (a Addr) String() string { return a.ID.String() }
