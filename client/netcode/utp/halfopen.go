package utp

import "github.com/ferryrelay/ferry/client/netcode/address"

// A request proves nothing about its source, so what it can cost is bounded:
// how many such connections there are, how long they last, and what is sent to
// their clients.

// unheardCredit is how many data packets go to a client that was not heard
// since its last request. An honest one is heard before it runs out.
const unheardCredit = 16

func (e *Endpoint) enterHalfOpen(c *conn) {
	c.halfOpen = len(e.halfOpen)
	c.credit = unheardCredit
	e.halfOpen = append(e.halfOpen, c)
}

func (e *Endpoint) leaveHalfOpen(c *conn) {
	last := len(e.halfOpen) - 1
	e.halfOpen[c.halfOpen] = e.halfOpen[last]
	e.halfOpen[c.halfOpen].halfOpen = c.halfOpen
	e.halfOpen[last] = nil
	e.halfOpen = e.halfOpen[:last]
}

// crowded says why a client at this place may not have a connection now, or
// Taken if it may.
func (e *Endpoint) crowded(from address.Addr) Outcome {
	if e.live >= e.cfg.MaxConnections {
		return DropFull
	}
	if len(e.halfOpen) >= e.cfg.MaxHalfOpen {
		return DropHalfOpen
	}
	same := 0
	for _, c := range e.halfOpen {
		if c.addr.SameSource(from) {
			same++
		}
	}
	if same >= e.cfg.MaxHalfOpenPerSource {
		return DropSource
	}
	return Taken
}

// brake bounds answers to those who have no connection, per second.
type brake struct {
	rate int64 // per second, and the most that can be saved up
	have int64 // thousandths
}

func newBrake(rate int) brake { return brake{rate: int64(rate), have: int64(rate) * 1000} }

// pass moves the brake's time on by ms.
func (b *brake) pass(ms int64) {
	full := b.rate * 1000
	// More than a second fills it whatever was in it.
	b.have = min(b.have+min(ms, 1000)*b.rate, full)
}

// allow takes one answer, if there is one.
func (b *brake) allow() bool {
	if b.have < 1000 {
		return false
	}
	b.have -= 1000
	return true
}
