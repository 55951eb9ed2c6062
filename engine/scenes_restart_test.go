package engine

// Scenes of scripts about restarts and forged messages.

// returnAll is what clients do after a restart: somebody binds again, with a
// nonce that is sometimes that of before, and the host relays.
func (s *sim) returnAll(o op) {
	if !s.model.recovering() {
		return
	}
	c := s.cards[int(o.a)%len(s.cards)]
	for i := range s.cards { // mostly one who was bound and has not come back
		x := s.cards[(int(o.a)+i)%len(s.cards)]
		if s.model.before[x.id].bound && o.b%4 != 0 {
			c = x
			break
		}
	}
	nonce := 0
	from := addr(o.b)
	if r, ok := s.model.before[c.id]; ok {
		nonce = r.nonce + int(o.c%3) - int(o.c%9)/8
		for i, ap := range simAddrs {
			if mAddr(ap.String()) == r.at && o.d%4 != 0 {
				from = i
			}
		}
	}
	s.datagram(from, signed(c, uint16(max(nonce, 0)), c.key))
	a := s.model.allocs[c.id]
	if a == nil || a.at == "" {
		return
	}
	switch {
	case c.role == "host":
		for _, x := range s.cards {
			if x.match == c.id && x != c && o.d%5 != 0 {
				s.datagram(s.home(c, 1), relayMessage(c.id, x.id, 3))
			}
		}
	case o.d%3 == 0:
		s.datagram(s.home(c, 1), connectMessage(c.id, c.ticket))
	default:
		s.datagram(s.home(c, 1), relayMessage(c.id, c.match, 3))
	}
}

// scan is somebody who sends in the name of an allocation from elsewhere, and
// then hits its port; its owner goes on, or not.
func (s *sim) scan(o op) {
	c := s.reservation(o.a)
	for _, x := range s.cards {
		if a := s.model.allocs[x.id]; a != nil && len(a.links) > 0 && o.d%4 != 0 {
			c = x
		}
	}
	a := s.model.allocs[c.id]
	if a == nil || a.at == "" {
		return
	}
	elsewhere := 0
	for mAddr(simAddrs[elsewhere].String()) == a.at {
		elsewhere++
	}
	for range 101 {
		s.datagram(elsewhere, message(11, c.id))
	}
	peer := s.peerOf(c, op{d: 1})
	home := s.home(c, 1)
	if o.b%2 == 0 {
		s.datagram(home, message(11, c.id))
	} else {
		s.datagram(home, message(9, c.id, peer))
	}
	for range 8 {
		s.advance(250 * 1e6)
		if o.c%2 == 0 {
			s.datagram(home, relayMessage(c.id, peer, 1))
		}
	}
}

// linkOften opens and closes a link more often than a host may get new ones.
func (s *sim) linkOften(o op) {
	for _, c := range s.cards {
		a, host := s.model.allocs[c.id], s.model.allocs[c.match]
		if c.role != "joiner" || a == nil || host == nil || a.at == "" || host.at == "" {
			continue
		}
		for range 22 {
			s.datagram(s.home(c, 1), connectMessage(c.id, c.ticket))
			s.datagram(s.home(c, 1), message(9, c.id, c.match))
		}
		return
	}
}

// flood relays more than is good.
func (s *sim) flood(o op) {
	c := s.reservation(o.a)
	for range 20 + o.b%40 {
		s.datagram(s.home(c, 1), relayMessage(c.id, s.peerOf(c, op{d: 1}), int(o.c%3)*600))
	}
}

// bindOften repeats the last BIND, as a client does that hears nothing.
func (s *sim) bindOften(o op) {
	c := s.reservation(o.a)
	if a := s.model.allocs[c.id]; a != nil && a.bound {
		for range 1 + (o.b%3)*(o.b%3)*7 {
			s.datagram(s.home(c, 1), signed(c, uint16(a.nonce)+o.c%8/7, c.key))
		}
	}
}

// probe is a client that looks for the nearest region, and who only looks like
// one.
func (s *sim) probe(o op) {
	title := "QoS request"[:o.b%12]
	pkt := append([]byte{0x59, 0, byte(len(title) + 1)}, title...)
	pkt = append(pkt, byte(o.a), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	switch o.c % 8 {
	case 0:
		pkt[o.d%3] ^= 0x10
	case 1:
		pkt = pkt[:4+int(o.d)%(len(pkt)-4)]
	case 2:
		for range 40 {
			s.datagram(addr(o.d), pkt)
		}
	}
	s.datagram(addr(o.d), pkt)
}
