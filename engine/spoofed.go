package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/table"
)

// wrongRate is how many messages in the name of one allocation may come from
// endpoints to which it is not bound before it counts as spoofed at. A client
// that roams sends a few; who looks for its port by trying all of them sends
// thousands.
var wrongRate = table.Rate{Interval: 10_000, Burst: 100}

const (
	// spoofedMillis is for how long an allocation counts as spoofed at after the
	// last message that was too many.
	spoofedMillis = 10_000
	// lingerTicks is how long a CLOSE or DISCONNECT of such an allocation waits
	// for its owner to go on as if nothing had been: 1 s.
	lingerTicks = 1000 / table.TickMillis

	spoofGates = 4096
)

// spoofGuard notices allocations in whose name somebody else sends. Two that
// share a gate share its count, which makes the relay careful early, no more.
// Every word is an atomic; any goroutine may use it.
type spoofGuard struct {
	gates [spoofGates]atomic.Uint64
	until [spoofGates]atomic.Int64 // ms
}

// wrong counts a message in the name of h from an endpoint that is not h's.
func (g *spoofGuard) wrong(h table.Handle, now int64) {
	if i := spoofGate(h); !wrongRate.Take(&g.gates[i], now) {
		g.until[i].Store(now + spoofedMillis)
	}
}

// suspects reports whether h is being spoofed at.
func (g *spoofGuard) suspects(h table.Handle, now int64) bool {
	return now < g.until[spoofGate(h)].Load()
}

// spoofGate keeps the next owner of a slot apart from the last one.
func spoofGate(h table.Handle) uint32 {
	return (h.Slot() + uint32(h)*64) % spoofGates
}
