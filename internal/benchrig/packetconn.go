package benchrig

import (
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// PacketConn carries the datagrams of all endpoints of a Socket: a UDP socket, or a WebSocket
// for each. The number of the endpoint in the Socket is the Local of an endpoint.Endpoint,
// whose other parts are the address of the relay. One goroutine uses it.
type PacketConn interface {
	// NewBatch returns an empty batch of at most n datagrams.
	NewBatch(n int) Batch
	// Send sends a batch of this PacketConn without blocking, and resets it.
	Send(b Batch) SendResult
	// TryRecv returns the number of arrived datagrams, valid until the next call.
	TryRecv() (int, error)
	// At returns datagram i of TryRecv.
	At(i int) (from endpoint.Endpoint, pkt []byte, truncated bool)
	// Drops returns how many datagrams the kernel dropped since the socket was opened.
	Drops() uint64
	Close() error
}

// Batch collects datagrams, which must not change before Send.
type Batch interface {
	Add(to endpoint.Endpoint, pkt []byte) bool
	Len() int
}

// SendResult says what became of the datagrams of a batch.
type SendResult struct {
	Failed  int // refused by the kernel of this machine
	Blocked int // not sent, since the relay had ended the connection or did not read from it
}

// udpConn is a UDP socket with many local addresses.
type udpConn struct {
	group *sock.Group
	conn  *sock.Conn
	recv  *sock.RecvBatch
}

func (c *udpConn) NewBatch(n int) Batch { return c.conn.NewSendBatch(n) }

func (c *udpConn) Send(b Batch) SendResult {
	return SendResult{Failed: c.conn.Send(b.(*sock.SendBatch)).Failed}
}

func (c *udpConn) TryRecv() (int, error) { return c.conn.TryRecv(c.recv) }

func (c *udpConn) At(i int) (endpoint.Endpoint, []byte, bool) { return c.recv.At(i) }

func (c *udpConn) Drops() uint64 { return c.conn.Stats().KernelDrops }

func (c *udpConn) Close() error { return c.group.Close() }
