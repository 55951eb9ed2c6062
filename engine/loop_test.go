package engine

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// The search for loops: all that the relay can send is sent to it, and so are its answers.

const loopDepth = 5

// The endpoints of the search.
const (
	loopUnbound = iota
	loopHost    // has a link to linked
	loopJoiner
	loopUnlinked // bound, without a link
	loopLone     // the host of another match
	loopOwn      // the relay itself
	loopSibling
	loopService
	loopRoles
)

var loopRoleNames = [loopRoles]string{"unbound", "host", "linked", "unlinkedJoiner", "lone", "own", "sibling", "service"}

var loopEndpoints = [loopRoles]endpoint.Endpoint{
	udp("198.51.100.1:40000"), udp("198.51.100.2:40000"), udp("198.51.100.3:40000"), udp("198.51.100.4:40000"),
	udp("198.51.100.5:40000"), udp("203.0.113.7:7777"), udp("203.0.113.8:7777"), udp("198.51.100.6:53"),
}

type fixture struct {
	*rig
	host, linked, unlinkedJoiner, lone, reserved *mReservation
}

func newFixture(t *testing.T, ident *identity) *fixture {
	t.Helper()
	w := &fixture{rig: newRigIn(t, ident, Config{
		Unlimited: true, MaxAllocations: 64, Listen: addrPorts("203.0.113.7:7777"),
		Siblings: addrPorts("203.0.113.8:7777"), Advertise: advertise("203.0.113.7"),
	})}
	w.row = true
	w.host = w.rig.host(loopEndpoints[loopHost], 2)
	w.linked = w.joiner(loopEndpoints[loopJoiner], w.host)
	w.unlinkedJoiner = w.unlinked(loopEndpoints[loopUnlinked], w.host)
	w.lone = w.rig.host(loopEndpoints[loopLone], 1)
	var err error
	if w.reserved, err = w.reserve(alloc.RoleJoiner, w.host, "reserved", 0); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *fixture) emitted() (all [][]byte) {
	ids := []mID{w.host.id, w.linked.id, w.unlinkedJoiner.id, w.lone.id, w.reserved.id, {9}, {}}
	all = append(all, message(1))
	for _, a := range ids {
		all = append(all, pingMessage(a), message(11, a), message(4, a), connectMessage(a, w.linked.ticket))
		for code := range byte(8) {
			all = append(all, []byte(mError(a, code)))
		}
		for _, b := range ids {
			all = append(all, message(6, a, b), message(8, a, b), message(9, a, b), relayMessage(a, b, 0), relayMessage(a, b, 9))
		}
	}
	for _, c := range []*mReservation{w.host, w.linked, w.unlinkedJoiner, w.lone, w.reserved} {
		all = append(all, signed(c, 0, c.key), signed(c, 1, c.key), signed(c, 2, c.key), signed(c, 9, w.host.key))
		all = append(all, connectMessage(c.id, c.data), connectMessage(c.id, w.host.data), connectMessage(w.unlinkedJoiner.id, c.data))
	}
	variants := map[[2]int]bool{} // one of each type and size will do
	for _, pkt := range slices.Clone(all) {
		class := [2]int{int(pkt[3]), len(pkt)}
		if variants[class] {
			continue
		}
		variants[class] = true
		other := bytes.Clone(pkt)
		other[2] = 1
		all = append(all, other, pkt[:len(pkt)-1], append(bytes.Clone(pkt), 0))
	}
	probe := append([]byte(checkMagic), make([]byte, checkLen-len(checkMagic))...)
	qos := append([]byte{proto.QoSMagic, 0x00, 0x05}, make([]byte, 11)...)
	return append(all, probe, probe[:checkReplyLen], qos, append([]byte{0x95}, make([]byte, 12)...))
}

type exchange struct {
	role int
	pkt  string
}

func (h exchange) String() string {
	return fmt.Sprintf("%s: %d bytes, %.24x", loopRoleNames[h.role], len(h.pkt), h.pkt)
}

// kind returns the type of a relay message, or 255.
func (h exchange) kind() byte {
	if len(h.pkt) < 4 || h.pkt[:3] != "\xDA\x72\x00" {
		return 255
	}
	return h.pkt[3]
}

// stateOf names what these have made of a world.
func stateOf(hops []exchange) (s string) {
	for _, h := range hops {
		s += string(rune('0'+h.role)) + h.pkt
	}
	return s
}

type search struct {
	t      *testing.T
	ident  *identity
	world  *fixture
	state  string // what the world has seen that changed it
	worlds int
	fed    int
	seen   map[string]bool         // by what changed the state before, and what comes
	edges  map[exchange][]exchange // from what came in to what went out, as it would come back
}

// enter makes s.world one in which just these hops have happened.
func (s *search) enter(before []exchange) {
	if s.world != nil && s.state == stateOf(before) && s.world.now < clockStart+8000 { // nothing expires yet
		s.world.forget()
		return
	}
	s.world, s.worlds = newFixture(s.t, s.ident), s.worlds+1
	for _, h := range before {
		s.world.feed(loopEndpoints[h.role], []byte(h.pkt))
	}
	s.state = stateOf(before)
	s.world.take()
}

func (s *search) feed(before []exchange, h exchange) ([]sending, []exchange) {
	s.enter(before)
	s.fed++
	was := s.world.digest()
	s.world.feed(loopEndpoints[h.role], []byte(h.pkt))
	if s.world.digest() != was {
		before = append(slices.Clone(before), h)
		s.state = stateOf(before)
	}
	return s.world.take(), before
}

func (w *fixture) digest() (d [5]table.Entry) {
	for i, c := range []*mReservation{w.host, w.linked, w.unlinkedJoiner, w.lone, w.reserved} {
		d[i] = w.entry(c)
	}
	return d
}

func (w *fixture) forget() {
	w.now += table.NotConnectedMillis
	for _, c := range []*mReservation{w.host, w.linked, w.unlinkedJoiner, w.lone, w.reserved} {
		w.shared.table.Activity(w.entry(c).Handle).RecordReceive(tick(w.now))
	}
	for _, worker := range w.workers {
		worker.mutes = muteTable{secret: worker.mutes.secret}
	}
}

func (s *search) follow(path, changed []exchange) {
	in := path[len(path)-1]
	key := stateOf(append(slices.Clone(changed), in))
	if s.seen[key] || s.t.Failed() {
		return
	}
	s.seen[key] = true
	out, changed := s.feed(changed, in)
	s.check(path, out)
	for _, o := range out {
		to := slices.Index(loopEndpoints[:], o.to)
		if to < 0 {
			s.t.Fatalf("%v: sent to %v, which is not in the fixture", path, o.to)
		}
		next := exchange{to, string(o.pkt)}
		if !slices.Contains(s.edges[in], next) {
			s.edges[in] = append(s.edges[in], next)
		}
		if len(path) < loopDepth {
			for role := range loopRoles {
				s.follow(append(slices.Clip(path), exchange{role, string(o.pkt)}), changed)
			}
		}
	}
}

func (s *search) check(path []exchange, out []sending) {
	in := path[len(path)-1]
	total := 0
	for _, o := range out {
		total += len(o.pkt)
		if len(o.pkt) > len(in.pkt) {
			s.t.Errorf("%v: answered with %d bytes", path, len(o.pkt))
		}
		if in.role == loopUnbound && o.to == loopEndpoints[loopUnbound] && len(o.pkt) >= len(in.pkt) {
			s.t.Errorf("%v: an unbound endpoint got %d bytes", path, len(o.pkt))
		}
	}
	twice := len(out) == 2 && in.kind() == 9 && string(out[0].pkt) == in.pkt && string(out[1].pkt) == in.pkt
	if len(out) > 1 && (!twice || s.parted(path[:len(path)-1])) || !twice && total > len(in.pkt) {
		s.t.Errorf("%v: %d datagrams for one, %d bytes", path, len(out), total)
	}
	if len(out) > 0 && in.role >= loopOwn {
		s.t.Errorf("%v: a relay or a service is answered", path)
	}
	if slices.Contains([]byte{1, 4, 6, 8, 12}, in.kind()) && len(out) > 0 {
		s.t.Errorf("%v: answered", path)
	}
}

// parted reports whether a path has closed the only link already.
func (s *search) parted(path []exchange) bool {
	return slices.ContainsFunc(path, func(h exchange) bool { return h.kind() == 9 })
}

// TestLoops: no datagram causes more than one, but for the DISCONNECT that
// closes a link, and none goes round.
func TestLoops(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	s := &search{t: t, ident: newIdentity(t), edges: map[exchange][]exchange{}, seen: map[string]bool{}}
	for _, pkt := range newFixture(t, s.ident).emitted() {
		for role := range loopRoles {
			if s.follow([]exchange{{role, string(pkt)}}, nil); t.Failed() {
				return
			}
		}
	}
	t.Logf("%d datagrams in %d worlds, %d of them answered", s.fed, s.worlds, len(s.edges))
	if len(s.edges) < 50 {
		t.Error("too few datagrams were answered for a search")
	}
	// A mirror at an endpoint sends back what it gets. It keeps a datagram going
	// only if it is bound, so the owner of a key has requested it, and then that one
	// datagram and no larger one.
	for from, all := range s.edges {
		for _, to := range all {
			if !s.reaches(to, from, map[exchange]bool{}) {
				continue
			}
			echo := from == to && (from.kind() == 2 || from.kind() == 9)
			if bound := from.role >= loopHost && from.role <= loopLone; !echo || !bound {
				t.Errorf("%v comes round by way of %v", from, to)
			}
		}
	}
}

func (s *search) reaches(from, to exchange, seen map[exchange]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(s.edges[from], func(h exchange) bool { return s.reaches(h, to, seen) })
}

// TestTwoRelays (L2, L3): two relays that do not know of each other, and of
// which each has an allocation bound at the other's address, exchange at most
// two datagrams for one that was forged.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	addrs := [2]endpoint.Endpoint{udp("203.0.113.7:7777"), udp("203.0.113.8:7777")}
	for _, forged := range []int{0, 1} {
		var relays [2]*rig
		var hosts, guests [2]*mReservation
		for i := range relays {
			relays[i] = newRig(t, Config{Unlimited: true, Listen: addrPorts(addrs[i].String()),
				Advertise: advertise(addrs[i].AddrPort().Addr().String())})
			hosts[i] = relays[i].host(udpN(i), 4)
			guests[i] = relays[i].joiner(addrs[1-i], hosts[i])
		}
		card, victim := guests[forged], hosts[forged]
		for _, pkt := range [][]byte{
			pingMessage(card.id), relayMessage(card.id, victim.id, 5), relayMessage(card.id, mID{7}, 5), message(9, card.id, victim.id),
			message(9, card.id, mID{7}), connectMessage(card.id, card.ticket), signed(card, 2, card.key), message(11, card.id),
			append([]byte{0xDA, 0x72, 1}, pingMessage(card.id)[3:]...),
		} {
			between := []exchange{{forged, string(pkt)}} // what the other relay seems to send
			sent := 0
			for len(between) > 0 && sent < 100 {
				h := between[0]
				between = between[1:]
				relays[h.role].feed(addrs[1-h.role], []byte(h.pkt))
				for _, o := range relays[h.role].take() {
					if o.to == addrs[1-h.role] {
						between = append(between, exchange{1 - h.role, string(o.pkt)})
						sent++
					}
				}
			}
			if sent > 2 {
				t.Errorf("type %d: %d datagrams between the relays", pkt[3], sent)
			}
		}
	}
}
