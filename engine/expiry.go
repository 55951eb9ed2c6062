package engine

import "github.com/ferryrelay/ferry/alloc"

// expiresPerMilli bounds how many due allocations control looks at in a
// millisecond, so that a hundred thousand at once delay nobody: it leaves most
// of a processor that control shares with a worker to the worker, and sends at
// most 20,000 ERROR 1 a second.
const expiresPerMilli = 20

// maxExpiresMillis is for how many milliseconds that passed control may make up
// at once: its timer is seldom on time.
const maxExpiresMillis = 8

// expireSome marks allocations that are overdue at now, a time in
// milliseconds. A marked one ends only when every worker has passed, and if it
// is still overdue then. What is too much for this millisecond is left for
// later, which behind says.
func (c *control) expireSome(now int64) {
	if now == c.expiredAt {
		return
	}
	quota := c.expires * int(min(now-c.expiredAt, maxExpiresMillis))
	c.expiredAt, c.behind = now, false
	for range quota {
		h, ok := c.wheel.due(tick(now))
		if !ok {
			return
		}
		if last := c.lastTick(h); tick(now) <= last {
			c.wheel.put(h, last+1)
			continue
		}
		c.table.Account(h).Ending = true
		c.queue.push(c.grace.next(), expire, h)
	}
	c.behind = true
}

// expireMarked ends h unless it was heard of since it was marked.
func (c *control) expireMarked(h alloc.Handle, now alloc.Tick) {
	if _, ok := c.table.At(h); !ok {
		return
	}
	c.table.Account(h).Ending = false
	if last := c.lastTick(h); now <= last {
		c.wheel.put(h, last+1)
		return
	}
	c.end(h, EndExpired)
}

// schedule files h anew after its limits changed.
func (c *control) schedule(h alloc.Handle) {
	if c.table.Account(h).Ending {
		return // It is looked at again when the grace period is over.
	}
	c.wheel.remove(h)
	c.wheel.put(h, c.lastTick(h)+1)
}

// lastTick returns the last tick at which h lives if nothing more happens:
// the idle limit after it last sent or received, and the hear limit after it
// last sent, whichever comes first.
func (c *control) lastTick(h alloc.Handle) alloc.Tick {
	a := c.table.Account(h)
	if !a.EverBound {
		return a.Reserved + c.rules.bindWithin
	}
	idle := c.rules.idle
	if e, _ := c.table.At(h); e.Role == alloc.RoleHost && !a.EverLinked {
		idle = c.rules.idleAlone
	}
	heard, active := c.table.Stamps(h)
	last := min(active+idle, heard+max(c.rules.hear, idle))
	return max(last, a.Deferred)
}
