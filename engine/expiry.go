package engine

import (
	"github.com/ferryrelay/ferry/internal/table"
)

// expiresPerMilli bounds how many due allocations control looks at in a
// millisecond, so that a hundred thousand at once delay nobody: it leaves most
// of a processor that control shares with a worker to the worker, and sends at
// most 20,000 ERROR 1 a second.
const expiresPerMilli = 20

// maxExpiresMillis is for how many milliseconds that passed control may make up
// at once: its timer is seldom on time.
const maxExpiresMillis = 8

// expireSome marks allocations for which something is overdue at now, a time in
// milliseconds. What is overdue happens only when every worker has passed, and
// if it is still overdue then. What is too much for this millisecond is left
// for later, which behind says.
func (c *control) expireSome(now int64) {
	if now == c.expiredAt {
		return
	}
	quota := c.expires * int(min(now-c.expiredAt, maxExpiresMillis))
	c.expiredAt, c.behind = now, false
	if c.watch(now) {
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
		c.shared.table.Account(h).Ending = true
		c.queue.push(c.shared.grace.next(), expire, h)
	}
	c.behind = true
}

// expireMarked does what is overdue for h, unless it was heard of since it was
// marked.
func (c *control) expireMarked(h table.Handle, now table.Tick) {
	if _, ok := c.shared.table.At(h); !ok {
		return
	}
	a := c.shared.table.Account(h)
	a.Ending = false
	if why, over := c.over(h, now); over {
		c.end(h, why)
		return
	}
	if now > a.Closing {
		a.Closing = 0 // Its owner goes on, so the CLOSE was forged.
	}
	c.expireLink(h, a, now)
	c.wheel.put(h, c.nextTick(h)+1)
}

// over reports whether h ends now, and why.
func (c *control) over(h table.Handle, now table.Tick) (EndReason, bool) {
	if a := c.shared.table.Account(h); a.Closing != 0 && now > a.Closing {
		if heard, _ := c.shared.table.Activity(h).Stamps(); heard <= a.Closing-lingerTicks {
			return EndClosed, true
		}
	}
	return EndExpired, now > c.lifeTick(h) && !c.brake.holds
}

// expireLink does what is overdue for the link of a joiner: a DISCONNECT that
// had to wait, and the end of a link that nobody uses.
func (c *control) expireLink(h table.Handle, a *table.Account, now table.Tick) {
	joiner, _ := c.shared.table.At(h)
	host, linked := c.shared.table.At(joiner.Link)
	if linked {
		_, over := c.over(host.Handle, now)
		linked = !over // Whichever of both comes first in this tick.
	}
	if !linked {
		a.Leaving, a.Linked = 0, 0
		return
	}
	fromHost, fromJoiner := c.shared.table.Activity(h).LinkStamps()
	if a.Leaving != 0 && now > a.Leaving {
		by, left, stays := fromJoiner, &joiner, &host
		if a.LeftBy == table.RoleHost {
			by, left, stays = fromHost, &host, &joiner
		}
		if by <= a.Leaving-lingerTicks {
			c.part(left, stays, now)
			return
		}
		a.Leaving = 0
	}
	if a.Linked != 0 && now > a.Linked+c.shared.rules.linkUnused {
		if max(fromHost, fromJoiner) < a.Linked {
			c.unlink(&joiner, &host)
		}
		a.Linked = 0
	}
}

// schedule files h anew after its limits changed.
func (c *control) schedule(h table.Handle) {
	if c.shared.table.Account(h).Ending {
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
	if a.Closing != 0 {
		next = min(next, a.Closing)
	}
	if a.Leaving != 0 {
		next = min(next, a.Leaving)
	}
	if a.Linked != 0 {
		next = min(next, a.Linked+c.shared.rules.linkUnused)
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
		return c.brake.extend(a.Reserved, c.shared.rules.bindWithin)
	}
	idle := c.shared.rules.idle
	if e.Role == table.RoleHost && !a.EverLinked {
		idle = c.shared.rules.idleAlone
	}
	heard, active := c.shared.table.Activity(h).Stamps()
	last := min(c.brake.extend(active, idle), c.brake.extend(heard, max(c.shared.rules.hear, idle)))
	return max(last, a.Deferred)
}
