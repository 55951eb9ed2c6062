package engine

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

// BenchmarkBatch is what a worker does for a RELAY, per datagram, but for the
// kernel's part: senders in random order, of as many pairs as the name says,
// and batches of that size. With many pairs the table is larger than the caches.
func BenchmarkBatch(b *testing.B) {
	for _, pairs := range []int{200, 10_000, 100_000} {
		for _, size := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%d/%d", pairs, size), func(b *testing.B) { newStage(b, pairs).play(b, size) })
		}
	}
	b.Run("metered/200/64", func(b *testing.B) {
		s := newStage(b, 200)
		generous := table.NewQuota(1<<30, 1<<40)
		s.w.shared.limits.Store(rates(generous, generous))
		s.play(b, 64)
	})
}

type stage struct {
	w     *worker
	pairs uint64
	dice  uint64
	slots []byte
}

func newStage(b *testing.B, pairs int) *stage {
	b.Helper()
	r := newRig(b, Config{Unlimited: true, MaxAllocations: 2 * pairs})
	group, err := sock.Listen(sock.Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { group.Close() })
	s := &stage{w: r.workers[0], pairs: uint64(pairs), dice: 1, slots: make([]byte, 64*sock.SlotSize)}
	s.w.shared.clock = newClock(sock.Now())
	s.w.out.tx = []*sock.SendBatch{group.Conns()[0].NewSendBatch(64)}
	for i := range pairs {
		host, joiner := s.enter(b, 2*i, table.RoleHost), s.enter(b, 2*i+1, table.RoleJoiner)
		s.w.shared.table.Link(joiner, host)
	}
	return s
}

func (s *stage) enter(b *testing.B, n int, role table.Role) table.Handle {
	h, err := s.w.shared.table.Reserve(table.Spec{ID: stageID(uint64(n)), Role: role}, 0)
	if err != nil {
		b.Fatal(err)
	}
	s.w.shared.table.Bind(h, udpN(n))
	return h
}

// stageID is the id of allocation n; its partner is n with the lowest bit flipped.
func stageID(n uint64) (id proto.AllocationID) {
	binary.LittleEndian.PutUint64(id[:8], (n+1)*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(id[8:], (n+1)*0xBF58476D1CE4E5B9)
	return id
}

func (s *stage) arrive(slot int) (from endpoint.Endpoint, pkt []byte) {
	n := s.roll(2 * s.pairs)
	return s.put(slot, route{n, n ^ 1})
}

func (s *stage) play(b *testing.B, size int) {
	w, tx := s.w, s.w.out.tx[0]
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += size {
		w.epoch.enter()
		now := w.shared.clock()
		for slot := range size {
			from, pkt := s.arrive(slot)
			w.count(w.handleDatagram(now, from, pkt, false), len(pkt))
		}
		sent := sock.SendResult{Sent: tx.Len(), Bytes: tx.Len() * 150}
		tx.Reset()
		w.out.reset()
		w.epoch.leave()
		w.finishBatch(now, size, sent)
	}
	b.StopTimer()
	if w.counts.outcomes[outRelayed] < uint64(b.N) {
		b.Errorf("%d of %d datagrams were relayed", w.counts.outcomes[outRelayed], b.N)
	}
}
