package client

import (
	"net"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

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

// leave says goodbye to the relay, once, if it was ever spoken to.
func (s *Session) leave() {
	s.leaveOnce.Do(func() {
		buf := make([]byte, 0, proto.DisconnectLen)
		peers, ok := s.farewell()
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

// farewell returns the peers to disconnect, after which nothing else is sent, and
// false when the relay does not know this endpoint or the session has ended.
func (s *Session) farewell() ([]proto.AllocationID, bool) {
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
		p.leave.sent(now, s.cfg.RetryPeriod)
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
