package engine

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestAllocs: forwarding, PING and every drop and refusal in a worker allocate
// nothing, in either address family.
func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	ident := newIdentity(t)
	for _, c := range outcomeCases {
		t.Run(c.want.String()+"/"+c.name, func(t *testing.T) {
			s := newMatch(t, ident)
			from, pkt := c.make(s)
			w, ep := s.workers[workerOf(max(from, 0))], endpointAt(from)
			allocs := testing.AllocsPerRun(100, func() {
				w.handleDatagram(s.now, ep, pkt, c.truncated)
				w.out.reset()
				w.inbox.clear()
			})
			if allocs != 0 {
				t.Errorf("%v allocations per datagram", allocs)
			}
		})
	}
}

// clear empties the rings, as if control had decided.
func (b *inbox) clear() {
	for q := range b.rings {
		b.rings[q].head.Store(b.rings[q].tail.Load())
		for i := range b.queued[q] {
			b.queued[q][i].Store(0)
		}
	}
}

// TestAllocsIPv6 is TestAllocs for a match over IPv6.
func TestAllocsIPv6(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newMatch(t, newIdentity(t))
	const v6 = 8
	s.datagram(v6, signed(s.joiner1(), 6, s.joiner1().key))
	s.datagram(atHost, pingMessage(s.hostData().id)) // or little may go to it
	w, ep := s.workers[workerOf(v6)], endpoint.UDP(simAddrs[v6], 0, 0)
	s.shared.limits.Store(rates(table.NewQuota(1<<20, 1<<30), table.Quota{}))
	for name, pkt := range map[string][]byte{
		"relay": relayMessage(s.joiner1().id, s.hostData().id, 100), "ping": pingMessage(s.joiner1().id),
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if o := w.handleDatagram(s.now, ep, pkt, false); o != OutRelayed && o != OutPong {
				t.Fatalf("%s: %v", name, o)
			}
			w.out.reset()
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations per datagram", name, allocs)
		}
	}
}

// TestAllocsCommit: control's verdict on a BIND allocates nothing once its
// queue has grown.
func TestAllocsCommit(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newMatch(t, newIdentity(t))
	s.control.out.deliver = func([]sessionDatagram) (r sock.SendResult) { return r }
	w := s.workers[workerOf(atJoiner1)]
	pkt, ep := signed(s.joiner1(), 6, s.joiner1().key), endpoint.UDP(simAddrs[atJoiner1], 0, 0)
	allocs := testing.AllocsPerRun(100, func() {
		w.handleDatagram(s.now, ep, pkt, false)
		s.control.runOnce(s.now)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per BIND", allocs)
	}
}

func BenchmarkStep(b *testing.B) {
	for _, c := range []struct {
		name string
		make func(s *sim) (int, []byte)
	}{
		{"RelayToHost", func(s *sim) (int, []byte) { return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 112) }},
		{"RelayToJoiner", func(s *sim) (int, []byte) { return atHost, relayMessage(s.hostData().id, s.joiner1().id, 112) }},
		{"Ping", func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
		{"JunkBind", func(s *sim) (int, []byte) {
			pkt := signed(s.joiner1(), 6, s.joiner1().key)
			pkt[99] ^= 1
			return atJoiner1, pkt
		}},
		{"WrongMAC", func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 6, s.hostData().key) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newMatch(b, newIdentity(b))
			generous := table.NewQuota(1<<30, 1<<40) // metered, but never refused
			s.shared.limits.Store(rates(generous, generous))
			s.datagram(atHost, pingMessage(s.hostData().id)) // or little may go to it
			from, pkt := c.make(s)
			w, ep := s.workers[workerOf(max(from, 0))], endpointAt(from)
			b.ReportAllocs()
			for b.Loop() {
				w.count(w.handleDatagram(s.now, ep, pkt, false), len(pkt))
				w.out.reset()
			}
			if sent := w.counts.outcomes[OutRelayed]; sent == 0 && strings.HasPrefix(c.name, "Relay") {
				b.Error("nothing was relayed")
			}
		})
	}
}

// BenchmarkAdmission is an honest BIND, from the datagram to the reply: the
// worker's part and control's.
func BenchmarkAdmission(b *testing.B) {
	s := newMatch(b, newIdentity(b))
	s.control.out.deliver = func([]sessionDatagram) (r sock.SendResult) { return r }
	w := s.workers[workerOf(atJoiner1)]
	ep := endpoint.UDP(simAddrs[atJoiner1], 0, 0)
	pkt := signed(s.joiner1(), 6, s.joiner1().key)
	b.Run("SameEndpoint", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.handleDatagram(s.now, ep, pkt, false)
			s.control.runOnce(s.now)
		}
	})
	b.Run("WorkerPart", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.handleDatagram(s.now, ep, pkt, false)
			w.inbox.clear()
		}
	})
}

// rates returns limits with the quotas of joiners and hosts, and 1 MiB for an
// endpoint whose path is not validated.
func rates(joiner, host table.Quota) *limitRates {
	return &limitRates{quotas: [4]table.Quota{table.RoleJoiner: joiner, table.RoleHost: host}, unvalidated: 1 << 20}
}
