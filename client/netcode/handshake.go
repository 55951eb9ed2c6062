package netcode

// enter moves a connection to a state and publishes that.
func (d *Driver) enter(s *session, st State) {
	s.state = st
	if st != StateDisconnected {
		d.publish(Event{Conn: Conn{d, s.conn}, NetworkID: s.id, State: st})
	}
}

// begin starts the handshake. Each side says its version without waiting for
// the other's.
func (d *Driver) begin(s *session) {
	s.since = d.elapsed
	s.queue.add(indexVersion, d.version.append(nil), nil)
	d.enter(s, StateHandshake)
}

// system executes an RPC of this package where it stands in the stream.
func (d *Driver) system(s *session, index uint16, body []byte) {
	switch {
	case index == indexVersion && len(body) == versionLen && !s.versionReceived:
		d.compare(s, parseVersion(body))
	case index == indexClose:
		d.closeByPeer(s, body)
	case index == indexFirstPart:
		d.takeFirstPart(s, body)
	case index == indexPart:
		d.takePart(s, body)
	case index == indexGetApproved && !d.server && s.state == StateHandshake && len(body) == 0:
		s.since = d.elapsed
		d.enter(s, StateApproval)
	case index == indexApproved && !d.server && s.handshaking():
		id, ok := parseApproved(body)
		if !ok {
			d.closeInvalid(s, "approval without a network id")
			return
		}
		s.id = id
		d.enter(s, StateConnected)
	default:
		d.closeInvalid(s, "a system RPC out of place")
	}
}

// compare judges the peer's version. The server alone goes on with it.
func (d *Driver) compare(s *session, peer version) {
	if differs := d.version.mismatch(peer, d.cfg.RelaxedVersion); differs != nil {
		d.log.Warn("the peer has another version", "detail", differs)
		d.closeBecause(s, ReasonBadProtocolVersion, differs.Error(), differs)
		return
	}
	s.versionReceived = true
	if !d.server {
		return
	}
	if !d.cfg.RequireApproval {
		d.welcome(s)
		return
	}
	s.queue.add(indexGetApproved, nil, nil)
	d.enter(s, StateApproval)
	if s.approved {
		d.welcome(s)
	}
}

// welcome connects a client.
func (d *Driver) welcome(s *session) {
	d.ep.Admit(s.conn)
	s.id = d.ids.take()
	s.queue.add(indexApproved, appendApproved(nil, s.id, d.cfg.HandshakeApprovalTimeout), nil)
	d.enter(s, StateConnected)
}

// NetworkID names a connected client for as long as it stays: 1, 2, 3 and so
// on, and the one that was freed longest ago first. 0 is none. It is no
// identity: a player that returns may have another one.
type NetworkID int32

// networkIDs hands them out.
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
