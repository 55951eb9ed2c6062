package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// bindTimeout is the time, in ns, after which an endpoint repeats a handshake
	// without an answer. Answers do not identify their handshake, so that an endpoint
	// has only one in flight.
	bindTimeout = int64(500 * time.Millisecond)
	// bindCandidates bounds the endpoints that takeEndpoint examines.
	bindCandidates = 64
)

// rateSchedule makes handshake n due at start + n/rate.
type rateSchedule struct {
	start int64
	rate  float64 // per second; 0 = none
	next  int64
}

func (t *rateSchedule) due() int64 { return t.start + int64(float64(t.next)/t.rate*1e9) }

// binds has the repeated handshakes of a run. The generator's goroutine owns it.
type binds struct {
	rateSchedule
	from         int64       // those due from here on are counted in calls
	pending      []handshake // by endpoint
	cursor       int         // the next endpoint
	calls        Calls
	latency, lag *hdrhistogram.Histogram
}

// handshake is a BIND that waits for its answer; zero is none.
type handshake struct {
	due, sent int64 // ns of sock.Now; latency counts from due, the time-out from sent
}

func newBinds(start, from int64, rate float64, endpoints int) binds {
	b := binds{rateSchedule: rateSchedule{start: start, rate: rate}, from: from}
	if rate > 0 {
		b.pending, b.latency, b.lag = make([]handshake, endpoints), newHistogram(3), newHistogram(3)
	}
	return b
}

// takeEndpoint returns the next endpoint without a pending handshake, and drops those
// that timed out; false if all that it examined are waiting.
func (b *binds) takeEndpoint(now int64) (ep int, ok bool) {
	for range min(bindCandidates, len(b.pending)) {
		ep = b.cursor
		if b.cursor++; b.cursor == len(b.pending) {
			b.cursor = 0
		}
		if u := b.pending[ep]; u.sent != 0 && now-u.sent > bindTimeout {
			b.pending[ep] = handshake{}
		}
		if b.pending[ep].sent == 0 {
			return ep, true
		}
	}
	return 0, false
}

func (b *binds) recordSent(ep int, due, now int64) {
	b.pending[ep] = handshake{due, now}
	if due >= b.from {
		b.calls.Sent++
		record(b.lag, now-due)
	}
}

// recordAnswer records an answer to ep, which may answer a handshake that timed out.
func (b *binds) recordAnswer(ep int, now int64) {
	if ep < 0 || ep >= len(b.pending) || b.pending[ep].sent == 0 {
		return
	}
	due := b.pending[ep].due
	b.pending[ep] = handshake{}
	if due >= b.from {
		b.calls.Answered++
		record(b.latency, now-due)
	}
}

// report is nil without handshakes. They were counted for the time lasted.
func (b *binds) report(lasted time.Duration) *Calls {
	if b.rate == 0 {
		return nil
	}
	c := b.calls
	c.Latency, c.Lag = newLatency(b.latency, missing(c.Answered, c.Offered), true), newLatency(b.lag, 0, false)
	if lasted > 0 {
		c.AnsweredRate = float64(c.Answered) / lasted.Seconds()
	}
	return &c
}

// send queues the handshakes that are due, and returns their number. None is due from end on.
func (b *binds) send(s *sender, now, end int64) int {
	if b.rate == 0 {
		return 0
	}
	for n := range burst {
		due := b.due()
		if due > now || due >= end {
			return n
		}
		b.next++
		if due >= b.from {
			b.calls.Offered++
		}
		ep, ok := b.takeEndpoint(now)
		if !ok {
			continue
		}
		if pkt := s.rig.Endpoints[ep].Rebind; pkt != nil {
			s.add(ep, pkt)
			b.recordSent(ep, due, now)
		}
	}
	return burst
}
