package client

import (
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// pingsInFlight is how many PINGs are remembered. A path that holds more than
// that many periods is beyond the silence that makes the session bind again.
const pingsInFlight = 8

// pinger is the keep-alive. The session's lock guards it.
type pinger struct {
	s        *Session
	next     int64  // when the next PING is due
	number   uint16 // of the newest PING; wraps
	flight   [pingsInFlight]pingSent
	smoothed time.Duration
}

type pingSent struct {
	open   bool
	number uint16
	at     int64
}

// duePing rests while the session binds: the relay could only answer ERROR 3.
func (p *pinger) duePing(now int64, buf []byte) ([]byte, int64) {
	if !p.s.bind.bound.Load() || p.s.bind.active {
		return nil, never
	}
	if now < p.next {
		return nil, p.next
	}
	p.next = now + int64(p.s.cfg.PingPeriod)
	p.number++
	p.flight[p.number%pingsInFlight] = pingSent{open: true, number: p.number, at: now}
	p.s.counters.pings.Add(1)
	return proto.Ping{ID: p.s.own, Number: p.number}.Append(buf[:0]), now
}

func (p *pinger) onEcho(now int64, number uint16) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	sent := &p.flight[number%pingsInFlight]
	if !sent.open || sent.number != number {
		p.s.counters.unexpected.Add(1)
		return
	}
	sent.open = false
	p.s.counters.echoes.Add(1)
	if rtt := now - sent.at; rtt < int64(p.s.cfg.PingPeriod) || sent.at >= p.s.transport.resumed.Load() {
		p.sample(time.Duration(rtt)) // Others waited for a network that had stopped.
	}
}

// sample smooths with a weight of 1/8 for the newest, as TCP does (RFC 6298).
func (p *pinger) sample(rtt time.Duration) {
	rtt = max(rtt, 1)
	if p.smoothed == 0 {
		p.smoothed = rtt
		return
	}
	p.smoothed += (rtt - p.smoothed) / 8
}
