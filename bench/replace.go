package bench

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

const (
	// spareTime is how many seconds of departures have endpoints of their own: an
	// endpoint is used again when its allocation has ended, by default 10 to 11 s
	// after it fell silent.
	spareTime = 20
	// replaceWorkers bounds concurrent calls of the API.
	replaceWorkers = 16
	// newMatches bounds the reserved matches that wait for the generator.
	newMatches = 256
	// arrivalTimeout is the time, in ns, in which a new match has to become ready, and
	// endTimeout that after which an allocation that fell silent counts as not ended.
	arrivalTimeout = int64(8 * time.Second)
	endTimeout     = int64(60 * time.Second)
	// neverSent is a time of sock.Now for endpoints that need no keep-alive.
	neverSent = math.MaxInt64
)

type matchState uint8

const (
	matchFree     matchState = iota // it has endpoints and no allocations
	matchArriving                   // its endpoints bind and connect
	matchLive                       // its flows are in the schedule
	matchSilent                     // it fell silent, and its allocations have not ended
	matchGivenUp                    // it did not become ready; some of its allocations may live
)

type matchSlot struct {
	state    matchState
	since    int64          // ns; when it fell silent, or was given up
	unended  int32          // endpoints whose allocation has not ended since then
	arriving *arrivingMatch // in matchArriving
}

type newMatch struct {
	due      int64 // ns of sock.Now
	arrivals []benchrig.Arrival
}

type arrivingEndpoint struct {
	benchrig.Arrival
	sent            int64 // ns; the last BIND or CONNECT_REQUEST
	bound, accepted bool
}

type arrivingMatch struct {
	match      int32
	due, begin int64 // ns; when it was due, and when it sent its first BIND
	endpoints  []arrivingEndpoint
	waiting    int // players that are not accepted
}

type silentMatch struct {
	match int32
	at    int64
}

// replacer replaces live matches by new ones: one falls silent, without a message, when a new
// one is ready. The generator's goroutine owns it.
type replacer struct {
	rig      *benchrig.Rig
	times    *phases
	recorder *recorder
	sender   *sender
	reserver *matchReserver

	perEnd  int // endpoints of a match
	perFlow int // flows of a match

	live       rotation
	slots      []matchSlot
	ended      []bool  // by endpoint
	lastActive []int64 // by endpoint: ns; when it last sent or was sent to; 0: during set-up
	free       []int32
	arriving   []*arrivingMatch
	timeouts   []silentMatch // in order
	lastCheck  int64

	result           replacement
	bind, ready, end *hdrhistogram.Histogram
}

func newReplacer(cfg *Config, d benchrig.Dialect, g *generator) *replacer {
	dialect, ok := d.(benchrig.Replacer)
	if cfg.ReplaceRate == 0 || !ok {
		return nil
	}
	p := &g.rig.Plan
	r := &replacer{
		rig: g.rig, times: &g.times, recorder: g.recorder, sender: &g.sender,
		reserver: newMatchReserver(dialect, p.Players, cfg.ReplaceRate),
		perEnd:   1 + p.Players, perFlow: len(p.Flows) / p.Matches,
		slots: make([]matchSlot, p.Matches), ended: make([]bool, p.Len()), lastActive: make([]int64, p.Len()),
		bind: newHistogram(3), ready: newHistogram(3), end: newHistogram(3),
	}
	r.live.stride = strideOf(p.Matches - p.Spare)
	for m := range int32(p.Matches) {
		if int(m) < p.Matches-p.Spare {
			r.live.matches, r.slots[m].state = append(r.live.matches, m), matchLive
		} else {
			r.free = append(r.free, m)
		}
	}
	return r
}

// rotation has the live matches, and the order in which they are replaced.
type rotation struct {
	matches []int32 // by position in the schedule
	next    int     // position that is replaced next
	stride  int     // to the one after it
}

func (r *rotation) replace(match int32) (old int32) {
	old, r.matches[r.next] = r.matches[r.next], match
	r.next = (r.next + r.stride) % len(r.matches)
	return old
}

// strideOf returns a step that leads through n positions before it returns, far from one
// to the next: keep-alives are spread over neighbours, and of neighbours that fall silent
// one after the other all allocations would end at nearly the same time.
func strideOf(n int) int {
	for step := n*5/8 + 1; ; step++ {
		a, b := n, step
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 {
			return step
		}
	}
}

type matchReserver struct {
	dialect  benchrig.Replacer
	players  int
	rate     float64       // per second
	reserved chan newMatch // for the replacer

	offered, refused atomic.Uint64

	mu      sync.Mutex // guards the following fields
	latency *hdrhistogram.Histogram
	lag     *hdrhistogram.Histogram // of calls for which a worker waited
	reason  string                  // of the first refusal
}

func newMatchReserver(d benchrig.Replacer, players int, rate float64) *matchReserver {
	return &matchReserver{dialect: d, players: players, rate: rate, reserved: make(chan newMatch, newMatches), latency: newHistogram(3),
		lag: newHistogram(3)}
}

// Run makes the calls between two times of sock.Now, whose zero is epoch.
func (r *matchReserver) Run(ctx context.Context, epoch time.Time, from, end int64) {
	callAtRate(ctx, replaceWorkers, r.rate, epoch.Add(time.Duration(from)), epoch.Add(time.Duration(end)), func(due, begin time.Time) {
		r.offered.Add(1)
		if begin.Before(due) {
			r.mu.Lock()
			record(r.lag, int64(time.Since(due)))
			r.mu.Unlock()
		}
		r.reserve(ctx, int64(due.Sub(epoch)))
	})
}

func (r *matchReserver) reserve(ctx context.Context, due int64) {
	begin := sock.Now()
	arrivals, err := r.dialect.NewMatch(ctx, r.players)
	took := sock.Now() - begin
	r.mu.Lock()
	if err == nil {
		record(r.latency, took)
	} else {
		r.reason = cmp.Or(r.reason, err.Error())
	}
	r.mu.Unlock()
	if err != nil {
		r.refused.Add(1)
		return
	}
	select {
	case r.reserved <- newMatch{due, arrivals}:
	case <-ctx.Done():
	}
}

// report fills in what became of the calls when Run has ended. Matches that wait have failed.
func (r *matchReserver) report(to *replacement) {
	to.Rate, to.Offered, to.Refused, to.Reason = r.rate, r.offered.Load(), r.refused.Load(), r.reason
	to.Failed += uint64(len(r.reserved))
	to.Reserve, to.Lag = newLatency(r.latency, to.Refused, false), newLatency(r.lag, 0, false)
}

func (r *replacer) flowAt(i int) int { return int(r.live.matches[i/r.perFlow])*r.perFlow + i%r.perFlow }

func (r *replacer) recordActive(flow int, due int64) {
	f := &r.rig.Flows[flow]
	r.lastActive[f.From], r.lastActive[f.To] = due, due
}

func (r *replacer) startMatches(now int64) (n int) {
	for range burst {
		select {
		case m := <-r.reserver.reserved:
			r.startMatch(&m, now)
			n++
		default:
			return n
		}
	}
	return n
}

func (r *replacer) startMatch(n *newMatch, now int64) {
	if len(r.free) == 0 {
		r.result.NoEndpoint++
		return
	}
	m := r.free[0]
	r.free = r.free[1:]
	a := &arrivingMatch{match: m, due: n.due, begin: now, waiting: r.perEnd - 1}
	first := int(m) * r.perEnd
	for i := range n.arrivals {
		ep := first + i
		if n.arrivals[i].Relay != r.rig.Endpoints[ep].Relay {
			r.recorder.errors["match on another relay"]++
			r.result.Failed++
			r.free = append(r.free, m)
			return
		}
		r.rig.Endpoints[ep].Keepalive = n.arrivals[i].Keepalive
		a.endpoints = append(a.endpoints, arrivingEndpoint{Arrival: n.arrivals[i], sent: now})
	}
	for i := int(m) * r.perFlow; i < int(m+1)*r.perFlow; i++ {
		f := &r.rig.Flows[i]
		r.reserver.dialect.Header(r.sender.flows[i].prefix, &n.arrivals[f.From-first], &n.arrivals[f.To-first])
	}
	r.slots[m] = matchSlot{state: matchArriving, arriving: a}
	r.arriving = append(r.arriving, a)
	for i := range a.endpoints {
		r.sender.add(first+i, a.endpoints[i].Bind)
	}
}

// handleReply handles an answer to an endpoint of a match that arrives, or the end of an
// allocation. It reports whether it was one of these. r may be nil.
func (r *replacer) handleReply(name string, ep int32, now int64) bool {
	if r == nil || ep < 0 {
		return false
	}
	m := ep / int32(r.perEnd)
	switch s := &r.slots[m]; {
	case name == benchrig.TimedOut && s.state == matchLive:
		r.result.EndedEarly++
	case name == benchrig.TimedOut && s.state == matchSilent && !r.ended[ep]:
		r.ended[ep] = true
		r.result.Ended++
		if last := r.lastActive[ep]; last != 0 {
			record(r.end, now-last)
		}
		if s.unended--; s.unended == 0 {
			r.release(m)
		}
		return true
	case name == benchrig.TimedOut && s.state == matchGivenUp:
		return true
	case s.state == matchArriving && (name == benchrig.Answer || name == benchrig.Accepted):
		r.advanceMatch(s.arriving, ep, name, now)
		return true
	}
	return false
}

func (r *replacer) release(m int32) {
	r.slots[m] = matchSlot{}
	r.free = append(r.free, m)
}

func (r *replacer) advanceMatch(a *arrivingMatch, ep int32, name string, now int64) {
	first := a.match * int32(r.perEnd)
	e := &a.endpoints[ep-first]
	switch {
	case name == benchrig.Answer && !e.bound:
		e.bound = true
		record(r.bind, now-a.begin)
		if e.Connect == nil {
			r.sender.add(int(ep), e.Keepalive) // A relay reports the end to an endpoint that sent more than BIND.
		}
		for i := range a.endpoints {
			// The host's answer permits all bound players to connect, a player's only itself.
			if p := &a.endpoints[i]; p.Connect != nil && p.bound && a.endpoints[0].bound && (ep == first || p == e) {
				p.sent = now
				r.sender.add(int(first)+i, p.Connect)
			}
		}
	case name == benchrig.Accepted && !e.accepted:
		e.accepted = true
		r.sender.add(int(ep), e.Open)
		if a.waiting--; a.waiting == 0 {
			r.exchange(a, now)
		}
	}
}

func (r *replacer) exchange(a *arrivingMatch, now int64) {
	r.arriving = slices.DeleteFunc(r.arriving, func(o *arrivingMatch) bool { return o == a })
	old := r.live.replace(a.match)
	r.slots[a.match] = matchSlot{state: matchLive}
	r.slots[old] = matchSlot{state: matchSilent, since: now, unended: int32(r.perEnd)}
	r.result.Arrived++
	record(r.ready, now-a.due)
	r.timeouts = append(r.timeouts, silentMatch{old, now})
	for i := range r.perEnd {
		joins, leaves := int(a.match)*r.perEnd+i, int(old)*r.perEnd+i
		r.lastActive[joins], r.ended[leaves] = now, false
		r.sender.keep.lastSent[joins], r.sender.keep.lastSent[leaves] = now, neverSent
		r.recorder.gaps.endpoints[leaves].deliver(now, r.times.end)
	}
}

func (r *replacer) check(now int64) {
	if now-r.lastCheck < bindTimeout/5 {
		return
	}
	r.lastCheck = now
	r.arriving = slices.DeleteFunc(r.arriving, func(a *arrivingMatch) bool {
		if now-a.begin > arrivalTimeout {
			r.result.Failed++
			r.slots[a.match] = matchSlot{state: matchGivenUp, since: now}
			r.timeouts = append(r.timeouts, silentMatch{a.match, now})
			return true
		}
		for i := range a.endpoints {
			e := &a.endpoints[i]
			if now-e.sent < bindTimeout || e.bound && (e.Connect == nil || e.accepted || !a.endpoints[0].bound) {
				continue
			}
			e.sent = now
			pkt := e.Bind
			if e.bound {
				pkt = e.Connect
			}
			r.sender.add(int(a.match)*r.perEnd+i, pkt)
		}
		return false
	})
	for len(r.timeouts) > 0 {
		t := r.timeouts[0]
		s := &r.slots[t.match]
		waits := s.since == t.at && (s.state == matchSilent || s.state == matchGivenUp)
		if waits && now-t.at < endTimeout {
			return
		}
		r.timeouts = r.timeouts[1:]
		if waits {
			r.result.NotEnded += uint64(s.unended)
			r.release(t.match)
		}
	}
}

func (r *replacer) report() *replacement {
	if r == nil {
		return nil
	}
	r.reserver.report(&r.result)
	r.result.Failed += uint64(len(r.arriving))
	for i := range r.slots {
		r.result.NotEnded += uint64(r.slots[i].unended)
	}
	r.result.Bind, r.result.End = newLatency(r.bind, 0, false), newLatency(r.end, r.result.NotEnded, false)
	r.result.Ready = newLatency(r.ready, r.result.Refused+r.result.NoEndpoint+r.result.Failed, false)
	return &r.result
}
