package client

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// relinkTimeout is how long a link that the relay does not know any more may stay without an
// answer to CONNECT_REQUEST.
const relinkTimeout = 5 * time.Second

// connecting is the state of CONNECT_REQUEST. The session's lock guards it; each Connect gets a
// channel of its own and at most one verdict.
type connecting struct {
	s *Session
	retry
	relink   bool                 // peer has a link that is to be made again
	sentAt   int64                // time of the newest CONNECT_REQUEST
	peer     *Peer                // the host, once linked
	verdicts chan verdict         // capacity one; nil: no Connect waits
	lost     atomic.Pointer[Peer] // the host whose link was lost, until the next Connect; read without the lock, too
}

type verdict struct {
	peer *Peer
	err  error
}

// Connect asks the relay for a link to the ticket's host until there is a
// verdict, and returns the host; while that link lives, later calls return the
// same peer. It binds first if need be. Run has to be under way.
//
// A link that the relay has dropped, such as one that nothing used for too long, is made again
// without a call. If that fails, Read and Write of the peer return ErrLinkLost.
//
// Errors: ErrRejected, RefusedError, ErrConnectTimeout, ErrRole, that another
// Connect waits or there is no Run, ctx.Err(), or why the session ended.
func (s *Session) Connect(ctx context.Context) (*Peer, error) {
	if s.host {
		return nil, ErrRole
	}
	if err := s.Bind(ctx); err != nil {
		return nil, err
	}
	peer, verdicts, err := s.connect.begin()
	if peer != nil || err != nil {
		return peer, err
	}
	select {
	case v := <-verdicts:
		return v.peer, v.err
	case <-s.done:
		return nil, s.Err()
	case <-ctx.Done():
		s.connect.abandon(verdicts)
		return nil, ctx.Err()
	}
}

// abandon stops asking, unless there was a verdict in the same moment
// and another Connect has begun since.
func (c *connecting) abandon(verdicts chan verdict) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case c.verdicts != verdicts:
	case c.relink:
		c.verdicts = nil // The link is made again without a Connect, too.
	default:
		c.stop()
	}
}

func (c *connecting) begin() (*Peer, chan verdict, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case c.s.err != nil:
		return nil, nil, c.s.err
	case c.active && c.verdicts != nil:
		return nil, nil, errConnecting
	case c.active: // Its link is made again.
		c.verdicts = make(chan verdict, 1)
		return nil, c.verdicts, nil
	case c.peer != nil && c.peer.state == peerOpen:
		return c.peer, nil, nil
	}
	c.lost.Store(nil)
	c.peer, c.verdicts, c.relink = nil, make(chan verdict, 1), false
	c.start(c.s.now())
	signal(c.s.kicked)
	return nil, c.verdicts, nil
}

// dueConnect waits while a DISCONNECT is repeated: it would end the new link.
func (c *connecting) dueConnect(now int64, buf []byte) ([]byte, int64) {
	limit := c.s.cfg.ConnectTimeout
	if c.relink {
		limit = relinkTimeout
		if c.s.bind.active {
			c.since = now // The relay's silence says nothing about the link.
		}
	}
	if c.expired(now, limit) {
		c.decide(verdict{err: ErrConnectTimeout})
	}
	if !c.active || c.s.bind.active || c.s.peers.leaving > 0 {
		return nil, c.expiry(limit)
	}
	if !c.due(now) {
		return nil, min(c.at(), c.expiry(limit))
	}
	c.noteSent(now, c.s.cfg.RetryPeriod)
	c.sentAt = now
	return proto.ConnectRequest{ID: c.s.own, ConnectionData: c.s.cfg.Ticket.HostConnectionData}.Append(buf[:0]), now
}

// decide ends a Connect that waits, and the link of a peer that cannot be made again; later
// answers of the relay change nothing. The caller holds the session's lock.
func (c *connecting) decide(v verdict) bool {
	if !c.active {
		return false
	}
	c.stop()
	if lost := c.peer; c.relink && lost != nil && lost != v.peer && lost.state == peerOpen {
		lost.cause = fmt.Errorf("%w: %w", ErrLinkLost, cmp.Or(v.err, error(ErrPeerLeft)))
		c.s.log.Warn("link to the host is lost", "error", lost.cause)
		lost.closeAs(peerLost)
		c.s.peers.forget(lost)
		c.lost.Store(lost)
		signal(c.s.packets.readable)
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
func (c *connecting) onNotConnected(now int64) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.err != nil || c.active || c.peer == nil || c.peer.state != peerOpen {
		return
	}
	c.s.log.Info("relay has no link to the host, connecting again")
	c.start(now)
	c.relink, c.verdicts = true, nil
	c.sends = relinkSends
	if c.sentAt > 0 {
		c.next = max(now, c.sentAt+int64(c.s.cfg.RetryPeriod))
	}
	signal(c.s.kicked)
}

// relinkSends makes the repetitions of a retry equally far apart from the first on.
const relinkSends = 2

// isAnswer reports whether ERROR 4 answers a CONNECT_REQUEST, perhaps one that was
// repeated, and so speaks of the host: the session's own allocation has ended if it answers a BIND.
func (c *connecting) isAnswer() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.sentAt > 0 && (!c.s.bind.active || c.s.bind.sentAt < c.sentAt)
}

func (c *connecting) onAccepted(now int64, m proto.Accepted) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if m.To != c.s.own || !c.active {
		c.s.counters.unexpected.Add(1)
		return
	}
	p := c.s.peers.byID[m.From]
	switch {
	case p == nil:
		p = c.s.peers.add(now, m.From)
	case p.state != peerOpen:
		c.s.counters.late.Add(1)
		return
	}
	c.decide(verdict{peer: p})
	c.s.log.Debug("connected", "host", p.remote)
}

// onVerdict looks at the type of REJECTED only: its body is not published.
func (c *connecting) onVerdict(err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.decide(verdict{err: err}) {
		c.s.counters.unexpected.Add(1)
	}
}
