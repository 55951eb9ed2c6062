package client

import (
	"context"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// evictAfter is how long a peer has to be silent before it may make room. The
// relay does not report that a peer's allocation has ended, so a host that runs
// for days would otherwise fill its table with players long gone.
const evictAfter = time.Minute

// Accept waits for a peer that the host does not know yet and returns it. The
// relay tells a host nothing about joiners: a peer is learned from its first
// datagram, which is then the first that Read returns. A peer that leaves
// before it is accepted is forgotten.
//
// Errors: ErrRole, ctx.Err(), or why the session ended.
func (s *Session) Accept(ctx context.Context) (*Peer, error) {
	for {
		p, err := s.TryAccept()
		if p != nil || err != nil {
			return p, err
		}
		select {
		case <-s.acceptable:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// TryAccept is Accept for a caller that polls instead of waiting: the peer
// is nil when there is no new one. Errors: ErrRole, or why the session ended.
func (s *Session) TryAccept() (*Peer, error) {
	if !s.host {
		return nil, ErrRole
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if len(s.accept) == 0 {
		return nil, nil
	}
	p := s.accept[0]
	s.accept = slices.Delete(s.accept, 0, 1)
	if len(s.accept) > 0 {
		signal(s.acceptable)
	}
	return p, nil
}

// Peer returns the peer with this id, if it is linked as far as this side
// knows. It is for code that uses PacketConn and wants to end one link.
func (s *Session) Peer(id proto.AllocationID) (*Peer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[id]
	return p, p != nil && p.state == peerOpen
}

// peerOf returns the peer that a RELAY came from, learning it if this side may.
// Nil means that the datagram is dropped. The caller holds the session's lock.
func (s *Session) peerOf(now int64, id proto.AllocationID) *Peer {
	p := s.peers[id]
	switch {
	case s.err != nil:
		return nil
	case p != nil && p.state != peerOpen:
		s.counters.late.Add(1)
		return nil
	case p != nil:
		return p
	case !s.host && !s.connect.active:
		// A joiner has no peer but its host, whose first datagram may
		// overtake ACCEPTED.
		s.counters.unexpected.Add(1)
		return nil
	case len(s.peers) >= s.cfg.MaxPeers && !s.evict(now):
		s.counters.refused.Add(1)
		return nil
	}
	p = s.addPeer(now, id)
	if s.host {
		s.accept = append(s.accept, p)
		signal(s.acceptable)
	}
	return p
}

func (s *Session) addPeer(now int64, id proto.AllocationID) *Peer {
	p := newPeer(s, id)
	p.lastReceived = now
	s.peers[id] = p
	return p
}

// evict makes room in the table if a peer has been silent long enough.
func (s *Session) evict(now int64) bool {
	var oldest *Peer
	for _, p := range s.peers {
		if oldest == nil || p.lastReceived < oldest.lastReceived {
			oldest = p
		}
	}
	if oldest == nil || oldest.state != peerOpen || now-oldest.lastReceived < int64(evictAfter) {
		return false
	}
	s.counters.evicted.Add(1)
	oldest.closeAs(peerLeft)
	s.forget(oldest)
	return true
}

// forget takes a peer out of the table. What waits in its queue stays for its
// Read, and for ReadFrom if that is how this session reads: the last datagrams
// of a protocol are often its close message.
func (s *Session) forget(p *Peer) {
	if p.state == peerLeaving {
		s.leaving--
		p.state = peerClosed
		s.kick()
	}
	delete(s.peers, p.id)
	if i := slices.Index(s.accept, p); i >= 0 {
		s.accept = slices.Delete(s.accept, i, i+1)
	}
	if !s.packeted {
		s.ready.remove(p)
	}
}

const (
	// maxDatagram is the largest RELAY, 1472 bytes.
	maxDatagram = proto.RelayOverhead + proto.MaxContent
	// maxSpare bounds the buffers that a session keeps after a burst, 1.5 MB.
	maxSpare = 1024
)

// datagram is one received datagram in a buffer that is used again. The buffer
// has a byte more than the largest message, so that one that was cut shows.
type datagram struct {
	buf [maxDatagram + 1]byte
	n   int
	at  *socket // the socket that it came to
}

func (d *datagram) bytes() []byte { return d.buf[:d.n] }

// content returns the content of a datagram that is a RELAY.
func (d *datagram) content() []byte { return d.buf[proto.RelayOverhead:d.n] }

// queue holds datagrams in order, up to a fixed number.
type queue struct {
	slots []*datagram
	head  int
	count int
}

func newQueue(n int) queue { return queue{slots: make([]*datagram, n)} }

// push is false when the queue is full.
func (q *queue) push(d *datagram) bool {
	if q.count == len(q.slots) {
		return false
	}
	q.slots[(q.head+q.count)%len(q.slots)] = d
	q.count++
	return true
}

// pop returns nil when the queue is empty.
func (q *queue) pop() *datagram {
	if q.count == 0 {
		return nil
	}
	d := q.slots[q.head]
	q.slots[q.head] = nil
	q.head = (q.head + 1) % len(q.slots)
	q.count--
	return d
}

// peerList holds the peers that have datagrams waiting, in the order in which
// ReadFrom serves them: one datagram each in turn, so that a loud peer does not
// starve the others. A peer is in it once.
type peerList struct {
	first, last *Peer
}

func (l *peerList) add(p *Peer) {
	if p.listed {
		return
	}
	p.listed, p.before, p.after = true, l.last, nil
	if l.last == nil {
		l.first = p
	} else {
		l.last.after = p
	}
	l.last = p
}

func (l *peerList) remove(p *Peer) {
	if !p.listed {
		return
	}
	if p.before == nil {
		l.first = p.after
	} else {
		p.before.after = p.after
	}
	if p.after == nil {
		l.last = p.before
	} else {
		p.after.before = p.before
	}
	p.listed, p.before, p.after = false, nil, nil
}

// take returns an empty buffer. The caller holds the session's lock.
func (s *Session) take() *datagram {
	n := len(s.spare)
	if n == 0 {
		return new(datagram)
	}
	d := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return d
}

// give takes a buffer back. The caller holds the session's lock.
func (s *Session) give(d *datagram) {
	if len(s.spare) < maxSpare {
		s.spare = append(s.spare, d)
	}
}
