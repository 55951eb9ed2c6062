package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recovery is about endpoints whose binding or connection was lost, and made again.
type recovery struct {
	Endpoints uint64 `json:"endpoints"` // that got an ERROR 3, or whose connection ended
	Bound     uint64 `json:"bound"`     // of them, those that are bound again
	// Latency is from the first ERROR 3, or the end of the connection, to the answer to a BIND.
	Latency Latency `json:"latency"`
	// Duration is from the first ERROR 3 or end of all to the last answer.
	Duration time.Duration `json:"durationNs"`
}

// rebindAfter is the time, in ns, after which an endpoint repeats a BIND that was not answered.
const rebindAfter = int64(time.Second)

// rebinder binds endpoints again. The generator's goroutine owns it.
type rebinder struct {
	state   map[int32]*rebinding // of endpoints that got an ERROR 3, or lost their connection
	due     []int32              // to bind
	first   int64                // ns of sock.Now; 0: there was none
	last    int64
	bound   uint64
	latency *hdrhistogram.Histogram
}

type rebinding struct {
	first, sent int64 // ns of sock.Now: when it was no longer bound, 0: it is; last BIND
	counted     bool  // in bound
}

func (b *rebinder) lose(ep int32, now int64) *rebinding {
	if b.state == nil {
		b.state, b.latency = map[int32]*rebinding{}, newHistogram(3)
		b.first = now
	}
	s := b.state[ep]
	if s == nil {
		s = new(rebinding)
		b.state[ep] = s
	}
	if s.first == 0 {
		s.first = now
	}
	return s
}

func (b *rebinder) bind(ep int32, now int64) {
	s := b.lose(ep, now)
	s.sent = now
	b.due = append(b.due, ep)
}

func (b *rebinder) mismatch(ep int32, now int64) {
	s := b.lose(ep, now)
	if s.sent == 0 || now-s.sent >= rebindAfter {
		b.bind(ep, now)
	}
}

func (b *rebinder) answer(ep int32, now int64) {
	s := b.state[ep]
	if s == nil || s.first == 0 {
		return
	}
	record(b.latency, now-s.first)
	s.first, s.sent, b.last = 0, 0, now
	if !s.counted {
		s.counted = true
		b.bound++
	}
}

func (b *rebinder) report() *recovery {
	if b.first == 0 {
		return nil
	}
	return &recovery{
		Endpoints: uint64(len(b.state)), Bound: b.bound,
		Latency: newLatency(b.latency, uint64(len(b.state))-b.bound, true), Duration: time.Duration(max(b.last-b.first, 0)),
	}
}

func (b *rebinder) send(s *sender) int {
	n := min(len(b.due), burst)
	for _, ep := range b.due[:n] {
		if pkt := s.rig.Endpoints[ep].Rebind; pkt != nil {
			s.add(int(ep), pkt)
		}
	}
	b.due = append(b.due[:0], b.due[n:]...)
	return n
}
