package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/table"
)

// expiresPerMilli bounds how many due allocations control looks at in a
// millisecond, so that a hundred thousand at once delay nobody: it leaves most
// of a processor that control shares with a worker to the worker, and sends at
// most 20,000 ERROR 1 a second.
const expiriesPerMilli = 20

// maxExpiresMillis is for how many milliseconds that passed control may make up
// at once: its timer is seldom on time.
const expiryCatchUpMillis = 8

// expireSome marks allocations for which something is overdue at now, a time in
// milliseconds. What is overdue happens only when every worker has passed, and
// if it is still overdue then. What is too much for this millisecond is left
// for later, which behind says.
func (c *control) expireSome(now int64) {
	if now == c.expiredAt {
		return
	}
	quota := c.expiriesPerMilli * int(min(now-c.expiredAt, expiryCatchUpMillis))
	c.expiredAt, c.backlog = now, false
	if c.checkPause(now) {
		return
	}
	for range quota {
		h, ok := c.wheel.due(tick(now))
		if !ok {
			return
		}
		if next := c.nextTick(h); tick(now) <= next {
			c.wheel.put(h, next+1)
			continue
		}
		c.shared.table.Account(h).ExpiryPending = true
		c.queue.push(c.shared.grace.next(), expireAllocation, h)
	}
	c.backlog = true
}

// expireMarked does what is overdue for h, unless it was heard of since it was
// marked.
func (c *control) expireMarked(h table.Handle, now table.Tick) {
	if _, ok := c.shared.table.At(h); !ok {
		return
	}
	a := c.shared.table.Account(h)
	a.ExpiryPending = false
	if why, over := c.isOver(h, now); over {
		c.end(h, why)
		return
	}
	if now > a.CloseAt {
		a.CloseAt = 0 // Its owner goes on, so the CLOSE was forged.
	}
	c.expireLink(h, a, now)
	c.wheel.put(h, c.nextTick(h)+1)
}

// over reports whether h ends now, and why.
func (c *control) isOver(h table.Handle, now table.Tick) (EndReason, bool) {
	if a := c.shared.table.Account(h); a.CloseAt != 0 && now > a.CloseAt {
		if heard, _ := c.shared.table.Activity(h).LastSeen(); heard <= a.CloseAt-confirmTicks {
			return EndClosed, true
		}
	}
	return EndExpired, now > c.lifeTick(h) && !c.pause.active
}

// expireLink does what is overdue for the link of a joiner: a DISCONNECT that
// had to wait, and the end of a link that nobody uses.
func (c *control) expireLink(h table.Handle, a *table.Account, now table.Tick) {
	joiner, _ := c.shared.table.At(h)
	host, linked := c.shared.table.At(joiner.Link)
	if linked {
		_, over := c.isOver(host.Handle, now)
		linked = !over // Whichever of both comes first in this tick.
	}
	if !linked {
		a.UnlinkAt, a.LinkedAt = 0, 0
		return
	}
	fromHost, fromJoiner := c.shared.table.Activity(h).LastRelays()
	if a.UnlinkAt != 0 && now > a.UnlinkAt {
		by, left, stays := fromJoiner, &joiner, &host
		if a.DisconnectedBy == table.RoleHost {
			by, left, stays = fromHost, &host, &joiner
		}
		if by <= a.UnlinkAt-confirmTicks {
			c.disconnect(left, stays, now)
			return
		}
		a.UnlinkAt = 0
	}
	if a.LinkedAt != 0 && now > a.LinkedAt+c.shared.rules.linkUnused {
		if max(fromHost, fromJoiner) < a.LinkedAt {
			c.unlink(&joiner, &host)
		}
		a.LinkedAt = 0
	}
}

// schedule files h anew after its limits changed.
func (c *control) schedule(h table.Handle) {
	if c.shared.table.Account(h).ExpiryPending {
		return // It is looked at again when the grace period is over.
	}
	c.wheel.remove(h)
	c.wheel.put(h, c.nextTick(h)+1)
}

// nextTick returns the last tick before something is overdue for h if nothing
// more happens.
func (c *control) nextTick(h table.Handle) table.Tick {
	next := c.lifeTick(h)
	a := c.shared.table.Account(h)
	if a.CloseAt != 0 {
		next = min(next, a.CloseAt)
	}
	if a.UnlinkAt != 0 {
		next = min(next, a.UnlinkAt)
	}
	if a.LinkedAt != 0 {
		next = min(next, a.LinkedAt+c.shared.rules.linkUnused)
	}
	return next
}

// lifeTick returns the last tick at which h lives if nothing more happens: the
// idle limit after it last sent or received, and the hear limit after it last
// sent, whichever comes first. Time in which the relay stood still does not
// count.
func (c *control) lifeTick(h table.Handle) table.Tick {
	a := c.shared.table.Account(h)
	e, _ := c.shared.table.At(h)
	if !e.Is(table.EverBound) {
		return c.pause.extend(a.ReservedAt, c.shared.rules.bindWithin)
	}
	idle := c.shared.rules.idle
	if e.Role == table.RoleHost && !a.EverLinked {
		idle = c.shared.rules.idleAlone
	}
	heard, active := c.shared.table.Activity(h).LastSeen()
	last := min(c.pause.extend(active, idle), c.pause.extend(heard, max(c.shared.rules.hear, idle)))
	return max(last, a.DeferredUntil)
}

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
	resumeTicks = 1000 / table.TickMillis
	// maxStalls is how many are remembered; older ones matter to no limit.
	maxStalls = 16

	// The brake goes on when so many, and more than a fifth of all that are
	// bound, would expire within the next second.
	pauseMinExpiring = 100
	pauseFraction    = 5
	// brakeSample is how many allocations of a tick are looked at to know.
	forecastSample = 1024
	// holdMillis is how long it holds, and releaseMillis how long it then lets
	// go, at the least, unless another outage begins.
	pauseMillis    = 30_000
	pauseGapMillis = 60_000
	// Sends are looked at once a second, if there were so many.
	sendCheckMillis = 1000
	sendCheckMin    = 8
)

// stall is a time in which the relay stood still.
type stall struct{ from, to table.Tick }

// brake knows when nobody is to expire. It belongs to the control goroutine but
// for down.
type expiryPause struct {
	stalls      [maxStalls]stall
	stallCount  int        // stalls ever
	lastRun     int64      // ms; 0: never
	resumeAfter table.Tick // nobody expires up to then

	forecastTick table.Tick // last tick whose bucket was looked at
	forecast     [4]int     // of the next four ticks: how many of the bound would expire
	active       bool
	endsAt       int64 // ms; end of the hold
	notBefore    int64 // ms; no hold before

	pausesTotal, stallsTotal atomic.Uint64
	isActive                 atomic.Bool
	linkDown                 atomic.Bool // an interface of ours is down; the watch writes it
	wasLinkDown              bool
	sends                    sendCounts // as of the last look
	sendsAt                  int64      // ms; of the last look
}

// stalled notices that control was away for long.
func (b *expiryPause) noteTime(now int64) {
	if gap := now - b.lastRun; b.lastRun != 0 && gap > stallMillis {
		b.stalls[b.stallCount%maxStalls] = stall{tick(b.lastRun), tick(now)}
		b.stallCount++
		b.stallsTotal.Add(1)
		b.resumeAfter = tick(now) + resumeTicks
	}
	b.lastRun = now
}

// extend returns the last tick of a limit that began at since, and lasts for
// limit without counting the time in which the relay stood still.
func (b *expiryPause) extend(since, limit table.Tick) table.Tick {
	last := since + limit
	for i := max(0, b.stallCount-maxStalls); i < b.stallCount; i++ {
		if s := b.stalls[i%maxStalls]; since < s.to && last >= s.from {
			last += s.to - s.from
		}
	}
	return last
}

// watch reports whether nobody is to expire now.
func (c *control) checkPause(now int64) bool {
	b := &c.pause
	c.updateForecast(tick(now))
	switch {
	case b.linkWentDown():
		b.begin(now)
	case now >= b.notBefore && (c.mostSendsFail(now) || c.massExpiryAhead()):
		b.begin(now)
	}
	if b.active && now >= b.endsAt {
		b.active, b.notBefore = false, now+pauseGapMillis
		b.isActive.Store(false)
	}
	return b.active || tick(now) <= b.resumeAfter
}

// hold puts the brake on.
func (b *expiryPause) begin(now int64) {
	if b.active {
		return
	}
	b.active, b.endsAt = true, now+pauseMillis
	b.pausesTotal.Add(1)
	b.isActive.Store(true)
}

// outage reports whether an interface went down just now. Each outage holds
// once: one that lasts is no fault that will pass.
func (b *expiryPause) linkWentDown() bool {
	down := b.linkDown.Load()
	began := down && !b.wasLinkDown
	b.wasLinkDown = down
	return began
}

// sendCounts are sends ever tried, and those of them that failed since the
// network was down.
type sendCounts struct{ tried, down uint64 }

// sendsFail reports whether most sends of the last second failed since the
// network was down. A few do not count: they may go to forged sources for which
// there is no route.
func (c *control) mostSendsFail(now int64) bool {
	b := &c.pause
	if now-b.sendsAt < sendCheckMillis {
		return false
	}
	sends := c.sendTotals()
	failed, tried := sends.down-b.sends.down, sends.tried-b.sends.tried
	b.sends, b.sendsAt = sends, now
	return tried >= sendCheckMin && failed*2 > tried
}

// lapseSoon reports whether very many would expire within a second.
func (c *control) massExpiryAhead() bool {
	sum := 0
	for _, n := range c.pause.forecast {
		sum += n
	}
	if sum < pauseMinExpiring {
		return false
	}
	_, bound, _ := c.shared.table.Counts()
	return sum*pauseFraction > bound
}

// lookAhead counts, once a tick, who would expire a second later.
func (c *control) updateForecast(now table.Tick) {
	b := &c.pause
	span := table.Tick(len(b.forecast))
	if b.forecastTick+span < now {
		b.forecastTick = now - span
	}
	for ; b.forecastTick < now; b.forecastTick++ {
		at := b.forecastTick + 1 + span
		b.forecast[at%span] = c.countExpiring(at)
	}
}

// lapsing estimates how many of the bound expire at a tick to come. It looks at
// a sample, as a bucket may hold everybody.
func (c *control) countExpiring(at table.Tick) int {
	seen, bound := 0, 0
	for slot := c.wheel.first(at); slot != 0 && seen < forecastSample; seen++ {
		h := c.shared.table.HandleAt(slot - 1)
		if e, ok := c.shared.table.At(h); ok && !e.Endpoint.IsZero() && c.lifeTick(h) < at {
			bound++
		}
		slot = c.shared.table.Account(h).Next
	}
	if seen < forecastSample {
		return bound
	}
	return bound * c.wheel.sizes[at%wheelBuckets] / seen
}

// wheelBuckets is the number of ticks that the timer wheel spans, 256 s. What
// is due later is looked at once per turn.
const wheelBuckets = 1024

// wheel finds what is overdue without looking at everything: each allocation
// is in the bucket of the tick at which it would expire if nothing more
// happened. The lists run through the accounts, so the wheel has no memory of
// its own per allocation. It belongs to the control goroutine.
type wheel struct {
	table *table.Table
	heads [wheelBuckets]uint32 // slot+1
	sizes [wheelBuckets]int
	now   table.Tick // the last tick that was begun
}

// put files h under the tick at, or as late as the wheel reaches. What is
// overdue goes under the next tick.
func (w *wheel) put(h table.Handle, at table.Tick) {
	if at <= w.now {
		at = w.now + 1
	}
	at = min(at, w.now+wheelBuckets-1)
	bucket := uint32(at % wheelBuckets)
	a := w.table.Account(h)
	a.Bucket, a.Prev, a.Next = bucket+1, 0, w.heads[bucket]
	if a.Next != 0 {
		w.table.AccountAt(a.Next - 1).Prev = h.Slot() + 1
	}
	w.heads[bucket] = h.Slot() + 1
	w.sizes[bucket]++
}

// first returns the first slot of a bucket, plus one; 0 if it is empty. The
// others follow by Account.Next.
func (w *wheel) first(at table.Tick) uint32 { return w.heads[at%wheelBuckets] }

// remove takes h out, if it is in.
func (w *wheel) remove(h table.Handle) {
	a := w.table.Account(h)
	if a.Bucket == 0 {
		return
	}
	if a.Next != 0 {
		w.table.AccountAt(a.Next - 1).Prev = a.Prev
	}
	if a.Prev != 0 {
		w.table.AccountAt(a.Prev - 1).Next = a.Next
	} else {
		w.heads[a.Bucket-1] = a.Next
	}
	w.sizes[a.Bucket-1]--
	a.Bucket, a.Next, a.Prev = 0, 0, 0
}

// due takes out and returns one allocation that is filed under a tick up to
// now, or false when there is none.
func (w *wheel) due(now table.Tick) (table.Handle, bool) {
	for {
		if head := w.heads[w.now%wheelBuckets]; head != 0 {
			h := w.table.HandleAt(head - 1)
			w.remove(h)
			return h, true
		}
		if w.now >= now {
			return 0, false
		}
		w.now++
	}
}
