package client

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

type peerState uint8

const (
	peerOpen    peerState = iota
	peerLeaving           // this side ended it, the relay has not confirmed
	peerClosed            // this side ended it
	peerLeft              // the other side ended it
	peerLost              // the relay has dropped it, and it could not be made again
)

// Peer is the other end of a link: a net.Conn that keeps the bounds of
// datagrams. Read and Write may be called from several goroutines and allocate
// nothing.
type Peer struct {
	s        *Session
	id       proto.AllocationID
	remote   net.Addr // Addr of id, boxed once
	out      outgoing
	deadline deadline
	limit    atomic.Int64  // write deadline, Unix nanoseconds; 0: none
	readable chan struct{} // a datagram may be waiting
	gone     chan struct{} // closed when state leaves peerOpen

	// The lock of the session guards these.
	state         peerState
	leave         retry
	lastReceived  int64
	queue         queue
	listed        bool
	before, after *Peer
	cause         error // of peerLost
}

var _ net.Conn = (*Peer)(nil)

func newPeer(s *Session, id proto.AllocationID) *Peer {
	return &Peer{
		s:        s,
		id:       id,
		remote:   Addr{id},
		deadline: newDeadline(),
		readable: make(chan struct{}, 1),
		gone:     make(chan struct{}),
		queue:    newQueue(s.cfg.ReceiveQueue),
	}
}

// ID returns the peer's allocation.
func (p *Peer) ID() proto.AllocationID { return p.id }

// LocalAddr returns the Addr of the session.
func (p *Peer) LocalAddr() net.Addr { return p.s.packets.local }

// RemoteAddr returns the Addr of the peer.
func (p *Peer) RemoteAddr() net.Addr { return p.remote }

// SetDeadline sets the deadlines of Read and Write.
func (p *Peer) SetDeadline(t time.Time) error {
	_ = p.SetReadDeadline(t)
	return p.SetWriteDeadline(t)
}

// SetReadDeadline also ends a Read that waits. It always returns nil.
func (p *Peer) SetReadDeadline(t time.Time) error {
	p.deadline.set(t)
	return nil
}

// SetWriteDeadline makes Write fail from t on. Write does not wait for the
// network. It always returns nil.
func (p *Peer) SetWriteDeadline(t time.Time) error {
	p.limit.Store(unixNano(t))
	return nil
}

// Read waits for the next datagram of the peer and copies it to b; what does
// not fit is lost. An empty datagram is 0 bytes without an error.
//
// Errors: os.ErrDeadlineExceeded; io.EOF after the last datagram of a peer that
// left, and ErrLinkLost after that of a host whose link could not be made again;
// net.ErrClosed after Close; or why the session ended.
func (p *Peer) Read(b []byte) (int, error) {
	for {
		expired := p.deadline.done()
		if isClosed(expired) {
			return 0, os.ErrDeadlineExceeded
		}
		n, ok, err := p.TryRead(b)
		if ok || err != nil {
			return n, err
		}
		select {
		case <-p.readable:
		case <-expired:
		case <-p.gone:
		case <-p.s.done:
		}
	}
}

// TryRead is Read for a caller that polls, as a game does in each tick: ok is
// false when no datagram waits. It has no deadline.
func (p *Peer) TryRead(b []byte) (n int, ok bool, err error) {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, false, s.err
	}
	d := p.queue.pop()
	if d == nil {
		return 0, false, p.readError()
	}
	n = copy(b, d.content())
	s.peers.give(d)
	if p.queue.count > 0 {
		signal(p.readable)
	} else {
		s.peers.ready.remove(p)
	}
	return n, true, nil
}

func (p *Peer) readError() error {
	switch p.state {
	case peerOpen:
		return nil
	case peerLeft:
		return io.EOF
	case peerLost:
		return p.cause
	default:
		return net.ErrClosed
	}
}

// Write sends b to the peer as one datagram. Success means that it is on its
// way or lost: one that the system refuses is counted in Stats.Unsent.
//
// Errors: ErrTooLarge, os.ErrDeadlineExceeded, ErrPeerLeft, ErrLinkLost, net.ErrClosed,
// or why the session ended.
func (p *Peer) Write(b []byte) (int, error) {
	if isClosed(p.gone) {
		return 0, p.writeError()
	}
	if past(&p.limit) {
		return 0, os.ErrDeadlineExceeded
	}
	return p.s.send(&p.out, p.id, b)
}

func (p *Peer) writeError() error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	switch {
	case p.s.err != nil:
		return p.s.err
	case p.state == peerLeft:
		return ErrPeerLeft
	case p.state == peerLost:
		return p.cause
	default:
		return net.ErrClosed
	}
}

// Close ends the link and drops what waits to be read; the session tells the
// relay until it confirms. It always returns nil and may be called again.
func (p *Peer) Close() error {
	s := p.s
	if s == nil { // It is of no session.
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := p.queue.pop(); d != nil; d = p.queue.pop() {
		s.peers.give(d)
	}
	s.peers.ready.remove(p)
	if s.err != nil || p.state != peerOpen {
		return nil
	}
	p.closeAs(peerLeaving)
	p.leave.start(s.now())
	s.peers.leaving++
	signal(s.kicked)
	return nil
}

// closeAs ends an open link. The caller holds the session's lock.
func (p *Peer) closeAs(state peerState) {
	p.state = state
	p.deadline.stop()
	close(p.gone)
}

// outgoing is the buffer that a writer builds its datagrams in, one at a time.
type outgoing struct {
	mu  sync.Mutex
	buf [maxDatagram]byte
}

func (s *Session) send(out *outgoing, to proto.AllocationID, b []byte) (int, error) {
	switch {
	case isClosed(s.done):
		return 0, s.Err()
	case !s.bind.bound.Load():
		return 0, ErrNotBound
	case len(b) > s.cfg.MaxContent:
		return 0, ErrTooLarge
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	pkt := proto.Relay{From: s.own, To: to, Payload: b}.Append(out.buf[:0])
	if s.transport.transmit(pkt) {
		s.counters.sent.Add(1)
		s.counters.sentBytes.Add(uint64(len(b)))
	}
	return len(b), nil
}

func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func past(limit *atomic.Int64) bool {
	at := limit.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// deadline is the read deadline of a connection as a channel that is closed
// while the deadline lies in the past. Setting it again and again, which is
// what games do before each Read, allocates nothing. Its lock guards all.
type deadline struct {
	mu      sync.Mutex
	at      time.Time // zero: none
	timer   *time.Timer
	expired chan struct{}
}

func newDeadline() deadline { return deadline{expired: make(chan struct{})} }

func (d *deadline) set(t time.Time) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := time.Duration(0)
	if !t.IsZero() {
		wait = t.Sub(now)
		// Kept on the monotonic clock, so that the timer and this value agree
		// whatever happens to the wall clock.
		t = now.Add(wait)
	}
	d.at = t
	passed := !t.IsZero() && wait <= 0
	if isClosed(d.expired) != passed {
		d.flip(passed)
	}
	switch {
	case t.IsZero() || passed:
		if d.timer != nil {
			d.timer.Stop()
		}
	case d.timer == nil:
		d.timer = time.AfterFunc(wait, d.fire)
	default:
		d.timer.Reset(wait)
	}
}

func (d *deadline) flip(passed bool) {
	if passed {
		close(d.expired)
		return
	}
	d.expired = make(chan struct{})
}

// fire does nothing if the timer was stopped too late: the deadline was moved.
func (d *deadline) fire() {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && !now.Before(d.at) && !isClosed(d.expired) {
		close(d.expired)
	}
}

func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired
}

// isClosed reports whether c, on which nothing is ever sent, is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// signal leaves a token in a channel of capacity one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
