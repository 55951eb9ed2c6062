package sock

import (
	"fmt"
	"runtime"
	"syscall"
	"time"
)

// What the kernel's errors mean is decided here, for both builds. The rule on
// both sides is that an error costs what it is about and nothing else.
const (
	// minBackOff and maxBackOff bound the pause after repeated receive
	// errors: long enough not to burn a core, short enough not to be felt.
	minBackOff = time.Millisecond
	maxBackOff = 10 * time.Millisecond

	// maxInterrupts bounds the retries of a send that signals interrupt, and
	// the receive calls that signals may interrupt in a row before that counts
	// as an error.
	maxInterrupts = 16
)

// row counts what a receiver got in a row instead of datagrams. It belongs to
// its RecvBatch.
type row struct {
	failures int // calls that failed
	signals  int // calls that a signal interrupted
}

// failed takes the result of a receive call and reports whether it is an error
// to be counted and slowed down. A call without progress is one, since the next
// may be the same; a time-out is none, since it has taken its time. A signal
// neither is one nor ends a row of them, so that signals between errors do not
// hide that these repeat.
func (r *row) failed(n int, errno syscall.Errno) bool {
	switch {
	case n > 0 || errno == syscall.EAGAIN:
		*r = row{}
		return false
	case errno == syscall.EINTR && r.signals < maxInterrupts:
		r.signals++
		return false
	}
	return true
}

// backOff pauses after the second and each further error in a row.
func (c *Conn) backOff(b *RecvBatch) {
	if b.failures > 0 {
		c.sleep(min(maxBackOff, minBackOff<<min(b.failures-1, 10)))
	}
	b.failures++
}

// lost returns an error when the descriptor itself is gone, which only a fault
// of this process can do: nothing will ever arrive there again, so that going
// on would keep a relay up that is deaf. Anything else is nil.
func (c *Conn) lost(errno syscall.Errno) error {
	if errno != syscall.EBADF && errno != syscall.ENOTSOCK || !c.sock.gone() {
		return nil
	}
	return fmt.Errorf("sock: the descriptor of %v is gone: %w", c.group.cfg.Addr, errno)
}

// retry reports whether the same message is worth another call: after a signal,
// once after a full buffer or a call without progress, and once after an error
// that belongs to a datagram sent earlier.
func (c *Conn) retry(errno syscall.Errno, tries int) bool {
	limit := 0
	switch errno {
	case syscall.EINTR:
		limit = maxInterrupts
	case 0, syscall.ECONNREFUSED:
		limit = 1
	case syscall.EAGAIN:
		limit = 1
		runtime.Gosched()
	}
	if tries >= limit {
		return false
	}
	c.sendRetries.Add(1)
	return true
}

// fail notes n datagrams that the kernel refused.
func (r *SendResult) fail(n int, errno syscall.Errno) {
	r.Failed += n
	if networkDown(errno) {
		r.Down += n
	}
}

// networkDown reports whether errno says that this machine is cut off, rather
// than that one peer is: a link that is down takes its routes along.
func networkDown(errno syscall.Errno) bool {
	switch errno {
	case syscall.ENETDOWN, syscall.ENETUNREACH:
		return true
	case 10050, 10051: // WSAENETDOWN and WSAENETUNREACH, for which package syscall has no name
		return runtime.GOOS == "windows"
	}
	return false
}
