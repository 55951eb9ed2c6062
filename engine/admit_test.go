package engine

import (
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// TestBindCache: the last BIND that was accepted is answered again without
// cryptography and without control, and no other one is.
func TestBindCache(t *testing.T) {
	t.Parallel()
	home, away := udpN(0), udpN(1)
	for _, c := range []struct {
		name string
		from endpoint.Endpoint // the repetition's
		want outcome
		make func(r *rig, card *mReservation) []byte
	}{
		{"the same", home, outBound, func(_ *rig, card *mReservation) []byte { return signed(card, 1, card.key) }},
		{"higher nonce", home, outcomePending, func(_ *rig, card *mReservation) []byte { return signed(card, 2, card.key) }},
		{"lower nonce", home, outcomePending, func(_ *rig, card *mReservation) []byte { return signed(card, 0, card.key) }},
		{"other endpoint", away, outcomePending, func(_ *rig, card *mReservation) []byte { return signed(card, 1, card.key) }},
		{"wrong signature", home, dropMAC, func(_ *rig, card *mReservation) []byte {
			pkt := signed(card, 1, card.key)
			pkt[len(pkt)-1] ^= 1
			return pkt
		}},
		{"after a roam, from there", home, outcomePending, func(r *rig, card *mReservation) []byte {
			pkt := signed(card, 1, card.key)
			r.bind(card, away, 2)
			return pkt
		}},
		{"after a roam and back", home, outcomePending, func(r *rig, card *mReservation) []byte {
			r.bind(card, away, 2)
			r.bind(card, home, 3)
			return signed(card, 1, card.key)
		}},
		{"after a higher nonce", home, outcomePending, func(r *rig, card *mReservation) []byte {
			r.bind(card, home, 2)
			return signed(card, 1, card.key)
		}},
		{"after another took the endpoint", home, outcomePending, func(r *rig, card *mReservation) []byte {
			r.unlinked(home, card)
			return signed(card, 1, card.key)
		}},
		{"after its end", home, outcomePending, func(r *rig, card *mReservation) []byte {
			r.feed(home, message(11, card.id))
			r.take()
			return signed(card, 1, card.key)
		}},
		{"another allocation in its row", home, outcomePending, func(r *rig, card *mReservation) []byte {
			row := r.worker(home).crypto.repeats.entry(r.entry(card).Handle)
			row.handle += 1 << 32 * bindCacheSize
			return signed(card, 1, card.key)
		}},
	} {
		r := newRig(t, Config{})
		card := r.host(home, 4)
		pkt := c.make(r, card)
		if o := r.step(c.from, pkt); o != c.want {
			t.Errorf("%s: %v, want %v", c.name, o, c.want)
		}
		if sent := r.take(); (len(sent) == 1) != (c.want == outBound) {
			t.Errorf("%s: %d datagrams were sent at once", c.name, len(sent))
		}
	}
}

func TestBindCacheNeedsNoKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	card := r.host(udpN(0), 4)
	r.worker(udpN(0)).crypto.deriver = nil // any use panics
	for range repeatRate.Burst {
		if o := r.step(udpN(0), signed(card, 1, card.key)); o != outBound {
			t.Fatal(o)
		}
	}
	if o := r.step(udpN(0), signed(card, 1, card.key)); o != dropRate {
		t.Errorf("more than %d at once: %v", repeatRate.Burst, o)
	}
	if sent := r.take(); len(sent) != int(repeatRate.Burst) || len(sent[0].pkt) != 4 || sent[0].to != udpN(0) {
		t.Errorf("%d were sent", len(sent))
	}
}

// TestBindCacheGracePeriod: a worker in a batch may still send to an endpoint what was meant for
// its former owner. So the BIND of the new owner is not answered before the end of the batch.
func TestBindCacheGracePeriod(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	old := r.joiner(udpN(1), host)
	busy := r.worker(udpN(0))
	busy.epoch.enter()
	if o := busy.handleDatagram(r.now, udpN(0), relayMessage(host.id, old.id, 5), false); o != outRelayed {
		t.Fatal(o)
	}
	card, err := r.reserve(alloc.RoleJoiner, host, "new", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.now += heldTicks * table.TickMillis // The old owner has gone.
	other := r.workers[0]
	if other == busy {
		other = r.workers[1]
	}
	for range 5 {
		other.epoch.enter()
		if o := other.handleDatagram(r.now, udpN(1), signed(card, 1, card.key), false); o != outcomePending {
			t.Errorf("before the answer has left: %v", o)
		}
		other.out.flush()
		other.epoch.leave()
		r.pump()
	}
	if e := r.entry(card); e.Endpoint != udpN(1) || e.Is(table.BindConfirmed) {
		t.Errorf("it is at %v, told %v", e.Endpoint, e.Is(table.BindConfirmed))
	}
	if sent := r.take(); len(sent) != 0 {
		t.Fatalf("%x left while a worker was busy", sent[0].pkt)
	}
	busy.out.flush()
	busy.epoch.leave()
	r.pump()
	sent := r.take()
	if len(sent) != 6 || sent[0].pkt[3] != 10 {
		t.Fatalf("%d datagrams, the first of type %d", len(sent), sent[0].pkt[3])
	}
	for _, s := range sent[1:] {
		if s.pkt[3] != 1 || s.to != udpN(1) {
			t.Errorf("type %d to %v", s.pkt[3], s.to)
		}
	}
	if o := other.handleDatagram(r.now, udpN(1), signed(card, 1, card.key), false); o != outBound {
		t.Errorf("after it has left: %v", o)
	}
}

// TestNonceDoesNotWrap (B3): after 65,535 an allocation binds only from where it is.
func TestNonceDoesNotWrap(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	card := r.host(udpN(0), 4)
	r.bind(card, udpN(1), 65_535)
	for _, nonce := range []uint16{0, 1, 32_768, 65_534, 65_535} {
		r.feed(udpN(2), signed(card, nonce, card.key))
		if e := r.entry(card); e.Endpoint != udpN(1) {
			t.Fatalf("nonce %d moved it to %v", nonce, e.Endpoint)
		}
	}
	if sent := r.take(); len(sent) != 0 {
		t.Errorf("%d answers", len(sent))
	}
	r.now += 1000
	r.feed(udpN(1), signed(card, 65_535, card.key))
	if sent := r.take(); len(sent) != 1 || sent[0].pkt[3] != 1 {
		t.Errorf("from where it is: %d answers", len(sent))
	}
}

// TestConfirmEarlierBinding: an endpoint goes from A to X and back to A within one grace period.
// The BIND_RECEIVED of A's first binding does not confirm its second.
func TestConfirmEarlierBinding(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	e, away := udpN(1), udpN(2)
	a, x := r.unlinked(away, host), r.joiner(udpN(3), host)
	w0, w1, w2 := r.workers[0], r.workers[1], r.workers[2]
	bind := func(c *mReservation, nonce uint16) {
		w2.epoch.enter()
		w2.handleDatagram(r.now, e, signed(c, nonce, c.key), false)
		w2.out.flush()
		w2.epoch.leave()
		r.pump()
	}
	w0.epoch.enter()
	bind(a, 2)
	bind(x, 2)
	w1.epoch.enter()
	if o := w1.handleDatagram(r.now, udpN(0), relayMessage(host.id, x.id, 5), false); o != outRelayed {
		t.Fatal(o)
	}
	bind(a, 3)
	w0.epoch.leave()
	r.pump()
	r.take()
	bind(a, 3) // the client repeats
	if sent := r.take(); len(sent) != 0 {
		t.Errorf("%x left for %v while a worker holds a RELAY for its former owner", sent[0].pkt, sent[0].to)
	}
}

// TestBusyResetsMute: a relay that is too busy for a BIND, as after a restart with
// all clients coming back at once, must not then be silent for ten seconds.
func TestBusyResetsMute(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	s.shared.budgets.rates = defaultRates
	w := s.workers[workerOf(atUnknown)]
	for range 2 * mutesAfter {
		if o := w.handleDatagram(s.now, endpointAt(atUnknown), pingMessage(s.unboundJoiner().id), false); o != outErrorMismatch {
			t.Fatalf("a PING earns %v", o)
		}
		for range freshRing {
			w.inbox.rings[fresh].push(&command{kind: 0xFF})
		}
		if o := w.handleDatagram(s.now, endpointAt(atUnknown), signed(s.unboundJoiner(), 0, s.unboundJoiner().key), false); o != dropBusy {
			t.Fatalf("the BIND: %v", o)
		}
		w.inbox.clear()
		s.now += 250
	}
}

// TestManyRecover: more unknown clients than a worker has entries for get ERROR 3, those that share
// a gate of 200 ms later.
func TestManyRecover(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	w := s.workers[0]
	w.shared.rules.recoverUntil = s.now + 1
	const many = 3 * muteSets * muteWays
	for i := range uint32(many) {
		ip := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		if o := w.handleDatagram(s.now, endpoint.UDP(netip.AddrPortFrom(ip, 5000), 0, 0), pingMessage(mID{9}), false); o != outErrorMismatch &&
			o != dropBudget {
			t.Fatalf("endpoint %d: %v", i, o)
		}
		w.out.reset()
	}
}
