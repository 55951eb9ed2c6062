package sock

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// recvTimeout bounds the time Recv blocks, so that its caller can look at flags
// even when nothing arrives.
const recvTimeout = 250 * time.Millisecond

// Conn is one socket of a [Group]. One goroutine may call Recv. Send may be
// called by several goroutines at a time, each with a SendBatch of its own.
// All other methods may be called from any goroutine.
type Conn struct {
	gate  gate
	group *Group
	sock  *socket

	// The kernel, or a script in tests. Immutable after Listen. The receive
	// function fills slots from 0 on. The send function offers messages first
	// to end-1 and returns how many were taken; 0 with an errno says that
	// message first was refused.
	recv  func(b *RecvBatch) (int, syscall.Errno)
	send  func(b *SendBatch, first, end int) (int, syscall.Errno)
	sleep func(time.Duration)

	segments segmentLimit

	recvErrors  atomic.Uint64
	sendErrors  atomic.Uint64
	sendRetries atomic.Uint64
	finalDrops  atomic.Uint64

	done     chan struct{} // closed when the descriptor is closed
	closeErr error         // written before done is closed
}

// SendResult is what became of the datagrams of a batch.
type SendResult struct {
	Sent     int // datagrams the kernel took
	Bytes    int // payload bytes of those
	Messages int // messages they left in: fewer than datagrams where some were merged
	Failed   int // datagrams the kernel refused or that this socket cannot reach
	Down     int // of Failed, those refused because the network is down (ENETDOWN, ENETUNREACH)
}

// Stats counts what went wrong on a socket since it was opened.
type Stats struct {
	RecvErrors  uint64 // receive calls that failed and were tried again
	SendErrors  uint64 // datagrams that were refused
	SendRetries uint64 // send calls repeated for the same message
	KernelDrops uint64 // datagrams the kernel dropped, modulo 2^32, because the read buffer was full or the checksum wrong
}

// Recv blocks until at least one datagram is there and returns the number of
// datagrams in b, which stay valid until the next Recv with b. It returns
// (0, nil) after about 250 ms without a datagram and after errors that may
// pass, which are counted and, when they repeat, followed by a pause of at most
// 10 ms; both mean: call again. The error is net.ErrClosed after Close or Wake.
// Any other wraps EBADF or ENOTSOCK and says that something else in this
// process has closed the descriptor: the socket will never hear again. b must
// come from c.
func (c *Conn) Recv(b *RecvBatch) (int, error) {
	const ended = gateShut | gateMuted
	if !c.gate.enter(ended) {
		return 0, net.ErrClosed
	}
	n, errno := c.recv(b)
	over, lost := c.gate.has(ended), c.lost(errno)
	c.leave()
	switch {
	case over:
		// A shut-down socket reports a datagram that never was.
		return 0, net.ErrClosed
	case lost != nil:
		return 0, lost
	}
	if b.failed(n, errno) {
		c.recvErrors.Add(1)
		c.backOff(b)
	}
	return n, nil
}

// Nap rests for d, which may be far below a millisecond, in the way in which
// Recv blocks. Only the goroutine that calls Recv may call it.
func (c *Conn) Nap(d time.Duration) { c.sock.nap(d) }

// Send offers every datagram of b to the kernel, never blocks, and resets b. A
// datagram that is refused costs only itself. After Close every datagram has
// failed. b must come from c.
func (c *Conn) Send(b *SendBatch) SendResult {
	res := SendResult{Failed: b.refused}
	if b.n > 0 {
		if c.gate.enter(gateShut) {
			b.seal()
			c.transmit(b, &res)
			c.leave()
		} else {
			res.Failed = b.Len()
		}
	}
	if res.Failed > 0 {
		c.sendErrors.Add(uint64(res.Failed))
	}
	b.Reset()
	return res
}

// transmit goes on after a partial success with the message that stopped it:
// the kernel tells that message's error only when it is the first of a call.
func (c *Conn) transmit(b *SendBatch, res *SendResult) {
	for first := 0; first < b.n; {
		n, errno := c.offer(b, first, b.n)
		for i := first; i < first+n; i++ {
			res.Bytes += b.size(i)
			res.Sent += b.count(i)
		}
		res.Messages += n
		first += n
		if n == 0 {
			c.refused(b, first, errno, res)
			first++
		}
	}
}

// offer calls the kernel until it takes something or refuses message first.
func (c *Conn) offer(b *SendBatch, first, end int) (int, syscall.Errno) {
	for tries := 0; ; tries++ {
		n, errno := c.send(b, first, end)
		if n > 0 {
			return min(n, end-first), 0
		}
		if !c.retry(errno, tries) {
			return 0, errno
		}
	}
}

// refused gives up on message i, or, if it is a run and the kernel may only
// have refused the merging, sends its datagrams one by one.
func (c *Conn) refused(b *SendBatch, i int, errno syscall.Errno, res *SendResult) {
	count := b.count(i)
	if count == 1 || !mergeRefused(errno) {
		res.fail(count, errno)
		return
	}
	sent := 0
	for k := 0; b.part(i, k); k++ {
		if n, alone := c.offer(b, i, i+1); n == 0 {
			res.fail(1, alone)
			continue
		}
		sent++
		res.Bytes += b.partSize(i)
	}
	res.Sent += sent
	res.Messages += sent
	if sent > 0 { // It was the merging, not the destination.
		c.segments.lower(errno, b.segment(i))
	}
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
