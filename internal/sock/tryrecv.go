package sock

import "net"

// TryRecv is [Conn.Recv] without blocking: it returns (0, nil) when nothing is
// there, and after errors that may pass, which are counted and not slowed down;
// other errors are those of Recv. It is for callers that have other work
// meanwhile; a caller that has none burns a core. In the portable build, whose
// sockets cannot always be asked, it may wait up to a millisecond. The goroutine
// that calls Recv may call TryRecv with the same b.
func (c *Conn) TryRecv(b *RecvBatch) (int, error) {
	const ended = gateShut | gateMuted
	if !c.gate.enter(ended) {
		return 0, net.ErrClosed
	}
	n, errno := c.sock.tryRecv(b)
	over, lost := c.gate.has(ended), c.lost(errno)
	c.leave()
	switch {
	case over:
		return 0, net.ErrClosed
	case lost != nil:
		return 0, lost
	}
	if b.failed(n, errno) {
		c.recvErrors.Add(1)
	}
	return n, nil
}
