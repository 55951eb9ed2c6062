package bench

import (
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// startDelay is the time between the start of the generator and the first
// datagram, in ns.
const startDelay = int64(20 * time.Millisecond)

// phases are the times of a run, ns of sock.Now: warm-up, measured interval and drain. The
// generator's goroutine owns them; an interrupt moves end and stop forward.
type phases struct {
	start, measure, end, stop int64
	idle                      int64 // when the silence before measure begins, in the shape idle
	drain                     int64
	interrupted               bool
}

func newPhases(cfg *Config) phases {
	p := phases{start: sock.Now() + startDelay, drain: int64(cfg.Drain)}
	p.measure = p.start + int64(cfg.Warmup)
	p.end = p.measure + int64(cfg.Duration)
	if cfg.Shape == shapeIdle {
		p.idle, p.measure = p.measure, p.end
		p.end += int64(cfg.playTime())
	}
	p.stop = p.end + p.drain
	return p
}

func (p *phases) interrupt(now int64) {
	if !p.interrupted && now < p.end {
		p.interrupted, p.end, p.stop = true, now, now+p.drain
	}
}

// recorder counts what a run sends and what arrives. The generator's goroutine owns it, except for
// live, and the seconds that live says are over.
type recorder struct {
	times    *phases
	schedule schedule // nil in a closed loop
	sockets  []*benchrig.Socket

	count    counters
	errors   map[string]uint64
	gaps     gaps
	interval portion // the measured one

	first   int64 // when the first of seconds begins
	seconds []second
	now     *second // the current one
	nextSec int64   // when the next one begins

	droppedBefore uint64 // on the generator's own sockets, before the run
	dropped       uint64 // and before the measured interval
	live          live
}

// counters are of the measured interval, unless a field says otherwise.
type counters struct {
	duplicated, reordered, late uint64
	corrupt, misdelivered       uint64
	busy                        int64  // ns
	arrived                     uint64 // whole run
}

// second has the counters of one second by the clock. They are final once
// live.second is above its index.
type second struct {
	sent, delivered uint64
	latency         *hdrhistogram.Histogram
}

// live has the counters that other goroutines read during the run.
type live struct {
	second  atomic.Int64  // index of the current second
	arrived atomic.Uint64 // datagrams of the load, duplicates included
}

// newRecorder lets one of the seconds begin with the measured interval.
func newRecorder(times *phases, s schedule, rig *benchrig.Rig) *recorder {
	r := &recorder{times: times, schedule: s, sockets: rig.Sockets, errors: map[string]uint64{}, interval: newPortion()}
	r.gaps.endpoints = make([]gap, len(rig.Endpoints))
	r.first = times.measure - (times.measure-times.start+1e9-1)/1e9*1e9
	r.seconds = make([]second, (times.stop-r.first)/1e9+2)
	for i := range r.seconds {
		r.seconds[i].latency = newHistogram(2)
	}
	r.now, r.nextSec = &r.seconds[0], r.first+1e9
	r.droppedBefore = r.drops()
	r.dropped = r.droppedBefore
	return r
}

func (r *recorder) keepTime(now int64) {
	for now >= r.nextSec {
		r.nextSec += 1e9
		if i := r.live.second.Load() + 1; i < int64(len(r.seconds)) {
			r.now = &r.seconds[i]
			r.live.second.Store(i)
		}
		if r.nextSec == r.times.measure+1e9 {
			r.dropped = r.drops()
		}
	}
}

func (r *recorder) endRound(began int64, moved bool) {
	if moved && began >= r.times.measure && began < r.times.end {
		r.count.busy += sock.Now() - began
	}
	r.live.arrived.Store(r.count.arrived)
}

func (r *recorder) recordSent(o *outgoing, res benchrig.SendResult, now int64) {
	load := uint64(len(o.dues))
	failed := min(uint64(res.Failed), load)
	blocked := min(uint64(res.Blocked), load-failed)
	r.now.sent += load - failed - blocked
	if p := o.portion; p != nil && load > 0 {
		p.queued += load
		p.failed += failed
		p.blocked += blocked
		for _, due := range o.dues {
			record(p.lag, now-due)
		}
	}
	o.used, o.dues, o.portion = 0, o.dues[:0], nil
}

func (r *recorder) recordArrival(f *flow, st *stamp, now int64) arrival {
	p, one := r.portionOf(st.due), r.measured(st.due)
	how := f.window.arrive(st.seq, f.seq)
	switch how {
	case arrivedDuplicate:
		r.count.duplicated += one
		return how
	case arrivedLate:
		r.count.late += one
		return how
	case arrivedUnsent:
		r.count.corrupt += one
		return how
	case arrivedReordered:
		r.count.reordered += one
	case arrivedInOrder:
	}
	r.now.delivered++
	r.deliverGap(f.to, now)
	record(r.now.latency, now-st.due)
	if p != nil {
		p.delivered++
		record(p.latency, now-st.due)
	}
	return how
}

func (r *recorder) measured(due int64) uint64 {
	if r.portionOf(due) != nil {
		return 1
	}
	return 0
}

// portion is what the generator counts of the datagrams due in the measured interval.
type portion struct {
	queued, failed, blocked, delivered uint64
	latency, lag                       *hdrhistogram.Histogram
}

func newPortion() portion { return portion{latency: newHistogram(3), lag: newHistogram(3)} }

// portionOf is nil outside of the measured interval.
func (r *recorder) portionOf(due int64) *portion {
	if due < r.times.measure || due >= r.times.end {
		return nil
	}
	return &r.interval
}

func (r *recorder) drops() (n uint64) {
	for _, s := range r.sockets {
		n += s.Conn.Drops()
	}
	return n
}

// secondAt reports on second i, which must be over.
func (r *recorder) secondAt(i int, end int64) Second {
	s := &r.seconds[i]
	from := r.first + int64(i)*1e9
	sec := Second{
		At:   i - int((r.times.measure-r.first)/1e9),
		Sent: s.sent, Delivered: s.delivered, Offered: s.sent,
	}
	sec.setLatency(s.latency)
	if r.schedule != nil {
		sec.Offered = r.schedule.before(min(from+1e9, end)) - r.schedule.before(min(from, end))
	}
	return sec
}

func (r *recorder) allSeconds() (all []Second) {
	for i := range min(int(r.live.second.Load())+1, len(r.seconds)) {
		all = append(all, r.secondAt(i, r.times.end))
	}
	return all
}

// report sets the counts of the measured interval, which ended at a time.
func (r *recorder) report(f *Result, end int64) {
	c, p := &r.count, &r.interval
	f.Offered, f.Sent, f.SendFailed, f.Blocked = p.queued, p.queued-p.failed-p.blocked, p.failed, p.blocked
	f.Delivered, f.Duplicated, f.Reordered, f.Late = p.delivered, c.duplicated, c.reordered, c.late
	f.Corrupt, f.Misdelivered, f.Measured = c.corrupt, c.misdelivered, time.Duration(end-r.times.measure)
	if r.schedule != nil {
		f.Offered = r.schedule.before(end) - r.schedule.before(r.times.measure)
	}
	f.Unsent, f.Lost = missing(p.queued, f.Offered), missing(f.Delivered, f.Sent)
	f.LossRatio = lossRatio(f.Delivered, f.Offered)
	if f.Measured > 0 {
		f.OfferedRate, f.DeliveredRate = float64(f.Offered)/f.Measured.Seconds(), float64(f.Delivered)/f.Measured.Seconds()
	}
	f.Latency, f.Generator.Lag = newLatency(p.latency, missing(f.Delivered, f.Offered), true), newLatency(p.lag, 0, false)
}
