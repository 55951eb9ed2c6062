package bench

// schedule says when each datagram of an open loop is due. It is a pure
// function of the number of a datagram: nothing that happens in a run can
// move it, so that a slow server cannot make the generator ask for less.
//
// Flows take turns in a tick of flows/rate seconds. Groups of flows begin
// evenly spread over the tick, and the flows of a group are due together.
type schedule struct {
	start int64   // ns of sock.Now; datagram 0 is due then
	tick  float64 // ns
	phase []int64 // of each flow in the tick, ns, rising
}

// newSchedule spreads rate datagrams per second over the links, whose groups
// are numbered from 0 and rise. The rate must be above 0.
func newSchedule(start int64, rate float64, links []Link) schedule {
	s := schedule{start: start, tick: float64(len(links)) / rate * 1e9, phase: make([]int64, len(links))}
	groups := float64(links[len(links)-1].Group + 1)
	for i, l := range links {
		s.phase[i] = int64(s.tick * float64(l.Group) / groups)
	}
	return s
}

// due returns the time of a flow's turn in a tick.
func (s *schedule) due(tick int64, flow int) int64 {
	return s.start + int64(float64(tick)*s.tick) + s.phase[flow]
}

// before counts the datagrams that are due before end.
func (s *schedule) before(end int64) uint64 {
	if end <= s.start {
		return 0
	}
	tick := max(int64(float64(end-s.start)/s.tick)-1, 0)
	n := tick * int64(len(s.phase))
	for ; ; tick++ {
		for flow := range s.phase {
			if s.due(tick, flow) >= end {
				return uint64(n)
			}
			n++
		}
	}
}
