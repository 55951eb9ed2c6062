//go:build linux && !sockportable

package sock

import (
	"net"

	"golang.org/x/sys/unix"
)

// AddConn adds a socket under a number, until it is closed. The error is that of the system,
// or errors.ErrUnsupported outside of Linux and in the portable build.
func (p *Poller) AddConn(c *Conn, number int32) error {
	if !c.gate.enter(gateRecvClosed) {
		return net.ErrClosed
	}
	defer c.leave()
	return p.control(unix.EPOLL_CTL_ADD, c.sock.fd, number, false)
}
