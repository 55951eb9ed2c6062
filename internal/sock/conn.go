package sock

import (
	"fmt"
	"net"
	"runtime"
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

	kernel kernel // sock, or a script in tests
	sleep  func(time.Duration)

	segments segmentLimit

	recvErrors  atomic.Uint64
	sendErrors  atomic.Uint64
	sendRetries atomic.Uint64
	finalDrops  atomic.Uint64

	done     chan struct{} // closed when the descriptor is closed
	closeErr error         // written before done is closed
}

// kernel is the two calls that a Conn makes for each batch.
type kernel interface {
	// recv fills slots from 0 on.
	recv(b *RecvBatch) (int, syscall.Errno)
	// send offers messages first to end-1 and returns how many were taken; 0
	// with an errno says that message first was refused.
	send(b *SendBatch, first, end int) (int, syscall.Errno)
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
	n, errno := c.kernel.recv(b)
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
func (c *Conn) Sleep(d time.Duration) { c.sock.nap(d) }

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
		n, errno := c.kernel.send(b, first, end)
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
func (c *Conn) StopReceiving() {
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

// gate counts the goroutines that may be inside a system call on a descriptor.
// A descriptor number is given to somebody else the moment it is closed, so it
// must be closed by whoever leaves last, never under a goroutine that is about
// to use it. All methods may be called from any goroutine.
type gate struct {
	state atomic.Uint64 // flags and number of users
}

const (
	gateShut  = 1 << 63 // no one enters any more
	gateMuted = 1 << 62 // no receiver enters any more
	gateUsers = gateMuted - 1
)

// enter reports whether the caller may use the descriptor; it must then leave.
func (g *gate) enter(barred uint64) bool {
	for {
		s := g.state.Load()
		if s&barred != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// leave reports whether the caller was the last user of a gate that is shut.
// It does so to exactly one caller.
func (g *gate) leave() bool {
	s := g.state.Add(^uint64(0))
	return s&gateShut != 0 && s&gateUsers == 0
}

// has reports whether one of the flags is set.
func (g *gate) has(flags uint64) bool { return g.state.Load()&flags != 0 }

// mark sets a flag and enters in one step, so that the caller can still wake
// others through the descriptor. It reports false, without entering, when the
// flag was set before or the gate is shut.
func (g *gate) mark(flag uint64) bool {
	for {
		s := g.state.Load()
		if s&(flag|gateShut) != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, (s|flag)+1) {
			return true
		}
	}
}

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
