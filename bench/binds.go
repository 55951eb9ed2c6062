package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// bindPatience is how long an endpoint waits for the answer to a repeated
	// handshake before it may send the next, in ns. Answers carry nothing by
	// which they could be told apart, so that only one is under way.
	bindPatience = int64(500 * time.Millisecond)
	// bindSearch bounds the endpoints that are looked at for one that is free.
	bindSearch = 64
)

// turns gives repeated handshakes their times: number n is due at
// start + n/rate.
type turns struct {
	start int64
	rate  float64 // per second; 0 = none
	next  int64
}

// due returns the time of the next one.
func (t *turns) due() int64 { return t.start + int64(float64(t.next)/t.rate*1e9) }

// binds are the repeated handshakes of a run. The generator's goroutine owns
// them.
type binds struct {
	turns
	from     int64       // those due from here on are counted in calls
	under    []handshake // what is under way, by endpoint
	cursor   int         // endpoint whose turn it is
	waitsFor int         // under way in all
	calls    Calls
	latency  *hdrhistogram.Histogram
}

// handshake is a BIND that waits for its answer; zero is none.
type handshake struct {
	due, sent int64 // ns of sock.Now; latency counts from the one, patience from the other
}

func newBinds(start, from int64, rate float64, endpoints int) binds {
	b := binds{turns: turns{start: start, rate: rate}, from: from}
	if rate > 0 {
		b.under, b.latency = make([]handshake, endpoints), newHistogram(3)
	}
	return b
}

// free returns the next endpoint with nothing under way, and gives up what has
// been for too long; false if all that it looked at are waiting.
func (b *binds) free(now int64) (ep int, ok bool) {
	for range min(bindSearch, len(b.under)) {
		ep = b.cursor
		if b.cursor++; b.cursor == len(b.under) {
			b.cursor = 0
		}
		if u := b.under[ep]; u.sent != 0 && now-u.sent > bindPatience {
			b.under[ep] = handshake{}
			b.waitsFor--
		}
		if b.under[ep].sent == 0 {
			return ep, true
		}
	}
	return 0, false
}

// sent notes a handshake of ep that is under way.
func (b *binds) sent(ep int, due, now int64) {
	b.under[ep] = handshake{due, now}
	b.waitsFor++
	if due >= b.from {
		b.calls.Sent++
	}
}

// answered notes an answer to ep, which may be one that was given up.
func (b *binds) answered(ep int, now int64) {
	if ep < 0 || ep >= len(b.under) || b.under[ep].sent == 0 {
		return
	}
	due := b.under[ep].due
	b.under[ep] = handshake{}
	b.waitsFor--
	if due >= b.from {
		b.calls.Answered++
		record(b.latency, now-due)
	}
}

// report is what became of those that were due from one time to another.
func (b *binds) report(from, to int64) *Calls {
	c := b.calls
	c.Latency = summarise(b.latency, true)
	return c.finish(time.Duration(to - from))
}

// sendBinds queues the handshakes that are due.
func (g *generator) sendBinds(now int64) int {
	b := &g.binds
	for n := range burst {
		due := b.due()
		if due > now || due >= g.end {
			return n
		}
		b.next++
		if due >= b.from {
			b.calls.Offered++
		}
		ep, ok := b.free(now)
		if !ok {
			continue
		}
		if pkt := g.rig.Endpoints[ep].Rebind; pkt != nil {
			g.add(ep, pkt)
			g.count.bindsSent++
			b.sent(ep, due, now)
		}
	}
	return burst
}
