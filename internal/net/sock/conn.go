package sock

import (
	"fmt"
	"net"
	"os"
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
	recv(b *RecvBatch) (int, syscall.Errno)
	// send offers messages first to end-1 and returns how many were taken; 0
	// with an errno says that message first was refused.
	send(b *SendBatch, first, end int) (int, syscall.Errno)
}

type SendResult struct {
	Sent     int // datagrams the kernel took
	Bytes    int // payload bytes of those
	Messages int // messages they left in: fewer than datagrams where some were merged
	Failed   int // datagrams the kernel refused or that this socket cannot reach
	Down     int // of Failed, those refused because the network is down (ENETDOWN, ENETUNREACH)
}

// Stats counts the errors on a socket since it was opened.
type Stats struct {
	RecvErrors  uint64 // receive calls that failed and were tried again
	SendErrors  uint64 // datagrams that were refused
	SendRetries uint64 // send calls repeated for the same message
	KernelDrops uint64 // datagrams the kernel dropped, modulo 2^32, because the read buffer was full or the checksum wrong
}

// Recv blocks until at least one datagram has arrived and returns the number of
// datagrams in b, which stay valid until the next Recv with b. It returns
// (0, nil) after about 250 ms without a datagram, and then seldom, and after errors that may pass,
// which are counted: call again. The error is net.ErrClosed after Close or
// StopReceiving. Any other wraps EBADF or ENOTSOCK: the socket will receive
// nothing more. b must come from c.
func (c *Conn) Recv(b *RecvBatch) (int, error) {
	if !c.gate.enter(gateRecvClosed) {
		return 0, net.ErrClosed
	}
	n, errno := c.kernel.recv(b)
	return c.endRecv(b, n, errno, true)
}

// endRecv ends a receive call that returned n and errno, and returns what Recv and
// TryRecv return. An error that may pass is counted, and followed by a pause if
// pause is set and errors repeat.
func (c *Conn) endRecv(b *RecvBatch, n int, errno syscall.Errno, pause bool) (int, error) {
	closed, err := c.gate.has(gateRecvClosed), c.descriptorError(errno)
	c.leave()
	switch {
	case closed:
		// A socket that was shut down reports a datagram that was never sent.
		return 0, net.ErrClosed
	case err != nil:
		return 0, err
	}
	if b.errors.add(n, errno) {
		c.recvErrors.Add(1)
		if pause {
			c.backOff(b)
		}
	}
	return n, nil
}

// Sleep blocks for d, which may be far below a millisecond, as Recv blocks. Only the goroutine that calls Recv may call it.
func (c *Conn) Sleep(d time.Duration) { c.sock.sleep(d) }

// Send offers every datagram of b to the kernel, never blocks, and resets b. A
// refused datagram does not affect the others. After Close every datagram
// fails. b must come from c.
func (c *Conn) Send(b *SendBatch) SendResult {
	res := SendResult{Failed: b.refused}
	if b.n > 0 {
		if c.gate.enter(gateClosed) {
			b.wireRuns()
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
// the kernel reports the error of a message only if it is the first of a call.
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
			c.handleRefusal(b, first, errno, res)
			first++
		}
	}
}

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

// handleRefusal gives up on message i, or, if it is a run and the kernel may only
// have refused the merging, sends its datagrams one by one.
func (c *Conn) handleRefusal(b *SendBatch, i int, errno syscall.Errno, res *SendResult) {
	count := b.count(i)
	if count == 1 || !isMergeRefusal(errno) {
		res.addFailed(count, errno)
		return
	}
	sent := 0
	for k := range count {
		b.wirePart(i, k)
		if n, errno := c.offer(b, i, i+1); n == 0 {
			res.addFailed(1, errno)
			continue
		}
		sent++
		res.Bytes += b.partSize(i)
	}
	res.Sent += sent
	res.Messages += sent
	if sent > 0 { // The kernel refused the merging, not the destination.
		b.noteRefusedMerge(i, errno)
	}
}

// StopReceiving ends receiving: Recv returns net.ErrClosed from now on, also when it is
// blocked at this moment. Sending works until Close.
func (c *Conn) StopReceiving() {
	if c.gate.mark(gateRecvStopped) {
		c.sock.shutdown(false)
		c.leave()
	}
}

// Close ends receiving and sending and waits for the system calls that are
// under way, which return at once. When it returns the port is free. Further
// calls return the same error.
func (c *Conn) Close() error {
	if c.gate.mark(gateClosed) {
		c.sock.shutdown(true)
		c.leave()
	}
	<-c.done
	return c.closeErr
}

// CloseDescriptor is Close for a socket that another process has as well, which is not shut down:
// what has arrived stays there. No Recv may be under way.
func (c *Conn) CloseDescriptor() error {
	if c.gate.mark(gateClosed) {
		c.leave()
	}
	<-c.done
	return c.closeErr
}

func (c *Conn) file() (*os.File, error) {
	if !c.gate.enter(gateClosed) {
		return nil, net.ErrClosed
	}
	defer c.leave()
	return c.sock.file()
}

func (c *Conn) leave() {
	if c.gate.leave() {
		c.finalDrops.Store(c.sock.drops())
		c.closeErr = c.sock.close()
		close(c.done)
	}
}

// Stats returns the counters. After Close they do not change.
func (c *Conn) Stats() Stats {
	s := Stats{
		RecvErrors:  c.recvErrors.Load(),
		SendErrors:  c.sendErrors.Load(),
		SendRetries: c.sendRetries.Load(),
		KernelDrops: c.finalDrops.Load(),
	}
	if c.gate.enter(gateClosed) {
		s.KernelDrops = c.sock.drops()
		c.leave()
	}
	return s
}

// gate counts the goroutines that may be inside a system call on a descriptor.
// The kernel may reuse the number of a descriptor as soon as it is closed, so the
// last goroutine to leave closes it, never while another is about to use it. All methods may be called from any goroutine.
type gate struct {
	state atomic.Uint64 // flags and number of users
}

const (
	gateClosed      = 1 << 63 // no goroutine enters any more
	gateRecvStopped = 1 << 62 // no receiver enters any more
	gateRecvClosed  = gateClosed | gateRecvStopped
	gateUsers       = gateRecvStopped - 1
)

// enter reports whether the caller may use the descriptor; it must then leave.
func (g *gate) enter(closed uint64) bool {
	for {
		s := g.state.Load()
		if s&closed != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

// leave reports whether the caller was the last user of a closed gate. It reports
// true to exactly one caller.
func (g *gate) leave() bool {
	s := g.state.Add(^uint64(0))
	return s&gateClosed != 0 && s&gateUsers == 0
}

func (g *gate) has(flags uint64) bool { return g.state.Load()&flags != 0 }

// mark sets a flag and enters in one step, so that the caller can still shut down
// the socket. It reports false, without entering, when the flag was set before or the
// gate is closed.
func (g *gate) mark(flag uint64) bool {
	for {
		s := g.state.Load()
		if s&(flag|gateClosed) != 0 {
			return false
		}
		if g.state.CompareAndSwap(s, (s|flag)+1) {
			return true
		}
	}
}

// The rules for the kernel's errors, for both builds: an error affects the datagram
// that it is about and no other.
const (
	// minBackOff and maxBackOff bound the pause after repeated receive
	// errors: long enough not to occupy a core, short enough for players.
	minBackOff = time.Millisecond
	maxBackOff = 10 * time.Millisecond

	// maxInterrupts bounds the retries of a send that signals interrupt, and
	// the successive receive calls that signals may interrupt before that counts
	// as an error.
	maxInterrupts = 16
)

// errorStreak counts the receive calls without a datagram since the last success.
type errorStreak struct {
	failures int // calls that failed
	signals  int // calls that a signal interrupted
}

// add takes the result of a receive call and reports whether it is an error. A call
// without progress is one, since the next may be the same; a time-out is none, since
// it has waited. A signal neither is one nor ends the streak, so that signals between
// errors do not hide that these repeat.
func (s *errorStreak) add(n int, errno syscall.Errno) bool {
	switch {
	case n > 0 || errno == syscall.EAGAIN:
		*s = errorStreak{}
		return false
	case errno == syscall.EINTR && s.signals < maxInterrupts:
		s.signals++
		return false
	}
	return true
}

// backOff pauses after the second and each further error of a streak.
func (c *Conn) backOff(b *RecvBatch) {
	if n := b.errors.failures; n > 0 {
		c.sleep(min(maxBackOff, minBackOff<<min(n-1, 10)))
	}
	b.errors.failures++
}

// descriptorError returns an error when the descriptor is no socket of ours any more,
// which only a fault of this process can do: no datagram will arrive there again, so
// a relay that continued would run without receiving. Any other errno gives nil.
func (c *Conn) descriptorError(errno syscall.Errno) error {
	if errno != syscall.EBADF && errno != syscall.ENOTSOCK || !c.sock.isInvalid() {
		return nil
	}
	return fmt.Errorf("sock: the descriptor of %v is gone: %w", c.group.cfg.Addr, errno)
}

// retry reports whether to offer the same message again: after a signal,
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

func (r *SendResult) addFailed(n int, errno syscall.Errno) {
	r.Failed += n
	if isNetworkDown(errno) {
		r.Down += n
	}
}

// isNetworkDown reports whether errno means that this machine has no network, rather
// than that one peer is unreachable: a link that is down loses its routes.
func isNetworkDown(errno syscall.Errno) bool {
	switch errno {
	case syscall.ENETDOWN, syscall.ENETUNREACH:
		return true
	case 10050, 10051: // WSAENETDOWN and WSAENETUNREACH, for which package syscall has no name
		return runtime.GOOS == "windows"
	}
	return false
}

// TryRecv is [Conn.Recv] without blocking: it returns (0, nil) without a
// datagram, and after errors that may pass. In the portable build, whose sockets
// cannot always be asked, it may wait up to a millisecond. The goroutine that
// calls Recv may call TryRecv with the same b.
func (c *Conn) TryRecv(b *RecvBatch) (int, error) {
	if !c.gate.enter(gateRecvClosed) {
		return 0, net.ErrClosed
	}
	n, errno := c.sock.tryRecv(b)
	return c.endRecv(b, n, errno, false)
}

// Merging: datagrams of one batch that go to one endpoint and have one size
// leave as one message that the kernel cuts apart again (UDP_SEGMENT, udp(7)).
// The kernel then walks its stack once for all of them. They stay in order, and
// only the last may be shorter.

// maxRunBytes keeps a run within the length field of an IP packet.
const maxRunBytes = 65_000

// segmentLimit is the largest segment that may be merged on a socket, in bytes;
// zero switches merging off. Every sender of the socket reads it.
type segmentLimit struct{ bytes atomic.Uint32 }

// isMergeRefusal reports whether errno may mean that a run cannot leave merged.
func isMergeRefusal(errno syscall.Errno) bool {
	return errno == syscall.EIO || errno == syscall.EINVAL || errno == syscall.EMSGSIZE
}

var epoch = time.Now()

// Now returns the monotonic clock in nanoseconds since the process started. It
// is never negative, does not follow changes of the wall clock, and means
// nothing to another process.
func Now() int64 { return int64(time.Since(epoch)) }
