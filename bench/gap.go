package bench

import "time"

// Gaps has the longest times of the measured interval in which something was due and nothing was
// delivered: what a player of a game sees of a restart of the relay.
type Gaps struct {
	Longest   time.Duration `json:"longestNs"`  // without a delivery to any endpoint
	Endpoint  time.Duration `json:"endpointNs"` // the longest of a single endpoint
	Endpoints uint64        `json:"endpoints"`  // to which datagrams were due
	Over      uint64        `json:"over"`       // of those, with one of more than 1 s
	Absent    uint64        `json:"absent"`     // of those, to which nothing was delivered in the whole run
}

// gapOver is the time above which Gaps.Over counts an endpoint.
const gapOver = time.Second

// gap is the longest time from when a datagram was due until one was delivered. Times are ns of sock.Now.
type gap struct {
	due     int64 // the first since the last delivery; 0: none
	last    int64 // delivery
	longest int64
	used    bool // some were due
}

func (p *gap) expect(due int64) {
	if p.used = true; p.due == 0 {
		p.due = max(due, p.last)
	}
}

// deliver ends a gap. Only the time until end counts.
func (p *gap) deliver(now, end int64) {
	if p.due != 0 {
		p.longest = max(p.longest, min(now, end)-p.due)
	}
	p.due, p.last = 0, now
}

type gaps struct {
	all       gap
	endpoints []gap
}

func (r *recorder) expectDelivery(ep int32, due int64) {
	if r.portionOf(due) != nil {
		r.gaps.all.expect(due)
		r.gaps.endpoints[ep].expect(due)
	}
}

func (r *recorder) deliverGap(ep int32, now int64) {
	r.gaps.all.deliver(now, r.times.end)
	r.gaps.endpoints[ep].deliver(now, r.times.end)
}

func (r *recorder) reportGaps(end int64) *Gaps {
	r.gaps.all.deliver(end, end)
	report := &Gaps{Longest: time.Duration(r.gaps.all.longest)}
	for i := range r.gaps.endpoints {
		p := &r.gaps.endpoints[i]
		if !p.used {
			continue
		}
		if p.last == 0 {
			report.Absent++
		}
		p.deliver(end, end)
		report.Endpoints++
		report.Endpoint = max(report.Endpoint, time.Duration(p.longest))
		if p.longest > int64(gapOver) {
			report.Over++
		}
	}
	return report
}
