package engine

import "github.com/ferryrelay/ferry/alloc"

// expiresPerPump bounds how many due allocations control looks at before it
// turns to its other work, so that a hundred thousand of them delay nobody.
const expiresPerPump = 1024

// expireSome marks allocations that are overdue at now. A marked one ends
// only when every worker has passed, and if it is still overdue then. It
// reports whether there may be more.
func (c *control) expireSome(now alloc.Tick) bool {
	for range expiresPerPump {
		h, ok := c.wheel.due(now)
		if !ok {
			return false
		}
		if last := c.lastTick(h); now <= last {
			c.wheel.put(h, last+1)
			continue
		}
		c.table.Account(h).Ending = true
		c.queue.push(c.grace.next(), expire, h)
	}
	return true
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
