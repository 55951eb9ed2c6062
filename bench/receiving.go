package bench

import (
	"fmt"

	"github.com/ferryrelay/ferry/internal/sock"
)

// receive takes what has arrived on all sockets and returns how many datagrams
// that were.
func (g *generator) receive() (int, error) {
	total := 0
	for i, s := range g.rig.Sockets {
		for range rounds {
			n, err := s.Conn.TryRecv(s.rx)
			if err != nil {
				return total, fmt.Errorf("bench: socket %d: %w", i, err)
			}
			if n == 0 {
				break
			}
			g.take(int32(i), s, n, sock.Now())
			total += n
			if n < g.cfg.Batch {
				break
			}
		}
	}
	return total, nil
}

// take accounts for the n datagrams of a batch, all of which arrived at now.
func (g *generator) take(socket int32, s *Socket, n int, now int64) {
	if now >= g.measure && now < g.end {
		g.count.recvCalls++
		g.count.recvSlots += uint64(n)
	}
	if g.play != nil {
		g.takePlay(s, n, now)
		return
	}
	for i := range n {
		to, pkt, truncated := s.rx.At(i)
		pkt = g.rig.decrypt(s.owner(to.Local()), pkt)
		st, ok := parseStamp(pkt[min(s.Offset, len(pkt)):])
		if !ok || st.run != g.run || int(st.flow) >= len(g.flows) {
			g.explain(pkt, ok, s.owner(to.Local()), now)
			continue
		}
		g.count.arrived++
		f := &g.flows[st.flow]
		switch {
		case f.arrives != socket || f.local != to.Local():
			g.count.misdelivered += g.measured(st.due)
		case truncated || len(pkt) != int(f.size):
			g.count.corrupt += g.measured(st.due)
		default:
			g.account(f, &st, now)
		}
	}
}

// measured is 1 for a datagram of the measured interval and 0 for others.
func (g *generator) measured(due int64) uint64 {
	if g.portionOf(due) != nil {
		return 1
	}
	return 0
}

// account notes the arrival of a datagram where it was meant to arrive, and
// reports whether it was the first of its number.
func (g *generator) account(f *flow, st *stamp, now int64) bool {
	p, one := g.portionOf(st.due), g.measured(st.due)
	credit := st.seq + 1 - f.window.next
	switch f.window.arrive(st.seq, f.seq) {
	case arrivedTwice:
		g.count.duplicated += one
		return false
	case arrivedLate:
		g.count.late += one
		return false
	case arrivedForeign:
		g.count.corrupt += one
		return false
	case arrivedReordered:
		g.count.reordered += one
		credit = 0 // given when it was overtaken
	}
	g.count.allDelivered++
	g.now.delivered++
	record(g.now.latency, now-st.due)
	if p != nil {
		p.delivered++
		record(p.latency, now-st.due)
	}
	if g.cfg.Window > 0 {
		g.loop.heard(f, int32(st.flow), credit, now)
	}
	return true
}

// explain notes what is no datagram of this run and came to endpoint ep. What
// has a stamp is a straggler of an earlier one.
func (g *generator) explain(pkt []byte, stamped bool, ep int32, now int64) {
	name := "foreign"
	switch {
	case stamped:
		name = "straggler"
	case g.rig.Explain != nil:
		name = g.rig.Explain(pkt)
	}
	switch name {
	case "":
	case Answer:
		g.count.bindsAnswered++
		g.binds.answered(int(ep), now)
	default:
		g.errors[name]++
	}
}
