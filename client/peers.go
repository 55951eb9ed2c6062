package client

import (
	"context"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// evictAfter is how long a peer has to be silent before it may make room. The
// relay does not report that a peer's allocation has ended.
const evictAfter = time.Minute

// peerTable has the peers of a session. The session's lock guards it.
type peerTable struct {
	s          *Session
	byID       map[proto.AllocationID]*Peer
	waiting    []*Peer       // learned and not accepted yet, oldest first
	acceptable chan struct{} // a peer may be waiting for Accept
	leaving    int           // peers whose DISCONNECT is not confirmed yet
	ready      peerList
	spare      []*datagram // empty buffers
}

// Accept waits for a peer that the host does not know yet. The relay tells a
// host nothing about joiners: a peer is learned from its first datagram, which
// is then the first that Read returns.
//
// Errors: ErrRole, ctx.Err(), or why the session ended.
func (s *Session) Accept(ctx context.Context) (*Peer, error) {
	for {
		p, err := s.TryAccept()
		if p != nil || err != nil {
			return p, err
		}
		select {
		case <-s.peers.acceptable:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// TryAccept is Accept for a caller that polls: the peer is nil when there is
// none.
func (s *Session) TryAccept() (*Peer, error) {
	if !s.host {
		return nil, ErrRole
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if len(s.peers.waiting) == 0 {
		return nil, nil
	}
	p := s.peers.waiting[0]
	s.peers.waiting = slices.Delete(s.peers.waiting, 0, 1)
	if len(s.peers.waiting) > 0 {
		signal(s.peers.acceptable)
	}
	return p, nil
}

// Peer returns the peer with this id, if it is linked as far as is known.
func (s *Session) Peer(id proto.AllocationID) (*Peer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers.byID[id]
	return p, p != nil && p.state == peerOpen
}

// receive queues a datagram for its peer, and returns the buffer for the next one.
func (t *peerTable) receive(now int64, d *datagram) *datagram {
	m, err := proto.ParseRelay(d.bytes())
	if err != nil {
		t.s.counters.malformed.Add(1)
		return d
	}
	if m.To != t.s.own {
		t.s.counters.unexpected.Add(1)
		return d
	}
	t.s.transport.hear(now)
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	p := t.from(now, m.From)
	if p == nil {
		return d
	}
	p.lastReceived = now
	if !p.queue.push(d) {
		t.s.counters.queueDropped.Add(1)
		return d
	}
	t.s.counters.received.Add(1)
	t.s.counters.receivedBytes.Add(uint64(len(m.Payload)))
	t.ready.add(p)
	signal(p.readable)
	signal(t.s.packets.readable)
	return t.take()
}

// from returns the peer that a RELAY came from, learning it if this side may.
// Nil means that the datagram is dropped. The caller holds the session's lock.
func (t *peerTable) from(now int64, id proto.AllocationID) *Peer {
	p := t.byID[id]
	switch {
	case t.s.err != nil:
		return nil
	case p != nil && p.state != peerOpen:
		t.s.counters.late.Add(1)
		return nil
	case p != nil:
		return p
	case !t.s.host && !t.s.connect.active:
		// A joiner has no peer but its host, whose first datagram may
		// overtake ACCEPTED.
		t.s.counters.unexpected.Add(1)
		return nil
	case len(t.byID) >= t.s.cfg.MaxPeers && !t.evict(now):
		t.s.counters.refused.Add(1)
		return nil
	}
	p = t.add(now, id)
	if t.s.host {
		t.waiting = append(t.waiting, p)
		signal(t.acceptable)
	}
	return p
}

func (t *peerTable) add(now int64, id proto.AllocationID) *Peer {
	p := newPeer(t.s, id)
	p.lastReceived = now
	t.byID[id] = p
	return p
}

func (t *peerTable) evict(now int64) bool {
	var oldest *Peer
	for _, p := range t.byID {
		if oldest == nil || p.lastReceived < oldest.lastReceived {
			oldest = p
		}
	}
	if oldest == nil || oldest.state != peerOpen || now-oldest.lastReceived < int64(evictAfter) {
		return false
	}
	t.s.counters.evicted.Add(1)
	oldest.closeAs(peerLeft)
	t.forget(oldest)
	return true
}

// forget takes a peer out of the table. What waits in its queue stays for its
// Read, and for ReadFrom if that is how this session reads: the last datagrams
// of a protocol are often its close message.
func (t *peerTable) forget(p *Peer) {
	if p.state == peerLeaving {
		t.leaving--
		p.state = peerClosed
		signal(t.s.kicked)
	}
	delete(t.byID, p.id)
	if i := slices.Index(t.waiting, p); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	if !t.s.packets.requested {
		t.ready.remove(p)
	}
}

// dueDisconnect forgets a peer whose DISCONNECT stays without an echo.
func (t *peerTable) dueDisconnect(now int64, buf []byte) ([]byte, int64) {
	if t.leaving == 0 || t.s.bind.active {
		return nil, never
	}
	next := int64(never)
	for id, p := range t.byID {
		if p.state != peerLeaving {
			continue
		}
		if !p.leave.due(now) {
			next = min(next, p.leave.at())
			continue
		}
		if p.leave.sends == maxDisconnects {
			t.forget(p)
			continue
		}
		p.leave.noteSent(now, t.s.cfg.RetryPeriod)
		return proto.Disconnect{From: t.s.own, To: id}.Append(buf[:0]), now
	}
	return nil, next
}

// onDisconnect takes a DISCONNECT of a peer, or the echo of an own one, after
// which nothing of the old link follows.
func (t *peerTable) onDisconnect(m proto.Disconnect) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	other := m.From
	if m.From == t.s.own {
		other = m.To
	}
	p := t.byID[other]
	switch {
	case p == nil, m.To != t.s.own && m.From != t.s.own:
		t.s.counters.unexpected.Add(1)
	case m.From == t.s.own && p.state == peerOpen:
		// An echo that comes twice must not end the link that came after it.
		t.s.counters.unexpected.Add(1)
	case p.state == peerOpen:
		p.closeAs(peerLeft)
		t.forget(p)
	default:
		t.forget(p)
	}
}
