package engine

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Longer steps of a script, which random single datagrams would seldom make.

func (s *sim) match(o op) {
	c := s.reservation(o.a)
	for i, x := range s.cards {
		a := s.model.allocs[x.id]
		if a == nil || x.match != c.match || a.at != "" {
			continue
		}
		s.datagram((i+int(o.b))%len(simAddrs), signed(x, uint16(a.nonce)+1, x.key))
		if x.ticket != "" {
			s.datagram(s.home(x, 1), connectMessage(x.id, x.ticket))
		}
	}
}

// roam moves a client to another port as UTP 2.x does: its next message gets
// ERROR 3, and it binds with the next nonce.
func (s *sim) roam(o op) {
	c := s.reservation(o.a)
	a := s.model.allocs[c.id]
	if a == nil || !a.bound {
		return
	}
	to := addr(o.b)
	s.datagram(to, pingMessage(c.id))
	s.datagram(to, signed(c, uint16(a.nonce)+1, c.key))
	s.datagram(to, pingMessage(c.id))
}

func (s *sim) keepAlive(seconds int) {
	for range seconds {
		s.advance(time.Second)
		for _, c := range s.cards {
			if a := s.model.allocs[c.id]; a != nil && a.at != "" {
				s.datagram(s.home(c, 1), pingMessage(c.id))
			}
		}
	}
}

// feedSilent lets time pass in which one player only receives: what it is sent
// keeps it for a while, but not for ever.
func (s *sim) feedSilent(o op) {
	s.match(o)
	c := s.reservation(o.a)
	host := s.model.allocs[c.match]
	if c.role != "joiner" || host == nil || host.at == "" {
		return
	}
	for range 34 {
		s.advance(time.Second)
		if s.model.allocs[c.match] != nil {
			s.datagram(s.home(host.mReservation, 1), relayMessage(host.id, c.id, 4))
		}
	}
}

func (s *sim) bindPending(o op) {
	c := s.reservation(o.a)
	from := addr(o.b)
	nonce := uint16(1)
	if a := s.model.allocs[c.id]; a != nil {
		nonce = uint16(a.nonce) + 1
	}
	i := workerOf(from)
	s.enter(i)
	s.arrive(from, signed(c, nonce, c.key), s.now)
	s.arrive(from, pingMessage(c.id), s.now)
	s.arrive(from, relayMessage(c.id, c.match, 3), s.now)
	s.leave(i)
	s.pump()
}

// straddleBatch lets control decide while a worker is in the middle of a batch.
// What must not overtake that batch may leave only after its end.
func (s *sim) straddleBatch(o op) {
	busy := int(o.d) % simWorkers
	s.enter(busy)
	s.inBatch(busy, op{[...]actionCase{opRelay, opPing, opRelay}[o.d/2%3], o.b, 1, o.c, o.a})
	before := len(s.model.out)
	kinds := [...]actionCase{opBind, opDisconnect, opBind, opClose, opConnect}
	for i := range 3 {
		s.other(busy, op{kinds[(int(o.a)+i)%len(kinds)], o.a + uint16(i), o.b + 1, o.c, o.d / 2})
	}
	s.checkHeld(before)
	s.inBatch(busy, op{opRelay, o.c, 1, o.a, 1})
	s.leave(busy)
}

func (s *sim) inBatch(worker int, o op) {
	from, pkt := s.packet(o)
	if workerOf(from) == worker {
		s.arrive(from, pkt, s.now)
	}
}

func (s *sim) other(busy int, o op) {
	from, pkt := s.packet(o)
	if i := workerOf(from); i != busy {
		s.enter(i)
		s.arrive(from, pkt, s.now)
		s.leave(i)
		s.pump()
	}
}

// checkHeld checks that nothing has left that waits for the busy worker, and
// nothing that was decided after it.
func (s *sim) checkHeld(before int) {
	for _, want := range s.model.out[before:] {
		if !want.grace {
			continue
		}
		s.hits["grace: a reply waits for a busy worker"]++
		for _, sent := range s.sent {
			if sent.to == want.to && sent.bytes == want.bytes && !s.afterGracePeriod(want) {
				s.fail("%x to %s overtook a busy worker", head([]byte(want.bytes)), want.to)
			}
		}
	}
}

func (s *sim) afterGracePeriod(x mSend) bool {
	for _, o := range s.model.out {
		if !o.grace && o.to == x.to && o.bytes == x.bytes {
			return true
		}
	}
	return false
}

// lateStamp lets a worker whose clock is behind receive from an allocation after
// control has found it overdue: it must not end.
func (s *sim) lateStamp(o op) {
	c := s.reservation(o.a)
	a := s.model.allocs[c.id]
	if a == nil || a.at == "" {
		return
	}
	if len(a.links) > 0 || a.role == "joiner" {
		s.advance(9900 * time.Millisecond)
	} else {
		s.advance(59_900 * time.Millisecond)
	}
	if s.model.allocs[c.id] != a || a.at == "" {
		return
	}
	from := s.home(c, 1)
	i, at, overdue := workerOf(from), s.now, false
	s.enter(i)
	for range 8 { // Control's clock goes on; the batch began at at.
		s.now += 250
		s.control.runOnce(s.now - s.now%250)
		overdue = overdue || s.expiryPending(c)
	}
	s.arrive(from, pingMessage(c.id), at)
	s.leave(i)
	s.catchUp()
	if overdue && s.model.allocs[c.id] != nil {
		s.hits["grace: a due allocation received something in time"]++
	}
}

func (s *sim) expiryPending(c *mReservation) bool {
	e, ok := s.shared.table.ByID(proto.AllocationID(c.id))
	return ok && s.shared.table.Account(e.Handle).ExpiryPending
}

func (s *sim) catchUp() {
	until := s.now
	s.model.slack = 8
	defer func() { s.model.slack = 0 }()
	for s.model.now < until {
		s.model.now = min(until, (s.model.now/250+1)*250)
		if s.model.now%250 == 0 {
			s.model.tick()
		}
	}
	s.settle()
}

func (s *sim) mixedBatch(o op) {
	kinds := [...]actionCase{opBind, opConnect, opRelay, opPing, opDisconnect, opRelay, opBind}
	for i := range s.workers {
		s.enter(i)
	}
	for i := range 6 {
		n := uint16(i)
		from, pkt := s.packet(op{kinds[(int(o.a)+i)%len(kinds)], o.b + n, o.c + n, o.d, o.a + n})
		s.arrive(from, pkt, s.now)
	}
	for i := range s.workers {
		s.leave(i)
	}
	s.pump()
}

// returnAll does what clients do after a restart: one binds again, with a
// nonce that is sometimes that of before, and the host relays.
func (s *sim) returnAll(o op) {
	if !s.model.recovering() {
		return
	}
	c := s.cards[int(o.a)%len(s.cards)]
	for i := range s.cards { // mostly one that was bound and has not come back
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

// restartMatch ends the run while a match is linked, and its players bind again, with a state file.
func (s *sim) restartMatch(o op) {
	s.match(o)
	match := s.reservation(o.a).match
	for _, file := range []bool{false, o.b%3 != 0} {
		old := s.model.allocs
		s.restart(file)
		for i, x := range s.cards {
			if a := old[x.id]; a != nil && x.match == match && a.at != "" {
				from := slices.IndexFunc(simAddrs, func(ap netip.AddrPort) bool { return mAddr(ap.String()) == a.at })
				s.datagram(from, signed(x, uint16(a.nonce+(i+int(o.c/4))%2), x.key))
			}
		}
		for i, x := range s.cards {
			switch host, a := s.model.allocs[match], s.model.allocs[x.id]; {
			case x.match != match || x.ticket == "" || host == nil || a == nil || a.at == "" || host.at == "":
			case !s.model.complete:
				s.datagram(s.home(x, 1), connectMessage(x.id, x.ticket))
			case (i+int(o.d))%2 == 0:
				s.datagram(s.home(x, 1), relayMessage(x.id, match, 3))
			default:
				s.datagram(s.home(host.mReservation, 1), relayMessage(match, x.id, 3))
			}
		}
	}
}

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

func (s *sim) rejoin(o op) {
	s.match(o)
	host := s.model.allocs[s.reservation(o.a).match]
	if host == nil || host.at == "" {
		return
	}
	players := [...]string{"joiner1", "joiner1", "joiner1", "joiner2", "unbound"}
	for i := range uint16(host.max + 2) {
		if len(host.links) >= host.max {
			s.advance([...]time.Duration{0, 600, 1750, 2000, 2250, 2500, 3000}[o.c%7] * time.Millisecond)
			for n, x := range s.cards {
				switch a := s.model.allocs[x.id]; {
				case a == nil || !a.links[host.id] || a.at == "":
				case (o.d+uint16(n))%5 == 0:
					s.datagram(s.home(x, 1), pingMessage(x.id))
				case (o.d+uint16(n))%5 == 1:
					s.model.closed[a.at] = true
					defer delete(s.model.closed, a.at)
				}
			}
		}
		if s.model.allocs[host.id] != host || len(s.cards) == 40 {
			return
		}
		s.reserve(alloc.RoleJoiner, host.mReservation, host.tenant, players[(o.b+i*(o.b%3))%uint16(len(players))], 0)
		x, free := s.cards[len(s.cards)-1], 0
		for s.model.byAddr[mAddr(simAddrs[free].String())] != nil {
			if free++; free == len(simAddrs) {
				return
			}
		}
		s.datagram(free, signed(x, 1, x.key))
		for range 1 + (o.b%4)*(o.b%4)/2 {
			s.datagram(free, connectMessage(x.id, x.ticket))
		}
	}
}

func (s *sim) linkOften(o op) {
	for _, c := range s.cards {
		a, host := s.model.allocs[c.id], s.model.allocs[c.match]
		if c.role != "joiner" || a == nil || host == nil || a.at == "" || host.at == "" {
			continue
		}
		for range 5 {
			s.datagram(s.home(c, 1), connectMessage(c.id, c.ticket))
			s.datagram(s.home(c, 1), message(9, c.id, c.match))
		}
	}
}

func (s *sim) flood(o op) {
	c := s.reservation(o.a)
	for range 20 + o.b%40 {
		s.datagram(s.home(c, 1), relayMessage(c.id, s.peerOf(c, op{d: 1}), int(o.c%3)*600))
	}
}

func (s *sim) exceed(o op) {
	if n := len(s.cards); n < 36 {
		s.reserve(alloc.RoleHost, nil, "p", "unbound", 3)
		for range 3 {
			if len(s.cards) > n {
				s.reserve(alloc.RoleJoiner, s.cards[n], "p", "joiner1", 0)
			}
		}
		s.match(op{a: 1, b: o.b})
	}
	for i, c := range s.cards {
		a := s.model.allocs[c.id]
		if c.role != "joiner" || a == nil || !a.links[c.match] || a.at == "" {
			continue
		}
		host := s.model.allocs[c.match]
		if o.a>>(i%16)&1 == 0 && a.validated {
			s.datagram((int(o.b)+i)%len(simAddrs), signed(c, uint16(a.nonce)+1, c.key))
		}
		for range 1 + o.c%6 {
			s.datagram(s.home(host.mReservation, 1), relayMessage(c.match, c.id, 700))
		}
		if left := a.allowance - 38; a.limited && left >= 0 && left <= 1400 && o.d%2 == 0 {
			s.datagram(s.home(host.mReservation, 1), relayMessage(c.match, c.id, left))
			s.datagram(s.home(host.mReservation, 1), message(9, c.match, c.id))
		}
	}
}

// bindOften repeats the last BIND, as a client does that receives nothing.
func (s *sim) bindOften(o op) {
	c := s.reservation(o.a)
	if a := s.model.allocs[c.id]; a != nil && a.bound {
		for range 1 + (o.b%3)*(o.b%3)*7 {
			s.datagram(s.home(c, 1), signed(c, uint16(a.nonce)+o.c%8/7, c.key))
		}
	}
}

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
