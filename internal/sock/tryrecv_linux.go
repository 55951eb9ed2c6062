//go:build linux && !sockportable

package sock

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func (s *socket) tryRecv(b *RecvBatch) (int, syscall.Errno) {
	b.rearm()
	n, errno := recvmmsg(s.fd, b.hdrs, unix.MSG_DONTWAIT)
	b.used = n
	return n, errno
}
