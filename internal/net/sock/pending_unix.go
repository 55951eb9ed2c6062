//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package sock

import (
	"net"

	"golang.org/x/sys/unix"
)

// hasPending reports whether a connection waits to be accepted. accept(2) needs a descriptor
// before it looks.
func hasPending(l *net.TCPListener) (pending bool) {
	rc, err := l.SyscallConn()
	if err != nil {
		return false
	}
	err = rc.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		pending = err == nil && n == 1
	})
	return err == nil && pending
}
