//go:build lab && linux

package lab

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// victim counts what the relay sends to a victim, by the rate limits that
// apply: the ERROR budget of a source prefix, and that of ERROR 3 for a live
// allocation.
type victim struct {
	l                 *lab
	received          *Counter
	begin             time.Time
	byPrefix, byNamed int // datagrams so far
}

func (l *lab) victim() *victim {
	l.Helper()
	return &victim{l: l, received: l.counter(l.net.Victim, netip.Prefix{}), begin: time.Now()}
}

// count adds n datagrams and returns the total under the same rate limit, and
// the limit.
func (v *victim) count(n int, named bool) (all, limit int) {
	since := time.Since(v.begin).Seconds()
	if named {
		v.byNamed += n
		return v.byNamed, 5 + int(5*since) + 1
	}
	v.byPrefix += n
	return v.byPrefix, 20 + int(10*since) + 1
}

func (v *victim) record(attack string) {
	v.l.Helper()
	h, since := v.received.Received(), time.Since(v.begin)
	recordAttack(v.l.T, attackResult{
		attack: attack, rate: "50000 datagrams/s",
		honest: fmt.Sprintf("%d datagrams and %d bytes to the victim in %v", h.Datagrams, h.Bytes, since.Round(time.Second)),
	})
}

// TestReflection verifies that messages with the victim's address as forged
// source cause few replies, each smaller than the message.
func TestReflection(t *testing.T) {
	l := newLab(t, nil)
	f, _ := l.fleet(l.players(1, 5))
	live := f.players[0].id
	bind, ticket := f.Captured()[0], f.players[1].hostConnectionData
	wrong := proto.Relay{From: live, To: live}.Append(nil)
	wrong[2] = 1
	v := l.victim()
	for _, c := range []reflection{
		{"PING", proto.Ping{Number: 1}.Append(nil), true, false},
		{"PING of a live allocation", proto.Ping{ID: live, Number: 1}.Append(nil), true, true},
		{"RELAY", proto.Relay{From: live, To: live, Payload: make([]byte, 64)}.Append(nil), true, true},
		{"CONNECT_REQUEST", proto.ConnectRequest{ID: live, ConnectionData: ticket}.Append(nil), true, true},
		{"DISCONNECT", proto.Disconnect{From: live, To: f.players[1].id}.Append(nil), true, true},
		{"CLOSE", proto.Close{ID: live}.Append(nil), false, true},
		{"replayed BIND", bind, false, true},
		{"another version", wrong, true, false},
	} {
		l.reflect(c, v)
	}
	l.requireNoFailures(f.Counts())
	if n := l.metric(datagramsOut); n == 0 {
		t.Error("the relay sent nothing at all")
	}
	v.record("reflection of ERRORs")
}

func TestReflectionAfterRestart(t *testing.T) {
	l := newLab(t, nil)
	f, _ := l.fleet(l.players(20, 5))
	l.relay.Kill()
	l.start()
	l.requireTraffic(f, 10*time.Second)
	var unknown [16]byte
	fill(l.rng, unknown[:])
	wrong := proto.Relay{}.Append(nil)
	wrong[2] = 1
	v := l.victim()
	l.reflect(reflection{"PING", proto.Ping{ID: unknown, Number: 1}.Append(nil), true, false}, v)
	l.reflect(reflection{"RELAY", proto.Relay{From: unknown, To: f.players[0].id, Payload: make([]byte, 64)}.Append(nil), true, false}, v)
	l.reflect(reflection{"PING of a recovered allocation", proto.Ping{ID: f.players[0].id, Number: 1}.Append(nil), true, true}, v)
	l.reflect(reflection{"another version", wrong, true, false}, v)
	if n := l.metric("ferry_recovery_rebuilt_total"); n == 0 {
		t.Error("no allocation was recovered: there was no window to test")
	}
	l.requireNoFailures(f.Counts())
	v.record("reflection of ERRORs after a restart")
}

// reflection is a message that is sent with the victim's source address.
type reflection struct {
	name    string
	message []byte
	replies bool // the relay may reply
	named   bool // it names a live allocation
}

func (l *lab) reflect(c reflection, v *victim) {
	l.Helper()
	l.Run(c.name, func(t *testing.T) {
		l := l.with(t)
		before := v.received.Received().Datagrams
		packet := AppendIPv4UDP(nil, netip.AddrPortFrom(VictimAddr, 1024), RelayAddr, c.message)
		o := l.flood(50_000, 400*time.Millisecond, func(n uint64) []byte {
			SetSource(packet, netip.AddrPortFrom(VictimAddr, uint16(1024+n%60_000)))
			return packet
		})
		l.waitDrained(l.net.Relay)
		time.Sleep(200 * time.Millisecond)
		h := v.received.Received()
		got := h.Datagrams - before
		all, limit := v.count(got, c.named)
		t.Logf("%d forged, the victim got %d datagrams of at most %d bytes; %d of this budget, limit %d", o.Sent, got, h.Largest, all, limit)
		if all > limit {
			t.Errorf("the victim got %d datagrams, limit %d: %v", all, limit, h.Types)
		}
		if got > 0 && h.Largest >= len(c.message) {
			t.Errorf("a reply of %d bytes to a message of %d", h.Largest, len(c.message))
		}
		if !c.replies && got > 0 {
			t.Errorf("it must not be answered, got %v", h.Types)
		}
		if h.Foreign > 0 {
			t.Errorf("%d datagrams from elsewhere than the relay's address", h.Foreign)
		}
	})
}

// TestLoops verifies that a datagram with the source address of this relay or
// another causes at most one more datagram.
func TestLoops(t *testing.T) {
	l := newLab(t, nil)
	for _, knob := range []string{"all", LinkClients, LinkVictim} {
		if err := l.net.Relay.Set("net.ipv4.conf."+knob+".accept_local", "1"); err != nil {
			t.Fatal(err)
		}
	}
	other, err := StartRelay(RelayConfig{
		Network: l.net, Binary: ferry, Dir: t.TempDir(), In: l.net.Victim, Addr: netip.AddrPortFrom(VictimAddr, relayPort),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Kill)
	mine := l.allocateHost(l.relay.API(l.net.Clients, 0))
	s := l.spoofer(l.net.Clients)
	for _, source := range []netip.AddrPort{RelayAddr, netip.AddrPortFrom(VictimAddr, relayPort)} {
		for i, m := range l.loopMessages(mine) {
			in, out := l.foreignDatagrams()
			if err := s.Send(AppendIPv4UDP(nil, source, RelayAddr, m)); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "it is taken", func() bool { now, _ := l.foreignDatagrams(); return now > in })
			l.waitDrained(l.net.Relay, l.net.Victim)
			time.Sleep(50 * time.Millisecond)
			gotIn, gotOut := l.foreignDatagrams()
			gotIn, gotOut = gotIn-in, gotOut-out
			if gotIn > 2 || gotOut > 1 {
				t.Errorf("message %d (%x…) from %v: the relay took %.0f and sent %.0f", i, m[:4], source, gotIn, gotOut)
			}
		}
	}
	all, err := other.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the other relay took %.0f and sent %.0f", all[datagramsIn], all[datagramsOut])
	if all[datagramsOut] > all[datagramsIn] {
		t.Error("the other relay sent more than it took")
	}
}

// foreignDatagrams returns how many datagrams the relay has taken and sent, without those that
// it sends itself once a second to measure its own round trip.
func (l *lab) foreignDatagrams() (in, out float64) {
	l.Helper()
	testkit.Eventually(l, "two readings are the same", func() bool {
		beforeIn, beforeOut := in, out
		all, err := l.relay.Metrics()
		if err != nil {
			l.Fatal(err)
		}
		own := all[`ferry_outcomes_total{outcome="check"}`]
		in, out = all[datagramsIn]-own, all[datagramsOut]-own
		return in == beforeIn && out == beforeOut
	})
	return in, out
}

func (l *lab) allocateHost(c *api.Client) *player {
	l.Helper()
	a, err := c.Allocate(l.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		l.Fatal(err)
	}
	return newPlayer(a)
}

// loopMessages returns messages that could make a relay send to itself: a
// signed BIND, then all messages of a bound endpoint, then those of a relay.
func (l *lab) loopMessages(p *player) [][]byte {
	var signer proto.Signer
	p.Nonce++
	return append([][]byte{
		signer.Append(nil, proto.Bind{Nonce: p.Nonce, ConnectionData: p.data}, &p.key),
		proto.Ping{ID: p.id, Number: 1}.Append(nil),
		proto.Disconnect{From: p.id, To: p.id}.Append(nil),
		proto.Relay{From: p.id, To: p.id, Payload: []byte("round")}.Append(nil),
		proto.ConnectRequest{ID: p.id, ConnectionData: p.data}.Append(nil),
		proto.BindReceived{}.Append(nil),
		proto.Accepted{From: p.id, To: p.id}.Append(nil),
		proto.Rejected{From: p.id, To: p.id}.Append(nil),
		proto.Error{ID: p.id, Code: proto.ErrorMismatch}.Append(nil),
	}, Messages(l.rng)...)
}

// TestCleanupProcess verifies that the namespaces of a test that has died are
// removed with their processes.
func TestCleanupProcess(t *testing.T) {
	l := newLab(t, nil)
	sleeper, err := StartRelay(RelayConfig{
		Network: l.net, Binary: ferry, Dir: t.TempDir(), In: l.net.Victim, Addr: netip.AddrPortFrom(VictimAddr, relayPort),
	})
	if err != nil {
		t.Fatal(err)
	}
	only := []string{l.net.Victim.Name}
	j, err := startCleanupProcess(only)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Finish(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the process is killed", func() bool { return !sleeper.Alive() })
	if left, _ := filepath.Glob(netnsDir + l.net.Victim.Name); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
	if !l.relay.Alive() {
		t.Error("another namespace was touched")
	}
}
