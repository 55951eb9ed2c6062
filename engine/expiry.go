package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine/internal/table"
)

// Control shares its processor with a worker, so its work is bounded per millisecond, and per call
// so that commands wait for a part of it at most.
const (
	// expiriesPerMilli: a hundred thousand at once delay no player, and at most 20,000 ERROR 1
	// leave in a second.
	expiriesPerMilli = 20
	// refilesPerMilli: a million live allocations come up 110,000 times a second; after a pause of
	// expiry all of them do at once, and take a second.
	refilesPerMilli = 1000
	// refilesPerCall takes some 0.1 ms.
	refilesPerCall = 256
	// expiryCatchUpMillis: control's timer is seldom on time.
	expiryCatchUpMillis = 8
	// maxMarked bounds what ends in one call after a grace period: a worker may be slow.
	maxMarked = expiriesPerMilli * expiryCatchUpMillis
)

// expiryPace belongs to the control goroutine.
type expiryPace struct {
	at      int64 // ms
	ends    int   // allocations that it may mark
	refiles int   // live ones that it may file again
	marked  int   // allocations that wait for the grace period before they end
}

// advance drops what was not used.
func (p *expiryPace) advance(now int64) {
	if elapsed := int(min(now-p.at, expiryCatchUpMillis)); elapsed > 0 {
		p.at, p.ends, p.refiles = now, expiriesPerMilli*elapsed, refilesPerMilli*elapsed
	}
}

// expireSome marks the allocations that are due, which expire after a grace period if they still
// are. It reports whether it may continue at once, and sets backlog if the pace leaves some for
// later.
func (c *control) expireSome(now int64) (more bool) {
	c.pace.advance(now)
	if c.checkPause(now) {
		return false
	}
	for range refilesPerCall {
		h, ok := c.wheel.due(tick(now))
		if !ok {
			return false
		}
		next := c.nextTick(h)
		live := tick(now) <= next
		if live && c.pace.refiles == 0 || !live && (c.pace.ends == 0 || c.pace.marked == maxMarked) {
			c.backlog = true
			return false
		}
		c.wheel.remove(h)
		if live {
			c.pace.refiles--
			c.sent(h) // before its counts overflow
			c.wheel.put(h, next+1)
			continue
		}
		c.pace.ends--
		c.pace.marked++
		c.shared.table.Account(h).ExpiryPending = true
		c.queue.push(action{after: c.shared.grace.next(), kind: expireAllocation, handle: h})
	}
	return true
}

func (c *control) expireMarked(h table.Handle, now table.Tick) {
	c.pace.marked--
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
		a.CloseAt = 0 // The owner sent something else, so the CLOSE was forged.
	}
	c.expireLink(h, a, now)
	c.wheel.put(h, c.nextTick(h)+1)
}

func (c *control) isOver(h table.Handle, now table.Tick) (EndReason, bool) {
	if a := c.shared.table.Account(h); a.CloseAt != 0 && now > a.CloseAt {
		if received, _ := c.shared.table.LastSeen(h); received <= a.CloseAt-confirmTicks {
			return EndClosed, true
		}
	}
	return EndExpired, now > c.lifeTick(h) && !c.pause.active
}

// A DISCONNECT that had to wait is void if its sender has relayed over the link since.
func (c *control) expireLink(h table.Handle, a *table.Account, now table.Tick) {
	if a.UnlinkAt == 0 {
		return
	}
	joiner, _ := c.shared.table.At(h)
	host, linked := c.shared.table.At(joiner.Link)
	if linked {
		_, over := c.isOver(host.Handle, now)
		linked = !over // The order of both in this tick must not matter.
	}
	if !linked {
		a.UnlinkAt = 0
		return
	}
	if now <= a.UnlinkAt {
		return
	}
	fromHost, by := c.shared.table.LastRelays(h)
	left, stays := &joiner, &host
	if a.DisconnectedBy == table.RoleHost {
		by, left, stays = fromHost, &host, &joiner
	}
	if by > a.UnlinkAt-confirmTicks {
		a.UnlinkAt = 0
		return
	}
	c.disconnect(left, stays, now)
}

func (c *control) schedule(h table.Handle) {
	if c.shared.table.Account(h).ExpiryPending {
		return // expireMarked will do it.
	}
	c.wheel.remove(h)
	c.wheel.put(h, c.nextTick(h)+1)
}

// nextTick assumes that nothing more is received, as does lifeTick.
func (c *control) nextTick(h table.Handle) table.Tick {
	next := c.lifeTick(h)
	a := c.shared.table.Account(h)
	if a.CloseAt != 0 {
		next = min(next, a.CloseAt)
	}
	if a.UnlinkAt != 0 {
		next = min(next, a.UnlinkAt)
	}
	return next
}

// lifeTick returns the last tick at which h is alive. Time in which the relay was stalled does not
// count.
func (c *control) lifeTick(h table.Handle) table.Tick {
	a := c.shared.table.Account(h)
	e, _ := c.shared.table.At(h)
	if !e.Is(table.EverBound) {
		return c.pause.extend(a.ReservedAt, c.shared.rules.bindWithin)
	}
	idle := c.shared.rules.idle
	if e.Role == table.RoleHost && !e.Is(table.EverLinked) {
		idle = c.shared.rules.idleAlone
	}
	received, active := c.shared.table.LastSeen(h)
	last := min(c.pause.extend(active, idle), c.pause.extend(received, max(c.shared.rules.receiveTimeout, idle)))
	return max(last, a.DeferredUntil)
}

// Expiry pauses when the fault may be on the relay's side, since ending live matches is
// the worst outcome: after the process was stalled, when the network is down, or when a
// receive queue overflowed, all clients seem silent at once.
const (
	// stallMillis counts from a tick before the one that control waits for.
	stallMillis = 1000
	// resumeTicks: after a stall workers empty the receive queues first.
	resumeTicks = 1000 / table.TickMillis
	// maxStalls is how many stalls are kept; older ones are beyond every limit.
	maxStalls = 16

	// Expiry pauses when pauseMinExpiring allocations, and more than one in pauseFraction of the
	// bound ones, would expire within a second.
	pauseMinExpiring = 100
	pauseFraction    = 5
	forecastSample   = 1024
	pauseMillis      = 30_000
	pauseGapMillis   = 60_000
	sendCheckMillis  = 1000
	sendCheckMin     = 8
)

type stall struct{ from, to table.Tick }

// expiryPause belongs to the control goroutine; others read the atomic fields, and
// Server.watch writes linkDown.
type expiryPause struct {
	stalls      [maxStalls]stall
	stallCount  int        // stalls ever
	lastRun     int64      // ms; 0: never
	resumeAfter table.Tick // nothing expires up to then

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

func (b *expiryPause) noteTime(now int64) {
	if gap := now - b.lastRun; b.lastRun != 0 && gap > stallMillis {
		b.stalls[b.stallCount%maxStalls] = stall{tick(b.lastRun), tick(now)}
		b.stallCount++
		b.stallsTotal.Add(1)
		b.resumeAfter = tick(now) + resumeTicks
	}
	b.lastRun = now
}

// extend does not count the time in which the relay was stalled.
func (b *expiryPause) extend(since, limit table.Tick) table.Tick {
	last := since + limit
	for i := max(0, b.stallCount-maxStalls); i < b.stallCount; i++ {
		if s := b.stalls[i%maxStalls]; since < s.to && last >= s.from {
			last += s.to - s.from
		}
	}
	return last
}

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

func (b *expiryPause) begin(now int64) {
	if b.active {
		return
	}
	b.active, b.endsAt = true, now+pauseMillis
	b.pausesTotal.Add(1)
	b.isActive.Store(true)
}

// Each outage causes one pause: a longer one will not end by itself.
func (b *expiryPause) linkWentDown() bool {
	down := b.linkDown.Load()
	began := down && !b.wasLinkDown
	b.wasLinkDown = down
	return began
}

// sendCounts are all sends, and those that failed because the network was down.
type sendCounts struct{ tried, down uint64 }

// A few failed sends are ignored: they may go to forged sources without a route.
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

// countExpiring is an estimate if the bucket is large.
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
	// The first of a bucket were filed last, so more of them are silent than of the rest.
	return min(bound*c.wheel.sizes[at%wheelBuckets]/seen, c.sampleExpiring(at))
}

// sampleExpiring looks at slots that are spread evenly: too coarse for a table that is mostly
// free.
func (c *control) sampleExpiring(at table.Tick) int {
	slots := c.shared.table.Slots()
	step := max(1, slots/forecastSample)
	seen, bound := 0, 0
	for slot := uint32(at) % step; slot < slots; slot += step {
		seen++
		h := c.shared.table.HandleAt(slot)
		if e, ok := c.shared.table.At(h); ok && !e.Endpoint.IsZero() && c.lifeTick(h) == at-1 {
			bound++
		}
	}
	return bound * int(slots) / seen
}

// wheelBuckets are ticks, 256 s. What is due later is put in again once per turn.
const wheelBuckets = 1024

// wheel is a timer wheel. Its lists run through the accounts of the table, so it has no memory per
// allocation. It belongs to the control goroutine.
type wheel struct {
	table *table.Table
	heads [wheelBuckets]uint32 // slot+1
	sizes [wheelBuckets]int
	now   table.Tick // the last tick whose bucket was begun
}

// put clamps the tick to those that the wheel spans.
func (w *wheel) put(h table.Handle, at table.Tick) {
	if at <= w.now {
		at = w.now + 1
	}
	at = min(at, w.now+wheelBuckets-1)
	bucket := uint16(at % wheelBuckets)
	a := w.table.Account(h)
	a.Bucket, a.Prev, a.Next = bucket+1, 0, w.heads[bucket]
	if a.Next != 0 {
		w.table.AccountAt(a.Next - 1).Prev = h.Slot() + 1
	}
	w.heads[bucket] = h.Slot() + 1
	w.sizes[bucket]++
}

// first returns a slot plus one, 0 for none. The others follow through Account.Next.
func (w *wheel) first(at table.Tick) uint32 { return w.heads[at%wheelBuckets] }

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

// next returns the first tick before by whose bucket is not empty, or else by.
func (w *wheel) next(by table.Tick) table.Tick {
	at := w.now
	for at < by && w.first(at) == 0 {
		at++
	}
	return at
}

// The allocation that due returns stays in its bucket.
func (w *wheel) due(now table.Tick) (table.Handle, bool) {
	w.now = w.next(now)
	head := w.first(w.now)
	if head == 0 {
		return 0, false
	}
	return w.table.HandleAt(head - 1), true
}
