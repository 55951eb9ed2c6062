package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/statefile"
	"github.com/ferryrelay/ferry/internal/table"
)

// linkRate is how many new links a host gets per second, so that strangers with
// tickets cannot keep it busy.
var linkRate = table.Rate{Interval: 50_000, Burst: 20}

// control makes every change of state: bindings, links, reservations, ends. It
// belongs to the goroutine in run; others reach it through rings and calls.
type control struct {
	shared  *shared
	hooks   Hooks
	inboxes []*inbox
	wheel   wheel
	queue   queue
	out     outbox
	buf     [replySize]byte
	counts  counters

	expires   int   // expiresPerMilli; a simulation takes all at once
	expiredAt int64 // ms; when expireSome last looked
	behind    bool  // and it left some for later
	brake     brake
	recovery  recovery
	drain     drain
	seats     seats
	projects  projects
	rebuilt   atomic.Uint64
	sends     func() sendCounts
	stateFile *statefile.File           // nil methods do nothing
	links     [spoofGates]atomic.Uint64 // gates of linkRate

	wake  chan struct{}
	calls chan call
}

// call is a question to control from another goroutine.
type call struct {
	do   func(*control)
	done chan struct{}
}

// run decides until ctx ends.
func (c *control) run(ctx context.Context) {
	ticker := time.NewTicker(table.TickMillis * time.Millisecond)
	defer ticker.Stop()
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-ticker.C:
		case <-later.C:
		case call := <-c.calls:
			c.answer(call)
		}
		for c.pump(c.shared.clock()) && ctx.Err() == nil {
		}
		if c.behind {
			later.Reset(time.Millisecond)
		}
		c.counts.publish()
	}
}

func (c *control) answer(call call) {
	call.do(c)
	close(call.done)
}

// pump does a bounded amount of everything that waits and reports whether
// there may be more.
func (c *control) pump(now int64) bool {
	more := false
	c.brake.stalled(now)
	for _, b := range c.inboxes {
		more = b.pump(c.decide) || more
	}
	c.recoverSome(now)
	c.expireSome(now)
	c.drainSome(now)
	for range len(c.calls) {
		c.answer(<-c.calls)
	}
	c.release(now)
	c.counts.sent(c.out.flush())
	return more
}

// decide gives the verdict on a command and counts it. A report about a message
// is no datagram that waits: the worker has counted it.
func (c *control) decide(cmd *command) {
	if cmd.large.size != 0 {
		c.tellLarge(cmd)
		return
	}
	c.counts.add(c.commit(cmd))
}

// release does the deeds whose grace period is over.
func (c *control) release(now int64) {
	for {
		d := c.queue.pop(c.shared.grace.poll())
		if d == nil {
			return
		}
		switch d.does {
		case sendReply:
			c.deliver(d)
		case sendBound:
			c.deliver(d)
			c.told(d)
		case sendLast:
			if _, taken := c.shared.table.ByEndpoint(d.to); !taken {
				c.deliver(d)
			}
		case recycleSlot:
			c.shared.table.Recycle(d.handle)
		case expire:
			c.expireMarked(d.handle, tick(now))
		}
	}
}

// deliver puts what is due into the outbox.
func (c *control) deliver(d *deferred) {
	if c.out.full() {
		c.counts.sent(c.out.flush())
	}
	c.out.add(d.to, append(c.out.reply(), d.room[:d.size]...))
}

// told notes that a BIND_RECEIVED leaves, if its BIND is still the last one: the
// same endpoint may have been left and taken again. Every worker has passed, so
// whoever was heard at the former endpoint proves nothing any more.
func (c *control) told(d *deferred) {
	e, ok := c.shared.table.At(d.handle)
	if ok && e.Endpoint == d.to && e.Nonce == d.nonce && !e.Is(table.Told) {
		c.shared.table.Activity(d.handle).Unprove(c.shared.live.Load().unproven)
		c.shared.table.Mark(d.handle, table.Told)
	}
}
