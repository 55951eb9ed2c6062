package engine

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

// BenchmarkTwoWorkers is BenchmarkBatch for two workers at once, each on a processor of
// its own, per datagram of one worker and with quotas: it shows what a worker pays for
// the lines that the other one writes. In "apart" each player of a match is on another
// worker, in "together" all are on the same one.
func BenchmarkTwoWorkers(b *testing.B) {
	if runtime.GOMAXPROCS(0) < 2 {
		b.Skip("needs two processors")
	}
	for _, c := range []struct {
		name             string
		matches, joiners int
	}{{"pair", 1, 1}, {"pairs", 200, 1}, {"star", 1, 20}, {"stars", 20, 10}} {
		b.Run(c.name+"/apart", func(b *testing.B) { playTwo(b, c.matches, c.joiners, true) })
		b.Run(c.name+"/together", func(b *testing.B) { playTwo(b, max(2, c.matches), c.joiners, false) })
	}
}

type route struct{ from, to uint64 }

func playTwo(b *testing.B, matches, joiners int, apart bool) {
	r := newRig(b, Config{Unlimited: true, MaxAllocations: matches * (joiners + 1)})
	group, err := sock.Listen(sock.Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { group.Close() })
	r.shared.clock = newClock(sock.Now())
	generous := table.NewQuota(1<<30, 1<<40)
	r.shared.limits.Store(rates(generous, generous))
	var routes [2][]route
	reserve := &stage{w: r.workers[0]}
	for m := range matches {
		host := uint64(m * (joiners + 1))
		h := reserve.enter(b, int(host), table.RoleHost)
		for j := 1; j <= joiners; j++ {
			joiner := host + uint64(j)
			r.shared.table.Link(reserve.enter(b, int(joiner), table.RoleJoiner), h)
			atHost, atJoiner := m%2, m%2
			if apart {
				atJoiner = (m + j) % 2
			}
			routes[atHost] = append(routes[atHost], route{host, joiner})
			routes[atJoiner] = append(routes[atJoiner], route{joiner, host})
		}
	}
	onTwo(b, func(i int) { relayRoutes(b, r.workers[i], group.Conns()[0].NewSendBatch(64), routes[i]) })
}

func onTwo(b *testing.B, do func(i int)) {
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range 2 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			do(i)
		})
	}
	wg.Wait()
}

func relayRoutes(b *testing.B, w *worker, tx *sock.SendBatch, routes []route) {
	const size = 16
	s := &stage{w: w, dice: 1, slots: make([]byte, size*sock.SlotSize)}
	w.out.tx = []*sock.SendBatch{tx}
	for n := 0; n < b.N; n += size {
		w.epoch.enter()
		now := w.shared.clock()
		for slot := range size {
			from, pkt := s.put(slot, routes[s.roll(uint64(len(routes)))])
			w.count(w.handleDatagram(now, from, pkt, false), len(pkt))
		}
		sent := sock.SendResult{Sent: tx.Len(), Bytes: tx.Len() * 150}
		tx.Reset()
		w.out.reset()
		w.epoch.leave()
		w.finishBatch(now, size, sent)
	}
	if w.counts.outcomes[outRelayed] < uint64(b.N) {
		b.Errorf("%d of %d datagrams were relayed", w.counts.outcomes[outRelayed], b.N)
	}
}

func (s *stage) roll(n uint64) uint64 {
	s.dice ^= s.dice << 13
	s.dice ^= s.dice >> 7
	s.dice ^= s.dice << 17
	return s.dice >> 32 * n >> 32
}

func (s *stage) put(slot int, r route) (from endpoint.Endpoint, pkt []byte) {
	pkt = s.slots[slot*sock.SlotSize:][:150:150]
	binary.BigEndian.PutUint32(pkt, 0xDA72<<16|proto.Version<<8|uint32(proto.TypeRelay))
	from16, to16 := stageID(r.from), stageID(r.to)
	copy(pkt[4:], from16[:])
	copy(pkt[20:], to16[:])
	binary.BigEndian.PutUint16(pkt[36:], 112)
	e := udpN(0)
	e.Lo += r.from
	return e, pkt
}
