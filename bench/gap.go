package bench

import "time"

// Gaps has the longest times without a delivery in the measured interval, beyond the time
// in which nothing was due: what a player of a game sees of a restart of the relay.
type Gaps struct {
	Longest   time.Duration `json:"longestNs"`  // without a delivery to any endpoint
	Endpoint  time.Duration `json:"endpointNs"` // the longest of a single endpoint
	Endpoints uint64        `json:"endpoints"`  // to which datagrams were due
	Over      uint64        `json:"over"`       // of those, with one of more than GapOver
}

// GapOver is the time above which Gaps.Over counts an endpoint.
const GapOver = time.Second

// gap is the longest time without a delivery. Times are ns of sock.Now.
type gap struct {
	last    int64 // delivery; neverSent: none is due
	due     int64 // the longest time between two that are due
	longest int64 // beyond due
	used    bool  // some were due
}

// start begins the first gap at now, between deliveries that are due at most a time apart.
func (p *gap) start(now, due int64) { p.last, p.due, p.used = now, due, true }

// stop ends the last gap at now.
func (p *gap) stop(now, from, to int64) {
	p.deliver(now, from, to)
	p.last = neverSent
}

// deliver ends a gap. Only the time from one time to another counts.
func (p *gap) deliver(now, from, to int64) {
	if p.last == neverSent {
		return
	}
	p.longest = max(p.longest, min(now, to)-max(p.last, from)-p.due)
	p.last = now
}

// gaps has the gap of all deliveries and that of each endpoint. The generator's goroutine owns it.
type gaps struct {
	all       gap
	endpoints []gap
}

// newGaps returns the gaps of a run. In a closed loop nothing is due at a time.
func newGaps(g *generator) gaps {
	p := gaps{all: gap{last: g.start}, endpoints: make([]gap, len(g.rig.Endpoints))}
	for i := range p.endpoints {
		p.endpoints[i].last = neverSent
	}
	if g.cfg.Traffic != nil {
		p.setTrafficGaps(g)
		return p
	}
	live := g.flows[:g.cfg.liveFlows(&g.rig.Plan)]
	for i := range live {
		p.endpoints[live[i].to].start(g.start, 0)
	}
	s, ok := g.schedule.(*tickSchedule)
	if !ok {
		return p
	}
	before, of := int64(0), make([]int64, len(p.endpoints))
	for tick := range int64(2) { // The second has those of the first before it.
		for i := range live {
			at, ep := s.due(tick, i), live[i].to
			if tick > 0 {
				p.all.due = max(p.all.due, at-before)
				p.endpoints[ep].due = max(p.endpoints[ep].due, at-of[ep])
			}
			before, of[ep] = at, at
		}
	}
	return p
}

// deliverGap ends the gaps of a delivery to an endpoint.
func (g *generator) deliverGap(ep int32, now int64) {
	g.gaps.all.deliver(now, g.measure, g.end)
	g.gaps.endpoints[ep].deliver(now, g.measure, g.end)
}

// reportGaps returns the gaps of a run that ended at a time, nil if nothing was due.
func (g *generator) reportGaps(end int64) *Gaps {
	if g.cfg.Rate == 0 && g.cfg.Window == 0 || end <= g.measure {
		return nil
	}
	g.gaps.all.deliver(end, g.measure, end)
	r := &Gaps{Longest: time.Duration(g.gaps.all.longest)}
	for i := range g.gaps.endpoints {
		p := &g.gaps.endpoints[i]
		if !p.used {
			continue
		}
		p.deliver(end, g.measure, end)
		r.Endpoints++
		r.Endpoint = max(r.Endpoint, time.Duration(p.longest))
		if p.longest > int64(GapOver) {
			r.Over++
		}
	}
	return r
}
