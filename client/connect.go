package client

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// relinkTimeout is how long a link that the relay does not know any more may stay without an
// answer to CONNECT_REQUEST.
const relinkTimeout = 5 * time.Second

// connecting is the state of CONNECT_REQUEST. It belongs to the lock of its
// session; each Connect gets a channel of its own and at most one verdict.
type connecting struct {
	retry
	relink   bool         // peer has a link that is to be made again
	sentAt   int64        // time of the newest CONNECT_REQUEST
	peer     *Peer        // the host, once linked
	verdicts chan verdict // capacity one; nil: no Connect waits
}

// verdict is how a Connect ends: a peer or an error.
type verdict struct {
	peer *Peer
	err  error
}

// Connect asks the relay for a link to the host that the ticket leads to,
// repeats until there is a verdict, and returns the host as a peer; while that
// link lives, later calls return the same peer. It binds first if need be. Run
// has to be under way.
//
// A link that the relay has dropped, such as one that nothing used for too long, is made again
// without a call. If that fails, Read and Write of the peer return ErrLinkLost.
//
// Errors: ErrRejected, RefusedError, ErrConnectTimeout, ErrRole, ErrConnecting,
// ctx.Err(), or why the session ended.
func (s *Session) Connect(ctx context.Context) (*Peer, error) {
	if s.host {
		return nil, ErrRole
	}
	if err := s.Bind(ctx); err != nil {
		return nil, err
	}
	peer, verdicts, err := s.beginConnect()
	if peer != nil || err != nil {
		return peer, err
	}
	select {
	case v := <-verdicts:
		return v.peer, v.err
	case <-s.done:
		return nil, s.Err()
	case <-ctx.Done():
		s.abandonConnect(verdicts)
		return nil, ctx.Err()
	}
}

// abandonConnect stops asking, unless there was a verdict in the same moment
// and another Connect has begun since.
func (s *Session) abandonConnect(verdicts chan verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.connect.verdicts != verdicts:
	case s.connect.relink:
		s.connect.verdicts = nil // The link is made again without a Connect, too.
	default:
		s.connect.stop()
	}
}

func (s *Session) beginConnect() (*Peer, chan verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.connect
	switch {
	case s.err != nil:
		return nil, nil, s.err
	case c.active && c.verdicts != nil:
		return nil, nil, ErrConnecting
	case c.active: // Its link is made again.
		c.verdicts = make(chan verdict, 1)
		return nil, c.verdicts, nil
	case c.peer != nil && c.peer.state == peerOpen:
		return c.peer, nil, nil
	}
	s.lost.Store(nil)
	c.peer, c.verdicts, c.relink = nil, make(chan verdict, 1), false
	c.start(s.now())
	s.kick()
	return nil, c.verdicts, nil
}

// dueConnect is the part of due that asks for the link. A DISCONNECT that is
// still repeated would end the new link too, so the request waits for its end.
func (s *Session) dueConnect(now int64, buf []byte) ([]byte, int64) {
	c, limit := &s.connect, s.cfg.ConnectTimeout
	if c.relink {
		limit = relinkTimeout
		if s.bind.active {
			c.since = now // The relay's silence says nothing about the link.
		}
	}
	if c.expired(now, limit) {
		s.decide(verdict{err: ErrConnectTimeout})
	}
	if !c.active || s.bind.active || s.leaving > 0 {
		return nil, c.expiry(limit)
	}
	if !c.due(now) {
		return nil, min(c.at(), c.expiry(limit))
	}
	c.noteSent(now, s.cfg.RetryPeriod)
	c.sentAt = now
	s.counters.connects.Add(1)
	return proto.ConnectRequest{ID: s.own, ConnectionData: s.cfg.Ticket.HostConnectionData}.Append(buf[:0]), now
}

// decide ends a Connect that waits, and the link of a peer that cannot be made again; later
// answers of the relay change nothing. The caller holds the session's lock.
func (s *Session) decide(v verdict) bool {
	c := &s.connect
	if !c.active {
		return false
	}
	c.stop()
	if lost := c.peer; c.relink && lost != nil && lost != v.peer && lost.state == peerOpen {
		lost.cause = fmt.Errorf("%w: %w", ErrLinkLost, cmp.Or(v.err, error(ErrPeerLeft)))
		s.log.Warn("link to the host is lost", "error", lost.cause)
		lost.closeAs(peerLost)
		s.forget(lost)
		s.lost.Store(lost)
		signal(s.readable)
	}
	c.relink, c.peer = false, v.peer
	if c.verdicts != nil {
		c.verdicts <- v
		c.verdicts = nil
	}
	return true
}

// onNotConnected processes ERROR 5, which is about the one peer that a joiner has: its link is
// made again. A host has no request for that, and the error does not name the peer.
func (s *Session) onNotConnected(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.connect
	if s.err != nil || c.active || c.peer == nil || c.peer.state != peerOpen {
		return
	}
	s.log.Info("relay has no link to the host, connecting again")
	c.start(now)
	c.relink, c.verdicts = true, nil
	c.sends = relinkSends
	if c.sentAt > 0 {
		c.next = max(now, c.sentAt+int64(s.cfg.RetryPeriod))
	}
	s.kick()
}

// relinkSends makes the repetitions of a retry equally far apart from the first on.
const relinkSends = 2

// isConnectAnswer reports whether ERROR 4 answers a CONNECT_REQUEST, perhaps one that was
// repeated, and so speaks of the host: the session's own allocation has ended if it answers a BIND.
func (s *Session) isConnectAnswer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.connect
	return c.sentAt > 0 && (!s.bind.active || s.bind.sentAt < c.sentAt)
}

// onAccepted takes the host's id from the relay's ACCEPTED.
func (s *Session) onAccepted(now int64, m proto.Accepted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.To != s.own || !s.connect.active {
		s.counters.unexpected.Add(1)
		return
	}
	p := s.peers[m.From]
	switch {
	case p == nil:
		p = s.addPeer(now, m.From)
	case p.state != peerOpen:
		s.counters.late.Add(1)
		return
	}
	s.decide(verdict{peer: p})
	s.log.Debug("connected", "host", p.remote)
}

// onVerdict takes a refusal of a request that waits. Only the type of REJECTED
// is looked at, since its body is not published.
func (s *Session) onVerdict(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.decide(verdict{err: err}) {
		s.counters.unexpected.Add(1)
	}
}

const (
	// maxDisconnects is how often DISCONNECT is sent without the relay's echo.
	maxDisconnects = 4
	// closes and closePause: the published text asks to send CLOSE several
	// times, because it is not answered.
	closes     = 3
	closePause = 20 * time.Millisecond
)

// Close ends every link, the allocation and the session: it sends DISCONNECT to
// each peer and CLOSE several times, which takes about 40 ms, and waits until
// Run has returned. Calls that wait return net.ErrClosed. It always returns nil
// and may be called again.
func (s *Session) Close() error {
	s.leave()
	s.end(net.ErrClosed)
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running {
		<-s.stopped
	}
	return nil
}

// leave sends CLOSE to the relay, once, if a message was ever sent.
func (s *Session) leave() {
	s.leaveOnce.Do(func() {
		buf := make([]byte, 0, proto.DisconnectLen)
		peers, ok := s.peersToDisconnect()
		if !ok {
			return
		}
		for _, id := range peers {
			s.transmit(proto.Disconnect{From: s.own, To: id}.Append(buf))
		}
		pkt := proto.Close{ID: s.own}.Append(buf)
		for i := range closes {
			if i > 0 {
				time.Sleep(closePause)
			}
			s.transmit(pkt)
		}
	})
}

// peersToDisconnect returns the peers to disconnect, after which nothing else is sent, and
// false when the relay does not know this endpoint or the session has ended.
func (s *Session) peersToDisconnect() ([]proto.AllocationID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || !s.bound.Load() && !s.bind.active {
		return nil, false
	}
	s.parting = true
	ids := make([]proto.AllocationID, 0, len(s.peers))
	for id := range s.peers {
		ids = append(ids, id)
	}
	return ids, true
}

// dueDisconnect is the part of due that ends links. A peer whose DISCONNECT
// stays without an echo is forgotten after a few.
func (s *Session) dueDisconnect(now int64, buf []byte) ([]byte, int64) {
	if s.leaving == 0 || s.bind.active {
		return nil, never
	}
	next := int64(never)
	for id, p := range s.peers {
		if p.state != peerLeaving {
			continue
		}
		if !p.leave.due(now) {
			next = min(next, p.leave.at())
			continue
		}
		if p.leave.sends == maxDisconnects {
			s.forget(p)
			continue
		}
		p.leave.noteSent(now, s.cfg.RetryPeriod)
		return proto.Disconnect{From: s.own, To: id}.Append(buf[:0]), now
	}
	return nil, next
}

// onDisconnect takes a DISCONNECT of a peer, or the echo of an own one, after
// which nothing of the old link follows.
func (s *Session) onDisconnect(m proto.Disconnect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := m.From
	if m.From == s.own {
		other = m.To
	}
	p := s.peers[other]
	switch {
	case p == nil, m.To != s.own && m.From != s.own:
		s.counters.unexpected.Add(1)
	case m.From == s.own && p.state == peerOpen:
		// An echo that comes twice must not end the link that came after it.
		s.counters.unexpected.Add(1)
	case p.state == peerOpen:
		p.closeAs(peerLeft)
		s.forget(p)
	default:
		s.forget(p)
	}
}
