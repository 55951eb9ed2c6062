package netcode

import (
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utp"
)

type closing struct {
	requested bool // the game wants it to end
	reason    Reason
	text      string

	lingering bool // ended, but the notice may still be on its way
	until     time.Duration
	at        address.Addr // where the peer was then
}

// lingerTime is how long an ended connection waits for its notice to arrive.
const lingerTime = 250 * time.Millisecond

func (s *session) end(ev Event) {
	s.enter(StateDisconnected)
	ev.Conn, ev.NetworkID, ev.State, ev.UserData = Conn{s.d, s.conn}, s.id, StateDisconnected, s.userData
	s.d.publish(ev)
	if s.d.server && s.id != 0 {
		s.d.ids.free(s.id)
	}
	s.inGame, s.userData, s.rpcs.partial = false, nil, partialRPC{}
	s.leaveGame()
}

func (s *session) close(r Reason, text string, cause error) {
	s.end(Event{Reason: r, PeerReason: r, Cause: cause})
	s.closing.at, _ = s.d.ep.Remote(s.conn)
	if s.d.ep.State(s.conn) != utp.StateEstablished {
		s.closeTransport()
		return
	}
	s.rpcs.queue.add(indexClose, appendClose(nil, r, text), nil)
	s.closing.lingering, s.closing.until = true, s.d.clock.elapsed+lingerTime
}

// closeSilent sends another notice: a silent peer acknowledges nothing, so that the reliable one
// may have no room.
func (s *session) closeSilent() {
	s.close(ReasonTimeout, "", nil)
	s.d.scratch = appendClose(append(s.d.scratch[:0], kindClose), ReasonTimeout, "")
	_ = s.d.ep.Send(s.conn, utp.EntitiesUnreliable, s.d.scratch) // Without room, the peer gets no reason.
}

func (s *session) linger() {
	st, ok := s.d.ep.ConnStats(s.conn)
	if ok && s.d.clock.elapsed < s.closing.until && st.InFlight+s.rpcs.queue.len() > 0 {
		return
	}
	s.closeTransport()
}

func (s *session) closeTransport() {
	if s.d.ep.State(s.conn) != utp.StateNone {
		s.d.ep.Disconnect(s.conn)
		s.d.releases.add(s.closing.at)
	}
	s.forgetTransport()
}

func (s *session) forgetTransport() {
	s.closing.lingering = false
	s.rpcs.queue.reset()
}

func (s *session) transportEnded(ev utp.Event) {
	end := Event{Reason: Reason(ev.Reason), PeerReason: Reason(ev.Reason), Cause: ev.Cause}
	if ev.Refused {
		// To answer more than that would be an amplifier for requests with forged sources.
		end.PeerReason = ReasonServerFull
	}
	s.end(end)
	s.forgetTransport()
}

func (s *session) closeByPeer(body []byte) {
	reason, text, ok := parseClose(body)
	if !ok {
		s.closeInvalid("a close notice has a wrong length")
		return
	}
	s.end(Event{Reason: ReasonClosedByRemote, PeerReason: reason, PeerText: text})
	s.d.ep.Disconnect(s.conn)
	s.forgetTransport()
}

func (s *session) closeInvalid(text string) {
	s.d.log.Warn("invalid RPC", "networkID", s.id, "detail", text)
	s.close(ReasonInvalidRPC, text, nil)
	s.forgetReceived() // Of a peer that breaks the rules nothing of that tick counts.
}

// releaseFlushes is in how many flushes the transport repeats its disconnect.
// Only then may the link be disconnected at a relay.
const releaseFlushes = 3

type releases struct{ list []pendingRelease }

type pendingRelease struct {
	at   address.Addr
	left int // flushes
}

func (r *releases) add(at address.Addr) {
	for i := range r.list {
		if r.list[i].at == at {
			r.list[i].left = releaseFlushes
			return
		}
	}
	r.list = append(r.list, pendingRelease{at, releaseFlushes})
}

func (r *releases) flush(release func(address.Addr)) {
	kept := r.list[:0]
	for _, p := range r.list {
		if p.left--; p.left > 0 {
			kept = append(kept, p)
		} else {
			release(p.at)
		}
	}
	r.list = kept
}
