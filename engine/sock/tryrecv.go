package sock

import (
	"net"
	"syscall"
)

// TryRecv is [Conn.Recv] without blocking: it returns (0, nil) when nothing is
// there, and after errors that may pass, which are counted. It is for callers
// that have other work meanwhile; a caller that has none burns a core. In the
// portable build, whose sockets cannot always be asked, it may wait up to a
// millisecond. The goroutine that calls Recv may call TryRecv with the same b.
func (c *Conn) TryRecv(b *RecvBatch) (int, error) {
	const ended = gateShut | gateMuted
	if !c.gate.enter(ended) {
		return 0, net.ErrClosed
	}
	n, errno := c.sock.tryRecv(b)
	over := c.gate.has(ended)
	c.leave()
	switch {
	case over:
		return 0, net.ErrClosed
	case errno == 0 || errno == syscall.EAGAIN || errno == syscall.EINTR:
		return n, nil
	}
	c.recvErrors.Add(1)
	return 0, nil
}
