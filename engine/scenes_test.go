package engine

// Longer steps of a script, which random single datagrams would seldom make.

import (
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// match brings a card, and its host, to where they play.
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

// roam moves a client to another port as UTP 2.x does: its next message earns
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

// keepAlive lets seconds pass in which everybody who is bound pings.
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

// bindPending sends from an endpoint whose BIND control has not decided yet.
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

// inBatch hands a datagram to a busy worker, if that is where it would come in.
func (s *sim) inBatch(worker int, o op) {
	from, pkt := s.packet(o)
	if workerOf(from) == worker {
		s.arrive(from, pkt, s.now)
	}
}

// other plays a datagram of a worker that is not busy, and lets control work.
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

// afterGracePeriod reports whether the same datagram was also due without waiting.
func (s *sim) afterGracePeriod(x mSend) bool {
	for _, o := range s.model.out {
		if !o.grace && o.to == x.to && o.bytes == x.bytes {
			return true
		}
	}
	return false
}

// lateStamp lets a worker that is behind the clock hear of an allocation after
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
		s.hits["grace: an overdue allocation was heard in time"]++
	}
}

// expiryPending reports whether control waits for grace to end an allocation.
func (s *sim) expiryPending(c *mReservation) bool {
	e, ok := s.shared.table.ByID(proto.AllocationID(c.id))
	return ok && s.shared.table.Account(e.Handle).ExpiryPending
}

// catchUp brings the model's clock to the engine's.
func (s *sim) catchUp() {
	until := s.now
	for s.model.now < until {
		s.model.now = min(until, (s.model.now/250+1)*250)
		if s.model.now%250 == 0 {
			s.model.tick()
		}
	}
	s.settle()
}

// mixedBatch plays several datagrams in one batch of each worker, and lets
// control decide about all of them at once.
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
