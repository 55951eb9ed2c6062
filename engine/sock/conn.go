package sock

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// recvTimeout bounds the time Recv blocks, so that its caller can look
	// at flags even when nothing arrives.
	recvTimeout = 250 * time.Millisecond

	// minBackOff and maxBackOff bound the pause after repeated receive
	// errors: long enough not to burn a core, short enough not to be felt.
	minBackOff = time.Millisecond
	maxBackOff = 10 * time.Millisecond

	// maxInterrupts bounds the retries of a send that signals interrupt.
	maxInterrupts = 16
)

// Conn is one socket of a [Group]. One goroutine may call Recv. Send may be
// called by several goroutines at a time, each with a SendBatch of its own.
// All other methods may be called from any goroutine.
type Conn struct {
	gate  gate
	group *Group
	sock  *socket

	// The kernel, or a script in tests. Immutable after Listen. The receive
	// function fills slots from 0 on. The send function offers the entries
	// from first on and returns how many were taken; 0 with an errno says
	// that entry first was refused.
	recv  func(b *RecvBatch) (int, syscall.Errno)
	send  func(b *SendBatch, first int) (int, syscall.Errno)
	sleep func(time.Duration)

	recvErrors  atomic.Uint64
	sendErrors  atomic.Uint64
	sendRetries atomic.Uint64
	finalDrops  atomic.Uint64

	done     chan struct{} // closed when the descriptor is closed
	closeErr error         // written before done is closed
}

// SendResult is what became of the entries of a batch.
type SendResult struct {
	Sent   int // entries the kernel took
	Bytes  int // payload bytes of those
	Failed int // entries the kernel refused or that this socket cannot reach
}

// Stats counts what went wrong on a socket since it was opened.
type Stats struct {
	RecvErrors  uint64 // receive calls that failed and were tried again
	SendErrors  uint64 // entries that were refused
	SendRetries uint64 // send calls repeated for the same entry
	KernelDrops uint64 // datagrams the kernel dropped, modulo 2^32, because the read buffer was full or the checksum wrong
}

// Recv blocks until at least one datagram is there and returns the number of
// datagrams in b, which stay valid until the next Recv with b. It returns
// (0, nil) after about 250 ms without a datagram and after errors that may
// pass, which are counted and slowed down; both mean: call again. The only
// error is net.ErrClosed, after Close or Wake. b must come from c.
func (c *Conn) Recv(b *RecvBatch) (int, error) {
	const ended = gateShut | gateMuted
	if !c.gate.enter(ended) {
		return 0, net.ErrClosed
	}
	n, errno := c.recv(b)
	over := c.gate.has(ended)
	c.leave()
	switch {
	case over:
		// A shut-down socket reports a datagram that never was.
		return 0, net.ErrClosed
	case errno == 0 || errno == syscall.EAGAIN || errno == syscall.EINTR:
		b.failures = 0
		return n, nil
	}
	c.recvErrors.Add(1)
	c.backOff(b)
	return 0, nil
}

// backOff pauses after the second and each further error in a row.
func (c *Conn) backOff(b *RecvBatch) {
	if b.failures > 0 {
		c.sleep(min(maxBackOff, minBackOff<<min(b.failures-1, 10)))
	}
	b.failures++
}

// Send offers every entry of b to the kernel in order, never blocks, and
// resets b. An entry that is refused costs only itself. After Close every
// entry has failed. b must come from c.
func (c *Conn) Send(b *SendBatch) SendResult {
	res := SendResult{Failed: b.refused}
	if b.n > 0 {
		if c.gate.enter(gateShut) {
			c.transmit(b, &res)
			c.leave()
		} else {
			res.Failed += b.n
		}
	}
	if res.Failed > 0 {
		c.sendErrors.Add(uint64(res.Failed))
	}
	b.Reset()
	return res
}

// transmit goes on after a partial success with the entry that stopped it: the
// kernel tells that entry's error only when it is the first of a call.
func (c *Conn) transmit(b *SendBatch, res *SendResult) {
	tries := 0
	for first := 0; first < b.n; {
		n, errno := c.send(b, first)
		switch n = min(n, b.n-first); {
		case n > 0:
			for i := first; i < first+n; i++ {
				res.Bytes += b.size(i)
			}
			res.Sent += n
			first += n
			tries = 0
		case c.retry(errno, tries):
			tries++
		default:
			res.Failed++
			first++
			tries = 0
		}
	}
}

// retry reports whether the same entry is worth another call: after a signal,
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

// Wake ends receiving: Recv returns net.ErrClosed from now on, also when it is
// blocked at this moment. Sending goes on until Close, so that last words can
// be said.
func (c *Conn) Wake() {
	if c.gate.mark(gateMuted) {
		c.sock.shutdown(false)
		c.leave()
	}
}

// Close ends receiving and sending and waits for the system calls that are
// under way, which return at once. When it returns the port is free. Further
// calls return the same error.
func (c *Conn) Close() error {
	if c.gate.mark(gateShut) {
		c.sock.shutdown(true)
		c.leave()
	}
	<-c.done
	return c.closeErr
}

// leave ends the use of the descriptor and closes it if Close waits for that.
func (c *Conn) leave() {
	if c.gate.leave() {
		c.finalDrops.Store(c.sock.drops())
		c.closeErr = c.sock.close()
		close(c.done)
	}
}

// Stats returns the counters. After Close they stay what they were.
func (c *Conn) Stats() Stats {
	s := Stats{
		RecvErrors:  c.recvErrors.Load(),
		SendErrors:  c.sendErrors.Load(),
		SendRetries: c.sendRetries.Load(),
		KernelDrops: c.finalDrops.Load(),
	}
	if c.gate.enter(gateShut) {
		s.KernelDrops = c.sock.drops()
		c.leave()
	}
	return s
}
