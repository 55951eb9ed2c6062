package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/table"
)

// To end a match that lives is the worst that a relay can do, and it would do
// it to all of them at once: when its process stood still, when its network was
// down, when a receive queue overflowed. So expiry holds on when the fault may
// be its own.
const (
	// stallMillis: control looks four times a second, so a longer gap means that
	// the process, or its machine, stood still.
	stallMillis = 1000
	// settleTicks is how long nobody expires after that, so that the workers
	// empty the receive queues first: 1 s.
	settleTicks = 1000 / table.TickMillis
	// maxStalls is how many are remembered; older ones matter to no limit.
	maxStalls = 16

	// The brake goes on when so many, and more than a fifth of all that are
	// bound, would expire within the next second.
	brakeAtLeast = 100
	brakeShare   = 5
	// brakeSample is how many allocations of a tick are looked at to know.
	brakeSample = 1024
	// holdMillis is how long it holds, and releaseMillis how long it then lets
	// go, at the least, unless another outage begins.
	holdMillis    = 30_000
	releaseMillis = 60_000
	// Sends are looked at once a second, if there were so many.
	sendsMillis  = 1000
	sendsAtLeast = 8
)

// stall is a time in which the relay stood still.
type stall struct{ from, to table.Tick }

// brake knows when nobody is to expire. It belongs to the control goroutine but
// for down.
type brake struct {
	stalls   [maxStalls]stall
	count    int        // stalls ever
	lastPump int64      // ms; 0: never
	settle   table.Tick // nobody expires up to then

	looked  table.Tick // last tick whose bucket was looked at
	ahead   [4]int     // of the next four ticks: how many of the bound would expire
	holds   bool
	until   int64 // ms; end of the hold
	release int64 // ms; no hold before

	holdsEver, stallsEver atomic.Uint64
	engaged               atomic.Bool
	down                  atomic.Bool // an interface of ours is down; the watch writes it
	wasDown               bool
	sends                 sendCounts // as of the last look
	sendsAt               int64      // ms; of the last look
}

// stalled notices that control was away for long.
func (b *brake) stalled(now int64) {
	if gap := now - b.lastPump; b.lastPump != 0 && gap > stallMillis {
		b.stalls[b.count%maxStalls] = stall{tick(b.lastPump), tick(now)}
		b.count++
		b.stallsEver.Add(1)
		b.settle = tick(now) + settleTicks
	}
	b.lastPump = now
}

// extend returns the last tick of a limit that began at since, and lasts for
// limit without counting the time in which the relay stood still.
func (b *brake) extend(since, limit table.Tick) table.Tick {
	last := since + limit
	for i := max(0, b.count-maxStalls); i < b.count; i++ {
		if s := b.stalls[i%maxStalls]; since < s.to && last >= s.from {
			last += s.to - s.from
		}
	}
	return last
}

// watch reports whether nobody is to expire now.
func (c *control) watch(now int64) bool {
	b := &c.brake
	c.lookAhead(tick(now))
	switch {
	case b.outage():
		b.hold(now)
	case now >= b.release && (c.sendsFail(now) || c.lapseSoon()):
		b.hold(now)
	}
	if b.holds && now >= b.until {
		b.holds, b.release = false, now+releaseMillis
		b.engaged.Store(false)
	}
	return b.holds || tick(now) <= b.settle
}

// hold puts the brake on.
func (b *brake) hold(now int64) {
	if b.holds {
		return
	}
	b.holds, b.until = true, now+holdMillis
	b.holdsEver.Add(1)
	b.engaged.Store(true)
}

// outage reports whether an interface went down just now. Each outage holds
// once: one that lasts is no fault that will pass.
func (b *brake) outage() bool {
	down := b.down.Load()
	began := down && !b.wasDown
	b.wasDown = down
	return began
}

// sendCounts are sends ever tried, and those of them that failed since the
// network was down.
type sendCounts struct{ tried, down uint64 }

// sendsFail reports whether most sends of the last second failed since the
// network was down. A few do not count: they may go to forged sources for which
// there is no route.
func (c *control) sendsFail(now int64) bool {
	b := &c.brake
	if now-b.sendsAt < sendsMillis {
		return false
	}
	sends := c.sends()
	failed, tried := sends.down-b.sends.down, sends.tried-b.sends.tried
	b.sends, b.sendsAt = sends, now
	return tried >= sendsAtLeast && failed*2 > tried
}

// lapseSoon reports whether very many would expire within a second.
func (c *control) lapseSoon() bool {
	sum := 0
	for _, n := range c.brake.ahead {
		sum += n
	}
	if sum < brakeAtLeast {
		return false
	}
	_, bound, _ := c.shared.table.Counts()
	return sum*brakeShare > bound
}

// lookAhead counts, once a tick, who would expire a second later.
func (c *control) lookAhead(now table.Tick) {
	b := &c.brake
	span := table.Tick(len(b.ahead))
	if b.looked+span < now {
		b.looked = now - span
	}
	for ; b.looked < now; b.looked++ {
		at := b.looked + 1 + span
		b.ahead[at%span] = c.lapsing(at)
	}
}

// lapsing estimates how many of the bound expire at a tick to come. It looks at
// a sample, as a bucket may hold everybody.
func (c *control) lapsing(at table.Tick) int {
	seen, bound := 0, 0
	for slot := c.wheel.first(at); slot != 0 && seen < brakeSample; seen++ {
		h := c.shared.table.HandleAt(slot - 1)
		if e, ok := c.shared.table.At(h); ok && !e.Endpoint.IsZero() && c.lifeTick(h) < at {
			bound++
		}
		slot = c.shared.table.Account(h).Next
	}
	if seen < brakeSample {
		return bound
	}
	return bound * c.wheel.sizes[at%wheelBuckets] / seen
}
