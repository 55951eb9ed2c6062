//go:build !linux || sockportable

package sock

import (
	"syscall"
	"time"
)

// tryWait bounds a read that the platform cannot do without waiting. A deadline
// in the past would fail before it looks at the socket.
const tryWait = time.Millisecond

func (s *socket) tryRecv(b *RecvBatch) (int, syscall.Errno) {
	if err := s.conn.SetReadDeadline(time.Now().Add(tryWait)); err != nil {
		return 0, errnoOf(err)
	}
	// The flag for sending without waiting is that for receiving too.
	n, err := s.io.ReadBatch(b.ms, sendFlags)
	return max(n, 0), errnoOf(err)
}
