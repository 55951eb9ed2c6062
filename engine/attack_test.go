package engine

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// Attacks by insiders, which have allocations and forge the sources of their datagrams.

func (r *rig) delivered(to endpoint.Endpoint) (n, bytes int) {
	for _, s := range r.take() {
		if s.to == to {
			bytes += len(s.pkt)
			if s.pkt[3] == byte(proto.TypeRelay) {
				n++
			}
		}
	}
	return n, bytes
}

// TestForgedBind: BINDs with the source of a player and another key take nothing from the player.
func TestForgedBind(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	victim := r.joiner(udpN(1), host)
	attacker := r.host(udpN(2), 1)
	r.feed(udpN(1), pingMessage(victim.id))
	nonce, sent, got := uint16(1), 0, 0
	r.each(time.Millisecond, 4*time.Second, func(i int) {
		nonce++
		r.feed(udpN(1), signed(attacker, nonce, attacker.key))
		if i%500 == 0 {
			r.feed(udpN(1), pingMessage(victim.id))
		}
		if i%10 == 0 {
			sent++
			r.feed(udpN(0), relayMessage(host.id, victim.id, 50))
		}
		n, _ := r.delivered(udpN(1))
		got += n
	})
	if got != sent || r.entry(victim).Endpoint != udpN(1) {
		t.Errorf("%d of %d RELAYs arrived, and the player is at %v", got, sent, r.entry(victim).Endpoint)
	}
	if n := r.counted(dropEndpointHeld); n != 4000 {
		t.Errorf("%d BINDs met silence, want 4000", n)
	}
}

// TestRefusalsAreFew: OnRefuse is called for a player's refused BIND, not for each of a flood.
func TestRefusalsAreFew(t *testing.T) {
	testkit.OneGoroutine(t)
	calls := map[string]int{}
	var last privateapi.RefuseEvent
	r := newRig(t, Config{Hooks: Hooks{Private: privateapi.Hooks{OnRefuse: func(e privateapi.RefuseEvent) { calls[e.Outcome]++; last = e }}}})
	host := r.host(udpN(0), 4)
	stale := signed(host, 0, host.key)
	r.each(time.Millisecond, 10*time.Second, func(i int) {
		r.feed(udpN(9), pingMessage(host.id)) // ERROR 3
		if i == 5000 {
			r.feed(udpN(1), stale)
		}
	})
	if n := calls["error_mismatch"]; n < 50 || n > 60 {
		t.Errorf("%d reports of 10,000 refusals of one address in 10 s, want 5 a second", n)
	}
	if calls["nonce"] != 1 {
		t.Errorf("%d reports of an old nonce, want 1", calls["nonce"])
	}
	clear(calls)
	r.each(time.Millisecond, 10*time.Second, func(i int) {
		for from := range 10 {
			r.feed(udpN(100+i*10+from), pingMessage(host.id))
		}
	})
	if n := calls["error_mismatch"]; n < 500*rigWorkers || n > 560*rigWorkers {
		t.Errorf("%d reports of refusals of 100,000 addresses in 10 s, want 50 a second and worker", n)
	}
	r.advance(time.Second)
	r.feed(udpN(1), stale)
	if want := (privateapi.RefuseEvent{ID: proto.AllocationID(host.id), From: udpN(1).AddrPort(), Message: proto.TypeBind,
		Outcome: "nonce"}); last != want {
		t.Errorf("event %+v, want %+v", last, want)
	}
}

// TestReusedPort: a NAT gives a player the port of another one. It is bound within three BINDs.
func TestReusedPort(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	gone := r.joiner(udpN(1), host)
	next, err := r.reserve(alloc.RoleJoiner, host, "next", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.feed(udpN(1), pingMessage(gone.id))
	for range 3 {
		r.feed(udpN(1), signed(next, 0, next.key))
		r.advance(time.Second)
	}
	if at := r.entry(next).Endpoint; at != udpN(1) {
		t.Errorf("after 3 s the new player is at %v", at)
	}
}

// TestTakeBack: a player that was silent for longer than heldTicks is displaced, and an
// attacker that then forges its own messages too does not keep it out.
func TestTakeBack(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	victim := r.joiner(udpN(1), host)
	attackers := []*mReservation{r.host(udpN(2), 1), r.host(udpN(3), 1)}
	r.advance(establishedTicks * table.TickMillis * time.Millisecond)
	r.feed(udpN(1), pingMessage(victim.id))
	r.advance(2500 * time.Millisecond)
	for _, attacker := range attackers { // the second takes it from the first
		r.bind(attacker, udpN(1), 2)
	}
	r.feed(udpN(1), pingMessage(attackers[1].id))
	r.bind(victim, udpN(1), 2)
	for nonce := range uint16(9) { // 9 s, with a PING each third one
		for _, attacker := range attackers {
			if o := r.feed(udpN(1), signed(attacker, 3+nonce, attacker.key)); o != outcomePending || r.entry(victim).Endpoint != udpN(1) {
				t.Fatalf("%v, and the player is at %v", o, r.entry(victim).Endpoint)
			}
		}
		if nonce%3 == 0 {
			r.feed(udpN(1), pingMessage(victim.id))
		}
		r.advance(time.Second)
	}
}

// TestTakeBackTooEarly: a player that was bound for less than establishedTicks, and silent for longer
// than heldTicks, does not take its endpoint back while forged messages hold it.
func TestTakeBackTooEarly(t *testing.T) {
	r := newRig(t, Config{})
	host, attacker := r.host(udpN(0), 4), r.host(udpN(2), 1)
	victim := r.joiner(udpN(1), host)
	r.advance(2500 * time.Millisecond)
	r.bind(attacker, udpN(1), 2)
	back := func(nonce uint16) bool {
		r.feed(udpN(1), signed(victim, nonce, victim.key))
		return r.entry(victim).Endpoint == udpN(1)
	}
	for nonce := range uint16(3) {
		r.feed(udpN(1), pingMessage(attacker.id))
		if back(2 + nonce) {
			t.Fatal("SECURITY.md has it as an exception")
		}
		r.advance(time.Second)
	}
	r.advance(heldTicks * table.TickMillis * time.Millisecond)
	if !back(5) {
		t.Error("it stays out when the attack is over")
	}
}

// TestSquatting: a BIND with a forged source does not keep the player of that address out.
func TestSquatting(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	r.caller = netip.MustParseAddr("203.0.113.9")
	attacker := r.host(udpN(1), 1)
	r.caller = netip.MustParseAddr("198.18.0.1") // that of udpN(1)
	player, err := r.reserve(alloc.RoleJoiner, host, "player", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.feed(udpN(1), pingMessage(attacker.id))
	r.bind(player, udpN(1), 1)
	r.feed(udpN(1), signed(attacker, 2, attacker.key))
	r.feed(udpN(1), pingMessage(player.id))
	r.feed(udpN(1), signed(attacker, 3, attacker.key))
	if at := r.entry(player).Endpoint; at != udpN(1) {
		t.Errorf("the player is at %v", at)
	}
}

// TestForgedBindOfEnded: a BIND of an ended allocation from a player's endpoint would
// earn an ERROR 4, which ends the game of the player's client.
func TestForgedBindOfEnded(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 4)
	victim := r.joiner(udpN(1), host)
	ended := r.host(udpN(2), 1)
	r.feed(udpN(2), message(11, ended.id))
	r.advance(5 * time.Second) // Nothing protects a player but that it is bound.
	r.take()
	r.feed(udpN(1), signed(ended, 9, ended.key))
	if sent := r.take(); len(sent) != 0 {
		t.Errorf("%x went to the player", sent[0].pkt)
	}
	r.feed(udpN(1), message(11, victim.id))
	r.feed(udpN(1), signed(ended, 10, ended.key))
	if sent := r.take(); len(sent) != 1 || sent[0].pkt[3] != byte(proto.TypeError) {
		t.Errorf("%d datagrams to an endpoint without an allocation, want ERROR 4", len(sent))
	}
}

// TestMismatchFlood: forged PINGs in a host's name do not keep it from the ERROR 3 that it needs.
func TestMismatchFlood(t *testing.T) {
	for name, at := range map[string]endpoint.Endpoint{
		"another port":    udp("198.18.0.0:50000"),
		"another network": udp("203.0.113.9:50000"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			host := r.host(udpN(0), 4)
			answered := -1
			r.each(time.Millisecond, 2*time.Second, func(i int) {
				r.feed(udpN(100+i), pingMessage(host.id))
				if i > 1000 && i%100 == 0 && answered < 0 {
					if o := r.feed(at, pingMessage(host.id)); o == outErrorMismatch {
						answered = i
					}
				}
			})
			if answered < 0 || answered > 1500 {
				t.Errorf("ERROR 3 after %d ms", answered-1000)
			}
		})
	}
}

// TestLinkLoop: a member that connects in a loop does not use up the new links of its host.
func TestLinkLoop(t *testing.T) {
	r := newRig(t, Config{})
	host := r.host(udpN(0), 10)
	loop := r.joiner(udpN(1), host)
	accepted := 0
	r.each(2*time.Millisecond, 4*time.Second, func(i int) {
		r.feed(udpN(1), message(9, loop.id, host.id))
		r.feed(udpN(1), connectMessage(loop.id, loop.ticket))
		if i%500 == 250 {
			honest := r.joiner(udpN(10+i), host)
			if e := r.entry(honest); e.Link != 0 {
				accepted++
			}
		}
		r.take()
	})
	if accepted != 4 {
		t.Errorf("%d of 4 joiners were linked at once", accepted)
	}
}

// TestFaults: a panic in a hook, in a call or in a command ends none of the matches.
func TestFaults(t *testing.T) {
	r := newRig(t, Config{Hooks: Hooks{OnConnect: func(ConnectEvent) { panic("hook") }}})
	var log testkit.LogBuffer
	r.shared.log = slog.New(slog.NewJSONHandler(&log, nil))
	host := r.host(udpN(0), 4)
	joiner := r.joiner(udpN(1), host) // OnConnect panics
	bad := &call{do: func(*control) error { panic("call") }, done: make(chan error, 1)}
	r.control.serve(bad)
	if err := <-bad.done; !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("a call that panics: %v", err)
	}
	inbox := r.workers[0].inbox
	inbox.push(known, &command{kind: proto.TypeClose, sender: table.Entry{Handle: 1 << 60}})
	r.pump()
	if n := r.counted(dropPanic); n != 1 {
		t.Errorf("%d commands were dropped, want 1", n)
	}
	if o := r.feed(udpN(0), relayMessage(host.id, joiner.id, 5)); o != outRelayed {
		t.Errorf("afterwards a RELAY: %v", o)
	}
	if n := len(faults(&log)); n != 1 {
		t.Errorf("%d lines about faults were logged within a minute, want 1", n)
	}
}

func TestLimitsValidate(t *testing.T) {
	for _, l := range []Limits{
		{UnvalidatedBytes: 1 << 32}, {UnvalidatedRatio: 1001}, {JoinerDatagrams: 1 << 40}, {HostDatagrams: 8_000_001},
		{JoinerBytes: 1 << 31}, {HostBytes: 1 << 62},
	} {
		if s, err := New(Config{Limits: l}, testIdentity(t)); err == nil {
			s.Close()
			t.Errorf("New accepted %+v", l)
		}
	}
	s, err := New(Config{}, testIdentity(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := s.shared.limits.Load()
	if err := s.SetLimits(Limits{UnvalidatedBytes: 1 << 32}); err == nil || s.shared.limits.Load() != before {
		t.Errorf("SetLimits: %v", err)
	}
	if err := s.SetLimits(Limits{UnvalidatedBytes: -1, UnvalidatedRatio: -1}); err != nil {
		t.Error(err)
	}
}
