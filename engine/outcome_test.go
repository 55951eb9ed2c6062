package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// TestDropReasons raises each outcome by one datagram and checks that exactly
// that outcome is counted, and that drops answer nothing.
func TestDropReasons(t *testing.T) {
	ident := newIdentity(t)
	covered := map[Outcome]bool{}
	for _, c := range outcomeCases {
		t.Run(c.want.String()+"/"+c.name, func(t *testing.T) {
			s := newMatch(t, ident)
			from, pkt := c.make(s)
			before := s.totals()
			s.sent = nil
			s.enter(workerOf(max(from, 0)))
			w := s.workers[workerOf(max(from, 0))]
			ep := endpointAt(from)
			if c.noSource {
				ep = endpoint.Endpoint{}
			}
			if c.alive {
				w.count(w.noteAlive(s.now, ep), 0)
			} else {
				w.count(w.handleDatagram(s.now, ep, pkt, c.truncated), len(pkt))
			}
			s.leave(workerOf(max(from, 0)))
			s.control.runOnce(s.now)
			s.control.runOnce(s.now)
			after := s.totals()
			for o := range NumOutcomes {
				want := before[o]
				if o == c.want || o == c.also && c.also != 0 {
					want++
				}
				if after[o] != want {
					t.Errorf("outcome %v counted %d times, want %d", o, after[o]-before[o], want-before[o])
				}
			}
			if c.want.Dropped() && c.also == 0 && len(s.sent) != 0 {
				t.Errorf("dropped, yet sent\n%s", show(s.sent))
			}
			if !c.want.Dropped() && c.want != OutClosed && c.want != OutHeld && c.want != OutRelinked && c.want != OutRecord && len(s.sent) == 0 {
				t.Error("nothing was sent")
			}
		})
		covered[c.want] = true
	}
	covered[DropPanic] = true // TestFault
	for o := range NumOutcomes {
		if !covered[o] {
			t.Errorf("no case raises %v", o)
		}
	}
}

func (s *sim) totals() (sum [NumOutcomes]uint64) {
	for o := range sum {
		sum[o] = s.control.counts.outcomes[o]
		for _, w := range s.workers {
			sum[o] += w.counts.outcomes[o]
		}
	}
	return sum
}

// The addresses of the members of a match, and of an unknown sender.
const (
	atHost = iota
	atJoiner1
	atJoiner2
	atStranger
	atOther
)

// newMatch is a relay with a host for two that is linked with joiner1, and with joiner2,
// which is bound and not linked.
func newMatch(t testing.TB, ident *identity) *sim {
	t.Helper()
	s := ident.newSim(true)
	s.reserve(alloc.RoleHost, nil, "p", "host", 2)
	for _, player := range []string{"joiner1", "joiner2", "unbound"} {
		s.reserve(alloc.RoleJoiner, s.cards[0], "p", player, 0)
	}
	for i := range 3 {
		s.datagram(i, signed(s.cards[i], 5, s.cards[i].key))
	}
	s.datagram(atJoiner1, connectMessage(s.joiner1().id, s.joiner1().ticket))
	s.settle()
	s.compare()
	if s.err != nil || len(s.model.allocs[s.hostData().id].links) != 1 {
		t.Fatal("set-up:", s.err)
	}
	return s
}

// atIPv6 is where large messages do not go, see mMaxMessage.
const atIPv6 = 8

func (s *sim) joiner1AtIPv6() {
	s.datagram(atIPv6, signed(s.joiner1(), 6, s.joiner1().key))
	s.datagram(atIPv6, pingMessage(s.joiner1().id)) // or little may go to it
}

// atLowPort is the address of a service, not of a game.
const atLowPort = -1

// atPrivate is an address of a private network.
const atPrivate = -2

// endpointAt returns an endpoint by its number.
func endpointAt(at int) endpoint.Endpoint {
	if at == atLowPort {
		return endpoint.UDP(netip.MustParseAddrPort("192.0.2.9:53"), 0, 0)
	}
	if at == atPrivate {
		return endpoint.UDP(netip.MustParseAddrPort("172.17.0.1:40000"), 0, 0)
	}
	return endpoint.UDP(simAddrs[at], 0, 0)
}

// spoof sends joiner1's id from many ports.
func (s *sim) spoof() {
	for range forgedRate.Burst + 1 {
		s.datagram(atStranger, message(11, s.joiner1().id))
	}
}

// returnOne restarts the relay, and some members of the match bind again.
func (s *sim) returnOne(members ...int) {
	s.model.restart(false)
	s.boot(s.ident.sealer(s.model.boot), true, statefile.PreviousRun{})
	for _, i := range members {
		s.datagram(i, signed(s.cards[i], 6, s.cards[i].key))
	}
	s.settle()
}

func (s *sim) hostData() *mReservation      { return s.cards[0] }
func (s *sim) joiner1() *mReservation       { return s.cards[1] }
func (s *sim) joiner2() *mReservation       { return s.cards[2] }
func (s *sim) unboundJoiner() *mReservation { return s.cards[3] } // reserved, never bound

type outcomeCase struct {
	want      Outcome
	name      string
	make      func(s *sim) (from int, pkt []byte)
	truncated bool
	noSource  bool
	alive     bool    // a sign of life of a session
	also      Outcome // of another datagram, which this one needs under way
}

func probeOf(s *sim) []byte {
	pkt := append([]byte(probeMagic), make([]byte, probeLen-len(probeMagic))...)
	s.shared.probe.block.Encrypt(pkt[probeReplyLen:], pkt[len(probeMagic):probeReplyLen])
	return pkt
}

var outcomeCases = []outcomeCase{
	{want: OutRelayed, name: "to host", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			relayMessage(s.joiner1().id, s.hostData().id, 10)
	}},
	{want: OutRelayed, name: "to joiner, empty", make: func(s *sim) (int, []byte) {
		return atHost,
			relayMessage(s.hostData().id, s.joiner1().id, 0)
	}},
	{want: OutRelayed, name: "largest", make: func(s *sim) (int, []byte) {
		return atHost,
			relayMessage(s.hostData().id, s.joiner1().id, 1400)
	}},
	{want: OutPong, make: func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
	{want: OutAlive, alive: true, make: func(s *sim) (int, []byte) { return atJoiner1, nil }},
	{want: OutBound, make: func(s *sim) (int, []byte) { return atStranger, signed(s.unboundJoiner(), 0, s.unboundJoiner().key) }},
	{want: OutAccepted, name: "new", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			connectMessage(s.joiner2().id, s.joiner2().ticket)
	}},
	{want: OutAccepted, name: "repeated", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			connectMessage(s.joiner1().id, s.joiner1().ticket)
	}},
	{want: OutAccepted, name: "host's own data", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			connectMessage(s.joiner2().id, s.hostData().data)
	}},
	{want: OutRejected, make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket))
		s.datagram(atStranger, signed(s.unboundJoiner(), 0, s.unboundJoiner().key))
		return atStranger, connectMessage(s.unboundJoiner().id, s.unboundJoiner().ticket)
	}},
	{want: OutDisconnected, name: "linked", make: func(s *sim) (int, []byte) { return atHost, message(9, s.hostData().id, s.joiner1().id) }},
	{want: OutDisconnected, name: "same match", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			message(9, s.joiner2().id, s.joiner1().id)
	}},
	{want: OutClosed, make: func(s *sim) (int, []byte) { return atJoiner1, message(11, s.joiner1().id) }},
	{want: OutProbe, make: func(s *sim) (int, []byte) { return atStranger, probeOf(s) }},

	{want: OutErrorVersion, make: func(s *sim) (int, []byte) {
		return atStranger, append([]byte{0xDA, 0x72, 1}, pingMessage(s.joiner1().id)[3:]...)
	}},
	{want: OutErrorUnauthorized, make: func(s *sim) (int, []byte) { return atJoiner2, connectMessage(s.joiner2().id, s.joiner1().data) }},
	{want: OutErrorMismatch, name: "unknown id", make: func(*sim) (int, []byte) { return atStranger, pingMessage(mID{9}) }},
	{want: OutErrorMismatch, name: "spoofed id", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: OutErrorNotFound, name: "bind", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner1, message(11, s.joiner1().id))
		return atJoiner1, signed(s.joiner1(), 0, s.joiner1().key)
	}},
	{want: OutErrorNotFound, name: "connect", make: func(s *sim) (int, []byte) {
		s.datagram(atHost, message(11, s.hostData().id))
		return atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket)
	}},
	{want: OutErrorNotConnected, name: "relay", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			relayMessage(s.joiner2().id, s.hostData().id, 1)
	}},
	{want: OutErrorNotConnected, name: "disconnect", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			message(9, s.joiner2().id, mID{7})
	}},
	{want: OutErrorSelf, make: func(s *sim) (int, []byte) { return atHost, connectMessage(s.hostData().id, s.hostData().data) }},

	{want: DropTruncated, truncated: true, make: func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
	{want: DropSource, noSource: true, make: func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
	{want: DropShort, name: "empty", make: func(*sim) (int, []byte) { return atJoiner1, nil }},
	{want: DropShort, name: "three bytes", make: func(*sim) (int, []byte) { return atJoiner1, []byte{0xDA, 0x72, 0} }},
	{want: DropSignature, make: func(s *sim) (int, []byte) {
		return atJoiner1, append([]byte{0x72, 0xDA}, pingMessage(s.joiner1().id)[2:]...)
	}},
	{want: DropSignature, name: "probe of another process", make: func(s *sim) (int, []byte) {
		pkt := probeOf(s)
		pkt[len(pkt)-1] ^= 1
		return atStranger, pkt
	}},
	{want: DropVersion, name: "short", make: func(s *sim) (int, []byte) {
		return atJoiner1, append([]byte{0xDA, 0x72, 1}, message(11, s.joiner1().id)[3:]...)
	}},
	{want: DropVersion, name: "server type", make: func(*sim) (int, []byte) {
		return atJoiner1,
			append([]byte{0xDA, 0x72, 1, 12}, make([]byte, 40)...)
	}},
	{want: DropServerType, name: "error", make: func(s *sim) (int, []byte) { return atJoiner1, []byte(mError(s.joiner1().id, 3)) }},
	{want: DropServerType, name: "bind received", make: func(*sim) (int, []byte) { return atJoiner1, message(1) }},
	{want: DropUnknownType, make: func(s *sim) (int, []byte) { return atJoiner1, message(4, s.joiner1().id) }},
	{want: DropSize, name: "ping", make: func(s *sim) (int, []byte) { return atJoiner1, append(pingMessage(s.joiner1().id), 0) }},
	{want: DropSize, name: "relay", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			relayMessage(s.joiner1().id, s.hostData().id, 5)[:42]
	}},
	{want: DropSize, name: "connect", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			connectMessage(s.joiner1().id, s.joiner1().ticket[:254])
	}},
	{want: DropSize, name: "bind", make: func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 6, s.joiner1().key)[:294] }},
	{want: DropSize, name: "disconnect", make: func(s *sim) (int, []byte) { return atJoiner1, message(9, s.joiner1().id) }},
	{want: DropSize, name: "close", make: func(s *sim) (int, []byte) { return atJoiner1, message(11, s.joiner1().id)[:19] }},
	{want: DropOversize, make: func(s *sim) (int, []byte) { return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1401) }},
	{want: DropAcceptMode, make: func(s *sim) (int, []byte) {
		pkt := signed(s.joiner1(), 6, s.joiner1().key)
		pkt[4] = 1
		return atJoiner1, pkt
	}},
	{want: DropSeal, name: "bind", make: func(s *sim) (int, []byte) {
		pkt := signed(s.joiner1(), 6, s.joiner1().key)
		pkt[100] ^= 1
		return atJoiner1, pkt
	}},
	{want: DropSeal, name: "connect", make: func(s *sim) (int, []byte) {
		pkt := connectMessage(s.joiner1().id, s.joiner1().ticket)
		pkt[100] ^= 1
		return atJoiner1, pkt
	}},
	{want: DropTicket, make: func(s *sim) (int, []byte) {
		card := *s.joiner1()
		card.data = card.ticket
		return atJoiner1, signed(&card, 6, card.key)
	}},
	{want: DropMAC, make: func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 6, s.hostData().key) }},
	{want: DropNonce, name: "lower", make: func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 4, s.joiner1().key) }},
	{want: DropNonce, name: "replayed from elsewhere", make: func(s *sim) (int, []byte) {
		return atStranger,
			signed(s.joiner1(), 5, s.joiner1().key)
	}},
	{want: DropEndpointHeld, name: "another's", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner1, pingMessage(s.joiner1().id))
		return atJoiner1, signed(s.unboundJoiner(), 0, s.unboundJoiner().key)
	}},
	{want: DropEndpointHeld, name: "ended", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, message(11, s.joiner2().id))
		s.datagram(atJoiner1, pingMessage(s.joiner1().id))
		return atJoiner1, signed(s.joiner2(), 9, s.joiner2().key)
	}},
	{want: DropBusy, make: func(s *sim) (int, []byte) {
		w := s.workers[workerOf(atJoiner1)]
		for range knownRing {
			w.inbox.rings[known].push(&command{kind: 0xFF})
		}
		s.control.inboxes = inboxes{} // control is stuck
		return atJoiner1, message(11, s.joiner1().id)
	}},
	{want: DropLoad, name: "share", make: func(s *sim) (int, []byte) {
		w := s.workers[workerOf(atJoiner1)]
		w.inbox.noteLoad(s.now)
		ep := endpoint.UDP(simAddrs[atJoiner1], 0, 0)
		w.inbox.queued[known][uint8(w.shared.budgets.prefixIndex(ep))].Store(bucketLimit)
		return atJoiner1, message(11, s.joiner1().id)
	}},
	{want: DropLoad, name: "signatures", make: func(s *sim) (int, []byte) {
		w := s.workers[workerOf(atJoiner1)]
		w.inbox.noteLoad(s.now)
		for range verifyPrefixRate.Burst {
			w.handleDatagram(s.now, endpoint.UDP(simAddrs[atJoiner1], 0, 0), nil, false)
			joiner1, _ := w.shared.table.ByID(proto.AllocationID(s.joiner1().id))
			w.shared.budgets.mayVerify(s.now, endpoint.UDP(simAddrs[atJoiner1], 0, 0), joiner1.ID, &joiner1)
		}
		return atJoiner1, signed(s.joiner1(), 6, s.joiner1().key)
	}},
	{want: DropRate, name: "relay", make: func(s *sim) (int, []byte) {
		for range mJoinerQuota[0] {
			s.datagram(atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1))
		}
		return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: DropRate, name: "bind once more", make: func(s *sim) (int, []byte) {
		for range repeatRate.Burst {
			s.datagram(atJoiner1, signed(s.joiner1(), 5, s.joiner1().key))
		}
		return atJoiner1, signed(s.joiner1(), 5, s.joiner1().key)
	}},
	{want: DropUnvalidated, make: func(s *sim) (int, []byte) {
		s.datagram(atStranger, signed(s.joiner1(), 6, s.joiner1().key))
		s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, 1400))
		s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, 1400))
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, 1400)
	}},
	{want: DropForbidden, name: "low port", make: func(s *sim) (int, []byte) { return atLowPort, pingMessage(s.joiner1().id) }},
	{want: DropForbidden, name: "version", make: func(s *sim) (int, []byte) {
		return atLowPort, append([]byte{0xDA, 0x72, 1}, pingMessage(s.joiner1().id)[3:]...)
	}},
	{want: DropPrivate, make: func(s *sim) (int, []byte) {
		s.shared.sources.private = false
		return atPrivate, signed(s.joiner1(), 6, s.joiner1().key)
	}},
	{want: OutQoS, make: func(*sim) (int, []byte) {
		return atStranger, append([]byte{0x59, 0, 1}, make([]byte, 11)...)
	}},
	{want: DropSize, name: "qos", make: func(*sim) (int, []byte) {
		return atStranger, append([]byte{0x59, 0, 2}, make([]byte, 11)...)
	}},
	{want: OutRecord, make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{})
		return atStranger, []byte{22, 1, 2, 3}
	}},
	{want: DropPlain, make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)})
		return atStranger, pingMessage(s.joiner1().id)
	}},
	{want: DropIdentity, make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)})
		return atStranger, append([]byte{23}, signed(s.joiner1(), 9, s.joiner1().key)...)
	}},
	{want: OutBound, name: "in a session", make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)})
		return atStranger, append([]byte{23}, signed(s.unboundJoiner(), 0, s.unboundJoiner().key)...)
	}},
	{want: OutHeld, name: "close", make: func(s *sim) (int, []byte) {
		s.spoof()
		return atJoiner1, message(11, s.joiner1().id)
	}},
	{want: OutHeld, name: "disconnect", make: func(s *sim) (int, []byte) {
		s.spoof()
		return atJoiner1, message(9, s.joiner1().id, s.hostData().id)
	}},
	{want: OutRelinked, make: func(s *sim) (int, []byte) {
		s.returnOne(0, 1)
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, 1)
	}},
	{want: DropRecovering, name: "joiner relays first", make: func(s *sim) (int, []byte) {
		s.returnOne(0, 1)
		return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: DropRecovering, name: "host is not back", make: func(s *sim) (int, []byte) {
		s.returnOne(1)
		return atJoiner1, connectMessage(s.joiner1().id, s.joiner1().ticket)
	}},
	{want: DropUnbound, name: "sign of life", alive: true, make: func(s *sim) (int, []byte) { return atStranger, nil }},
	{want: DropUnbound, make: func(s *sim) (int, []byte) { return atStranger, message(11, s.joiner1().id) }},
	{want: DropHostUnbound, make: func(s *sim) (int, []byte) {
		s.datagram(atHost, signed(s.unboundJoiner(), 0, s.unboundJoiner().key)) // unbound takes the host's endpoint
		return atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket)
	}},
	{want: DropPlaceHeld, make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket))
		s.reserve(alloc.RoleJoiner, s.hostData(), s.hostData().tenant, s.joiner1().player, 0)
		again := s.cards[len(s.cards)-1]
		s.datagram(atStranger, signed(again, 0, again.key))
		return atStranger, connectMessage(again.id, again.ticket)
	}},
	{want: DropPeerUnbound, make: func(s *sim) (int, []byte) {
		s.datagram(atHost, signed(s.unboundJoiner(), 0, s.unboundJoiner().key))
		return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: DropReceiverSize, make: func(s *sim) (int, []byte) {
		s.joiner1AtIPv6()
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, mMaxMessage-38+1)
	}},
	{want: OutRelayed, name: "largest that its receiver's way carries", make: func(s *sim) (int, []byte) {
		s.joiner1AtIPv6()
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, mMaxMessage-38)
	}},
	{want: DropMuted, name: "third ERROR 3", make: func(s *sim) (int, []byte) {
		for range 3 {
			s.datagram(atStranger, pingMessage(mID{9}))
			s.advance(200 * time.Millisecond)
		}
		return atStranger, pingMessage(mID{9})
	}},
	{want: DropMuted, name: "same pair", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, relayMessage(s.joiner2().id, s.hostData().id, 1))
		return atJoiner2, relayMessage(s.joiner2().id, s.hostData().id, 1)
	}},
	{want: DropBudget, make: func(s *sim) (int, []byte) {
		s.datagram(atStranger, append([]byte{0xDA, 0x72, 1}, pingMessage(mID{9})[3:]...))
		return atStranger, append([]byte{0xDA, 0x72, 1}, pingMessage(mID{9})[3:]...)
	}},
	{want: DropStale, also: OutBound, make: func(s *sim) (int, []byte) {
		// Bob's worker takes his CONNECT_REQUEST while control already has
		// his BIND from elsewhere, on the ring of the other worker.
		w := s.workers[workerOf(atOther)]
		w.handleDatagram(s.now, endpoint.UDP(simAddrs[atOther], 0, 0), signed(s.joiner1(), 6, s.joiner1().key), false)
		return atJoiner1, connectMessage(s.joiner1().id, s.joiner1().ticket)
	}},
}
