package bench

import (
	"github.com/ferryrelay/ferry/internal/benchrig"
)

// schedule says when each datagram of an open loop is due. Nothing that happens in a run
// can change it, so that a slow server cannot reduce the load. The generator's goroutine
// owns its position; before may run beside it.
type schedule interface {
	// next returns the datagram that is due next.
	next() scheduled
	// advance goes on to the one after it.
	advance()
	// before counts the datagrams that are due before end.
	before(end int64) uint64
}

type scheduled struct {
	due        int64 // ns of sock.Now
	flow, size int   // place in the schedule, bytes of the payload
}

func newSchedule(cfg *Config, start int64, p *benchrig.Plan) schedule {
	switch {
	case cfg.traffic != nil:
		return newTrafficSchedule(cfg, start)
	case cfg.Rate > 0:
		return newTickSchedule(start, cfg.Rate, cfg.Payload, p.Flows[:cfg.liveFlows(p)])
	}
	return nil
}

// tickSchedule lets flows take turns in a tick of flows/rate seconds. Groups of flows begin
// evenly spread over the tick, and the flows of a group are due together.
type tickSchedule struct {
	start int64   // ns of sock.Now; datagram 0 is due then
	tick  float64 // ns
	phase []int64 // of each flow in the tick, ns, rising
	size  int     // of each payload

	ticks int64 // of the datagram that is due next
	flow  int
}

func newTickSchedule(start int64, rate float64, size int, links []benchrig.Link) *tickSchedule {
	s := &tickSchedule{start: start, tick: float64(len(links)) / rate * 1e9, phase: make([]int64, len(links)), size: size}
	groups := float64(links[len(links)-1].Group + 1)
	for i, l := range links {
		s.phase[i] = int64(s.tick * float64(l.Group) / groups)
	}
	return s
}

func (s *tickSchedule) due(tick int64, flow int) int64 {
	return s.start + int64(float64(tick)*s.tick) + s.phase[flow]
}

func (s *tickSchedule) next() scheduled { return scheduled{s.due(s.ticks, s.flow), s.flow, s.size} }

func (s *tickSchedule) advance() {
	if s.flow++; s.flow == len(s.phase) {
		s.flow = 0
		s.ticks++
	}
}

func (s *tickSchedule) before(end int64) uint64 {
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
