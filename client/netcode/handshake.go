package netcode

import "time"

type handshake struct {
	since           time.Duration // when it began, of a client also the approval
	connectingDue   bool          // StateConnecting was not published yet
	dials           int           // times that the attempt had to find its peer again
	versionReceived bool          // the peer's version came, and fits
	approved        bool
}

func (s *session) enter(st State) {
	s.state = st
	if st != StateDisconnected {
		s.d.publish(Event{Conn: Conn{s.d, s.conn}, NetworkID: s.id, State: st})
	}
}

// begin says this side's version without waiting for the other's.
func (s *session) begin() {
	s.handshake.since = s.d.clock.elapsed
	s.rpcs.queue.add(indexVersion, s.d.version.append(nil), nil)
	s.enter(StateHandshake)
}

func (s *session) system(index uint16, body []byte) {
	switch {
	case index == indexVersion && len(body) == versionLen && !s.handshake.versionReceived:
		s.compare(parseVersion(body))
	case index == indexClose:
		s.closeByPeer(body)
	case index == indexFirstPart:
		s.rpcs.takeFirstPart(body)
	case index == indexPart:
		s.rpcs.takePart(body)
	case index == indexGetApproved && !s.d.server && s.state == StateHandshake && len(body) == 0:
		s.handshake.since = s.d.clock.elapsed
		s.enter(StateApproval)
	case index == indexApproved && !s.d.server && s.handshaking():
		id, ok := parseApproved(body)
		if !ok {
			s.closeInvalid("approval without a network id")
			return
		}
		s.id = id
		s.enter(StateConnected)
	default:
		s.closeInvalid("a system RPC out of place")
	}
}

// compare judges the peer's version. The server alone goes on with it.
func (s *session) compare(peer version) {
	if differs := s.d.version.mismatch(peer, s.d.cfg.RelaxedVersion); differs != nil {
		s.d.log.Warn("the peer has another version", "detail", differs)
		s.close(ReasonBadProtocolVersion, differs.Error(), differs)
		return
	}
	s.handshake.versionReceived = true
	if !s.d.server {
		return
	}
	if !s.d.cfg.RequireApproval {
		s.welcome()
		return
	}
	s.rpcs.queue.add(indexGetApproved, nil, nil)
	s.enter(StateApproval)
	if s.handshake.approved {
		s.welcome()
	}
}

func (s *session) welcome() {
	s.d.ep.Admit(s.conn)
	s.id = s.d.ids.take()
	s.rpcs.queue.add(indexApproved, appendApproved(nil, s.id, s.d.cfg.Timeouts.HandshakeApproval), nil)
	s.enter(StateConnected)
}

// NetworkID names a connected client for as long as it stays, from 1 on; 0 is
// none. A player that returns may have another one.
type NetworkID int32

type networkIDs struct {
	last  NetworkID
	freed []NetworkID // a queue: next at head
	head  int
	aged  int // the end of those that may be handed out
}

func (q *networkIDs) take() NetworkID {
	if q.head >= q.aged {
		q.last++
		return q.last
	}
	id := q.freed[q.head]
	q.head++
	if q.head*2 > len(q.freed) {
		q.freed = q.freed[:copy(q.freed, q.freed[q.head:])]
		q.aged -= q.head
		q.head = 0
	}
	return id
}

// age lets the ids that were freed so far be handed out again. Each Update begins with it:
// an id does not end and begin among the events of one.
func (q *networkIDs) age() { q.aged = len(q.freed) }

func (q *networkIDs) free(id NetworkID) { q.freed = append(q.freed, id) }
