package client

import (
	"maps"
	"net"
	"slices"
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
	if s.done == nil { // New has not made it.
		return nil
	}
	s.leave()
	s.end(net.ErrClosed)
	s.mu.Lock()
	running := isClosed(s.started)
	s.mu.Unlock()
	if running {
		<-s.stopped
	}
	return nil
}

func (s *Session) leave() {
	s.leaveOnce.Do(func() {
		buf := make([]byte, 0, 36)
		peers, ok := s.peers.beginLeaving()
		if !ok {
			return
		}
		for _, id := range peers {
			s.transport.transmit(proto.Disconnect{From: s.own, To: id}.Append(buf))
		}
		pkt := proto.Close{ID: s.own}.Append(buf)
		for i := range closes {
			if i > 0 {
				time.Sleep(closePause)
			}
			s.transport.transmit(pkt)
		}
	})
}

// beginLeaving returns the peers to disconnect, after which nothing else is sent, and
// false when the relay does not know this endpoint or the session has ended.
func (t *peerTable) beginLeaving() ([]proto.AllocationID, bool) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || !s.bind.bound.Load() && !s.bind.active {
		return nil, false
	}
	s.parting = true
	return slices.Collect(maps.Keys(t.byID)), true
}
