package netcode

// enter moves a connection to a state and publishes that.
func (d *Driver) enter(s *session, st State) {
	was := s.handshaking()
	s.state = st
	if now := s.handshaking(); now != was {
		if now {
			d.handshaking++
		} else {
			d.handshaking--
		}
	}
	if st != StateDisconnected {
		d.publish(ConnectionEvent{Conn: Conn{d, s.conn}, NetworkID: s.id, State: st})
	}
}

// begin starts the handshake. Each side says its version without waiting for
// the other's.
func (d *Driver) begin(s *session) {
	s.since = d.elapsed
	appendSystem(&s.queue, indexVersion, d.version.append(nil))
	d.enter(s, StateHandshake)
}

// system executes an RPC of this package where it stands in the stream.
func (d *Driver) system(s *session, index uint16, body []byte) {
	switch {
	case index == indexVersion && len(body) == versionLen && !s.heard:
		d.compare(s, parseVersion(body))
	case index == indexClose:
		d.closedBy(s, body)
	case index == indexGetApproved && !d.server && s.state == StateHandshake && len(body) == 0:
		d.enter(s, StateApproval)
	case index == indexApproved && !d.server && s.handshaking():
		id, ok := parseApproved(body)
		if !ok {
			d.invalid(s, "approval without a network id")
			return
		}
		s.id = id
		d.enter(s, StateConnected)
	default:
		d.invalid(s, "a system RPC out of place")
	}
}

// compare judges the peer's version. The server alone goes on with it.
func (d *Driver) compare(s *session, peer ProtocolVersion) {
	if text := d.version.mismatch(peer, d.cfg.RelaxedVersion); text != "" {
		d.log.Warn("the peer has another version", "detail", text)
		d.shut(s, ReasonBadProtocolVersion, text)
		return
	}
	s.heard = true
	if !d.server {
		return
	}
	if !d.cfg.RequireApproval {
		d.welcome(s)
		return
	}
	appendSystem(&s.queue, indexGetApproved, nil)
	d.enter(s, StateApproval)
	if s.approved {
		d.welcome(s)
	}
}

// welcome connects a client.
func (d *Driver) welcome(s *session) {
	s.id = d.ids.take()
	appendSystem(&s.queue, indexApproved, appendApproved(nil, s.id, d.cfg.HandshakeApprovalTimeout))
	d.enter(s, StateConnected)
}
