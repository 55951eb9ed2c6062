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

// TestDropReasons: one datagram has exactly one outcome, and drops answer nothing.
func TestDropReasons(t *testing.T) {
	ident := newIdentity(t)
	covered := map[outcome]bool{}
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
			for o := range numOutcomes {
				want := before[o]
				if o == c.want || o == c.also && c.also != 0 {
					want++
				}
				if after[o] != want {
					t.Errorf("outcome %v counted %d times, want %d", o, after[o]-before[o], want-before[o])
				}
			}
			if c.want.isDrop() && c.also == 0 && len(s.sent) != 0 {
				t.Errorf("dropped, yet sent\n%s", show(s.sent))
			}
			if !c.want.isDrop() && c.want != outClosed && c.want != outHeld && c.want != outRelinked && c.want != outRecord && len(s.sent) == 0 {
				t.Error("nothing was sent")
			}
		})
		covered[c.want] = true
	}
	covered[dropPanic] = true // TestFault
	for o := range numOutcomes {
		if !covered[o] {
			t.Errorf("no case raises %v", o)
		}
	}
}

func (s *sim) totals() (sum [numOutcomes]uint64) {
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
	atUnknown
	atOther
)

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

const atPrivate = -2

func endpointAt(at int) endpoint.Endpoint {
	if at == atLowPort {
		return endpoint.UDP(netip.MustParseAddrPort("192.0.2.9:53"), 0, 0)
	}
	if at == atPrivate {
		return endpoint.UDP(netip.MustParseAddrPort("172.17.0.1:40000"), 0, 0)
	}
	return endpoint.UDP(simAddrs[at], 0, 0)
}

func (s *sim) spoof() {
	for range forgedRate.Burst + 1 {
		s.datagram(atUnknown, message(11, s.joiner1().id))
	}
}

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
	want      outcome
	name      string
	make      func(s *sim) (from int, pkt []byte)
	truncated bool
	noSource  bool
	alive     bool    // a sign of life of a session
	also      outcome // of another datagram, which this one needs under way
}

func checkOf(s *sim) []byte {
	pkt := append([]byte(checkMagic), make([]byte, checkLen-len(checkMagic))...)
	s.shared.checker.block.Encrypt(pkt[checkReplyLen:], pkt[len(checkMagic):checkReplyLen])
	return pkt
}

var outcomeCases = []outcomeCase{
	{want: outRelayed, name: "to host", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			relayMessage(s.joiner1().id, s.hostData().id, 10)
	}},
	{want: outRelayed, name: "to joiner, empty", make: func(s *sim) (int, []byte) {
		return atHost,
			relayMessage(s.hostData().id, s.joiner1().id, 0)
	}},
	{want: outRelayed, name: "largest", make: func(s *sim) (int, []byte) {
		return atHost,
			relayMessage(s.hostData().id, s.joiner1().id, 1400)
	}},
	{want: outPong, make: func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
	{want: outAlive, alive: true, make: func(s *sim) (int, []byte) { return atJoiner1, nil }},
	{want: outBound, make: func(s *sim) (int, []byte) { return atUnknown, signed(s.unboundJoiner(), 0, s.unboundJoiner().key) }},
	{want: outAccepted, name: "new", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			connectMessage(s.joiner2().id, s.joiner2().ticket)
	}},
	{want: outAccepted, name: "repeated", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			connectMessage(s.joiner1().id, s.joiner1().ticket)
	}},
	{want: outAccepted, name: "host's own data", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			connectMessage(s.joiner2().id, s.hostData().data)
	}},
	{want: outRejected, make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket))
		s.datagram(atUnknown, signed(s.unboundJoiner(), 0, s.unboundJoiner().key))
		return atUnknown, connectMessage(s.unboundJoiner().id, s.unboundJoiner().ticket)
	}},
	{want: outDisconnected, name: "linked", make: func(s *sim) (int, []byte) { return atHost, message(9, s.hostData().id, s.joiner1().id) }},
	{want: outDisconnected, name: "same match", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			message(9, s.joiner2().id, s.joiner1().id)
	}},
	{want: outClosed, make: func(s *sim) (int, []byte) { return atJoiner1, message(11, s.joiner1().id) }},
	{want: outCheck, make: func(s *sim) (int, []byte) { return atUnknown, checkOf(s) }},

	{want: outErrorVersion, make: func(s *sim) (int, []byte) {
		return atUnknown, append([]byte{0xDA, 0x72, 1}, pingMessage(s.joiner1().id)[3:]...)
	}},
	{want: outErrorUnauthorized, make: func(s *sim) (int, []byte) { return atJoiner2, connectMessage(s.joiner2().id, s.joiner1().data) }},
	{want: outErrorMismatch, name: "unknown id", make: func(*sim) (int, []byte) { return atUnknown, pingMessage(mID{9}) }},
	{want: outErrorMismatch, name: "spoofed id", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: outErrorNotFound, name: "bind", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner1, message(11, s.joiner1().id))
		return atJoiner1, signed(s.joiner1(), 0, s.joiner1().key)
	}},
	{want: outErrorNotFound, name: "connect", make: func(s *sim) (int, []byte) {
		s.datagram(atHost, message(11, s.hostData().id))
		return atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket)
	}},
	{want: outErrorNotConnected, name: "relay", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			relayMessage(s.joiner2().id, s.hostData().id, 1)
	}},
	{want: outErrorNotConnected, name: "disconnect", make: func(s *sim) (int, []byte) {
		return atJoiner2,
			message(9, s.joiner2().id, mID{7})
	}},
	{want: outErrorSelf, make: func(s *sim) (int, []byte) { return atHost, connectMessage(s.hostData().id, s.hostData().data) }},

	{want: dropTruncated, truncated: true, make: func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
	{want: dropSource, noSource: true, make: func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
	{want: dropShort, name: "empty", make: func(*sim) (int, []byte) { return atJoiner1, nil }},
	{want: dropShort, name: "three bytes", make: func(*sim) (int, []byte) { return atJoiner1, []byte{0xDA, 0x72, 0} }},
	{want: dropSignature, make: func(s *sim) (int, []byte) {
		return atJoiner1, append([]byte{0x72, 0xDA}, pingMessage(s.joiner1().id)[2:]...)
	}},
	{want: dropSignature, name: "probe of another process", make: func(s *sim) (int, []byte) {
		pkt := checkOf(s)
		pkt[len(pkt)-1] ^= 1
		return atUnknown, pkt
	}},
	{want: dropVersion, name: "short", make: func(s *sim) (int, []byte) {
		return atJoiner1, append([]byte{0xDA, 0x72, 1}, message(11, s.joiner1().id)[3:]...)
	}},
	{want: dropVersion, name: "server type", make: func(*sim) (int, []byte) {
		return atJoiner1,
			append([]byte{0xDA, 0x72, 1, 12}, make([]byte, 40)...)
	}},
	{want: dropServerType, name: "error", make: func(s *sim) (int, []byte) { return atJoiner1, []byte(mError(s.joiner1().id, 3)) }},
	{want: dropServerType, name: "bind received", make: func(*sim) (int, []byte) { return atJoiner1, message(1) }},
	{want: dropUnknownType, make: func(s *sim) (int, []byte) { return atJoiner1, message(4, s.joiner1().id) }},
	{want: dropSize, name: "ping", make: func(s *sim) (int, []byte) { return atJoiner1, append(pingMessage(s.joiner1().id), 0) }},
	{want: dropSize, name: "relay", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			relayMessage(s.joiner1().id, s.hostData().id, 5)[:42]
	}},
	{want: dropSize, name: "connect", make: func(s *sim) (int, []byte) {
		return atJoiner1,
			connectMessage(s.joiner1().id, s.joiner1().ticket[:254])
	}},
	{want: dropSize, name: "bind", make: func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 6, s.joiner1().key)[:294] }},
	{want: dropSize, name: "disconnect", make: func(s *sim) (int, []byte) { return atJoiner1, message(9, s.joiner1().id) }},
	{want: dropSize, name: "close", make: func(s *sim) (int, []byte) { return atJoiner1, message(11, s.joiner1().id)[:19] }},
	{want: dropOversize, make: func(s *sim) (int, []byte) { return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1401) }},
	{want: dropAcceptMode, make: func(s *sim) (int, []byte) {
		pkt := signed(s.joiner1(), 6, s.joiner1().key)
		pkt[4] = 1
		return atJoiner1, pkt
	}},
	{want: dropSeal, name: "bind", make: func(s *sim) (int, []byte) {
		pkt := signed(s.joiner1(), 6, s.joiner1().key)
		pkt[100] ^= 1
		return atJoiner1, pkt
	}},
	{want: dropSeal, name: "connect", make: func(s *sim) (int, []byte) {
		pkt := connectMessage(s.joiner1().id, s.joiner1().ticket)
		pkt[100] ^= 1
		return atJoiner1, pkt
	}},
	{want: dropTicket, make: func(s *sim) (int, []byte) {
		card := *s.joiner1()
		card.data = card.ticket
		return atJoiner1, signed(&card, 6, card.key)
	}},
	{want: dropMAC, make: func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 6, s.hostData().key) }},
	{want: dropNonce, name: "lower", make: func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 4, s.joiner1().key) }},
	{want: dropNonce, name: "replayed from elsewhere", make: func(s *sim) (int, []byte) {
		return atUnknown,
			signed(s.joiner1(), 5, s.joiner1().key)
	}},
	{want: dropEndpointHeld, name: "another's", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner1, pingMessage(s.joiner1().id))
		return atJoiner1, signed(s.unboundJoiner(), 0, s.unboundJoiner().key)
	}},
	{want: dropEndpointHeld, name: "ended", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, message(11, s.joiner2().id))
		s.datagram(atJoiner1, pingMessage(s.joiner1().id))
		return atJoiner1, signed(s.joiner2(), 9, s.joiner2().key)
	}},
	{want: dropBusy, make: func(s *sim) (int, []byte) {
		w := s.workers[workerOf(atJoiner1)]
		for range knownRing {
			w.inbox.rings[known].push(&command{kind: 0xFF})
		}
		s.control.inboxes = inboxes{} // control is stuck
		return atJoiner1, message(11, s.joiner1().id)
	}},
	{want: dropLoad, name: "share", make: func(s *sim) (int, []byte) {
		w := s.workers[workerOf(atJoiner1)]
		w.inbox.noteLoad(s.now)
		ep := endpoint.UDP(simAddrs[atJoiner1], 0, 0)
		w.inbox.queued[known][uint8(w.shared.budgets.prefixIndex(ep))].Store(bucketLimit)
		return atJoiner1, message(11, s.joiner1().id)
	}},
	{want: dropLoad, name: "signatures", make: func(s *sim) (int, []byte) {
		w := s.workers[workerOf(atJoiner1)]
		w.inbox.noteLoad(s.now)
		for range verifyPrefixRate.Burst {
			w.handleDatagram(s.now, endpoint.UDP(simAddrs[atJoiner1], 0, 0), nil, false)
			joiner1, _ := w.shared.table.ByID(proto.AllocationID(s.joiner1().id))
			w.shared.budgets.mayVerify(s.now, endpoint.UDP(simAddrs[atJoiner1], 0, 0), joiner1.ID, &joiner1)
		}
		return atJoiner1, signed(s.joiner1(), 6, s.joiner1().key)
	}},
	{want: dropRate, name: "relay", make: func(s *sim) (int, []byte) {
		for range mJoinerQuota[0] {
			s.datagram(atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1))
		}
		return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: dropRate, name: "bind once more", make: func(s *sim) (int, []byte) {
		for range repeatRate.Burst {
			s.datagram(atJoiner1, signed(s.joiner1(), 5, s.joiner1().key))
		}
		return atJoiner1, signed(s.joiner1(), 5, s.joiner1().key)
	}},
	{want: dropUnvalidated, make: func(s *sim) (int, []byte) {
		s.datagram(atUnknown, signed(s.joiner1(), 6, s.joiner1().key))
		s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, 1400))
		s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, 1400))
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, 1400)
	}},
	{want: dropForbidden, name: "low port", make: func(s *sim) (int, []byte) { return atLowPort, pingMessage(s.joiner1().id) }},
	{want: dropForbidden, name: "version", make: func(s *sim) (int, []byte) {
		return atLowPort, append([]byte{0xDA, 0x72, 1}, pingMessage(s.joiner1().id)[3:]...)
	}},
	{want: dropPrivate, make: func(s *sim) (int, []byte) {
		s.shared.sources.private = false
		return atPrivate, signed(s.joiner1(), 6, s.joiner1().key)
	}},
	{want: outQoS, make: func(*sim) (int, []byte) {
		return atUnknown, append([]byte{0x59, 0, 1}, make([]byte, 11)...)
	}},
	{want: dropSize, name: "qos", make: func(*sim) (int, []byte) {
		return atUnknown, append([]byte{0x59, 0, 2}, make([]byte, 11)...)
	}},
	{want: outRecord, make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{})
		return atUnknown, []byte{22, 1, 2, 3}
	}},
	{want: dropPlain, make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)})
		return atUnknown, pingMessage(s.joiner1().id)
	}},
	{want: dropIdentity, make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)})
		return atUnknown, append([]byte{23}, signed(s.joiner1(), 9, s.joiner1().key)...)
	}},
	{want: outBound, name: "in a session", make: func(s *sim) (int, []byte) {
		s.secure(driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)})
		return atUnknown, append([]byte{23}, signed(s.unboundJoiner(), 0, s.unboundJoiner().key)...)
	}},
	{want: outHeld, name: "close", make: func(s *sim) (int, []byte) {
		s.spoof()
		return atJoiner1, message(11, s.joiner1().id)
	}},
	{want: outHeld, name: "disconnect", make: func(s *sim) (int, []byte) {
		s.spoof()
		return atJoiner1, message(9, s.joiner1().id, s.hostData().id)
	}},
	{want: outRelinked, make: func(s *sim) (int, []byte) {
		s.returnOne(0, 1)
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, 1)
	}},
	{want: dropRecovering, name: "joiner relays first", make: func(s *sim) (int, []byte) {
		s.returnOne(0, 1)
		return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: dropRecovering, name: "host is not back", make: func(s *sim) (int, []byte) {
		s.returnOne(1)
		return atJoiner1, connectMessage(s.joiner1().id, s.joiner1().ticket)
	}},
	{want: dropUnbound, name: "sign of life", alive: true, make: func(s *sim) (int, []byte) { return atUnknown, nil }},
	{want: dropUnbound, make: func(s *sim) (int, []byte) { return atUnknown, message(11, s.joiner1().id) }},
	{want: dropHostUnbound, make: func(s *sim) (int, []byte) {
		s.datagram(atHost, signed(s.unboundJoiner(), 0, s.unboundJoiner().key)) // unbound takes the host's endpoint
		return atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket)
	}},
	{want: dropPlaceHeld, make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, connectMessage(s.joiner2().id, s.joiner2().ticket))
		s.reserve(alloc.RoleJoiner, s.hostData(), s.hostData().tenant, s.joiner1().player, 0)
		again := s.cards[len(s.cards)-1]
		s.datagram(atUnknown, signed(again, 0, again.key))
		return atUnknown, connectMessage(again.id, again.ticket)
	}},
	{want: dropPeerUnbound, make: func(s *sim) (int, []byte) {
		s.datagram(atHost, signed(s.unboundJoiner(), 0, s.unboundJoiner().key))
		return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 1)
	}},
	{want: dropReceiverSize, make: func(s *sim) (int, []byte) {
		s.joiner1AtIPv6()
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, mMaxMessage-38+1)
	}},
	{want: outRelayed, name: "largest that its receiver's way carries", make: func(s *sim) (int, []byte) {
		s.joiner1AtIPv6()
		return atHost, relayMessage(s.hostData().id, s.joiner1().id, mMaxMessage-38)
	}},
	{want: dropMuted, name: "third ERROR 3", make: func(s *sim) (int, []byte) {
		for range 3 {
			s.datagram(atUnknown, pingMessage(mID{9}))
			s.advance(200 * time.Millisecond)
		}
		return atUnknown, pingMessage(mID{9})
	}},
	{want: dropMuted, name: "same pair", make: func(s *sim) (int, []byte) {
		s.datagram(atJoiner2, relayMessage(s.joiner2().id, s.hostData().id, 1))
		return atJoiner2, relayMessage(s.joiner2().id, s.hostData().id, 1)
	}},
	{want: dropBudget, make: func(s *sim) (int, []byte) {
		s.datagram(atUnknown, append([]byte{0xDA, 0x72, 1}, pingMessage(mID{9})[3:]...))
		return atUnknown, append([]byte{0xDA, 0x72, 1}, pingMessage(mID{9})[3:]...)
	}},
	{want: dropStale, also: outBound, make: func(s *sim) (int, []byte) {
		// Bob's worker takes his CONNECT_REQUEST while control already has
		// his BIND from elsewhere, on the ring of the other worker.
		w := s.workers[workerOf(atOther)]
		w.handleDatagram(s.now, endpoint.UDP(simAddrs[atOther], 0, 0), signed(s.joiner1(), 6, s.joiner1().key), false)
		return atJoiner1, connectMessage(s.joiner1().id, s.joiner1().ticket)
	}},
}
