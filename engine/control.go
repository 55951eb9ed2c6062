package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
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
	queue   actionQueue
	out     outbox
	buf     [replySize]byte
	counts  counters

	expiriesPerMilli int   // expiresPerMilli; a simulation takes all at once
	expiredAt        int64 // ms; when expireSome last looked
	backlog          bool  // and it left some for later
	pause            expiryPause
	recovery         recovery
	drain            drain
	seats            seats
	projects         projects
	rebuilt          atomic.Uint64
	sendTotals       func() sendCounts
	stateFile        *statefile.File           // nil methods do nothing
	links            [spoofGates]atomic.Uint64 // gates of linkRate

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
			c.serve(call)
		}
		for c.runOnce(c.shared.clock()) && ctx.Err() == nil {
		}
		if c.backlog {
			later.Reset(time.Millisecond)
		}
		c.counts.publish()
	}
}

func (c *control) serve(call call) {
	call.do(c)
	close(call.done)
}

// pump does a bounded amount of everything that waits and reports whether
// there may be more.
func (c *control) runOnce(now int64) bool {
	more := false
	c.pause.noteTime(now)
	for _, b := range c.inboxes {
		more = b.drain(c.execute) || more
	}
	c.recoverSome(now)
	c.expireSome(now)
	c.drainSome(now)
	for range len(c.calls) {
		c.serve(<-c.calls)
	}
	c.runActions(now)
	c.counts.sent(c.out.flush())
	return more
}

// decide gives the verdict on a command and counts it. A report about a message
// is no datagram that waits: the worker has counted it.
func (c *control) execute(cmd *command) {
	if cmd.large.size != 0 {
		c.reportLargeMessage(cmd)
		return
	}
	c.counts.add(c.commit(cmd))
}

// release does the deeds whose grace period is over.
func (c *control) runActions(now int64) {
	for {
		d := c.queue.pop(c.shared.grace.poll())
		if d == nil {
			return
		}
		switch d.kind {
		case sendReply:
			c.deliver(d)
		case sendBindReceived:
			c.deliver(d)
			c.confirmBinding(d)
		case sendTimeout:
			var other table.Entry
			if !c.shared.table.FindByEndpoint(d.to, &other) {
				c.deliver(d)
			}
		case recycleSlot:
			c.shared.table.Recycle(d.handle)
		case expireAllocation:
			c.expireMarked(d.handle, tick(now))
		}
	}
}

// deliver puts what is due into the outbox.
func (c *control) deliver(d *action) {
	if c.out.full() {
		c.counts.sent(c.out.flush())
	}
	c.out.add(d.to, append(c.out.reply(), d.room[:d.size]...))
}

// told notes that a BIND_RECEIVED leaves, if its BIND is still the last one: the
// same endpoint may have been left and taken again. Every worker has passed, so
// whoever was heard at the former endpoint proves nothing any more.
func (c *control) confirmBinding(d *action) {
	e, ok := c.shared.table.At(d.handle)
	if ok && e.Endpoint == d.to && e.Nonce == d.nonce && !e.Is(table.BindConfirmed) {
		c.shared.table.Activity(d.handle).RequireValidation(c.shared.limits.Load().unvalidated)
		c.shared.table.SetFlags(d.handle, table.BindConfirmed)
	}
}

// deed is what control does once every worker has passed.
type actionKind uint8

const (
	sendReply        actionKind = iota // send the first size bytes of room
	sendBindReceived                   // the same, a BIND_RECEIVED for handle
	sendTimeout                        // the same, an ERROR 1, unless somebody else is there by now
	recycleSlot                        // let the slot of an ended allocation be used again
	expireAllocation                   // end handle if it is still overdue
)

// deferred is one such deed.
type action struct {
	after  uint64 // number of the grace period that must be over; 0: none
	kind   actionKind
	handle table.Handle
	to     endpoint.Endpoint
	size   uint8
	nonce  uint16 // sendBound: of the BIND
	room   [replySize]byte
}

// queue holds control's deeds in the order of their commits. None overtakes
// another, so a reply that need not wait still comes after one that must. It
// belongs to the control goroutine. What it holds is bounded: commands of one
// grace period, and one deed or two per allocation.
type actionQueue struct {
	actions []action
	head    int
}

func (q *actionQueue) empty() bool { return q.head == len(q.actions) }

// add appends a deed and returns it for filling; it is valid until the next
// call.
func (q *actionQueue) add() *action {
	// What is done makes room when it is more than half.
	if q.head*2 >= len(q.actions) && q.head > 0 {
		n := copy(q.actions, q.actions[q.head:])
		q.actions, q.head = q.actions[:n], 0
	}
	q.actions = append(q.actions, action{})
	return &q.actions[len(q.actions)-1]
}

func (q *actionQueue) push(after uint64, does actionKind, h table.Handle) {
	d := q.add()
	d.after, d.kind, d.handle = after, does, h
}

// pop returns the first deed if its grace period, and so every earlier one, is
// over, else nil. The deed is valid until the next add.
func (q *actionQueue) pop(done uint64) *action {
	if q.empty() || q.actions[q.head].after > done {
		return nil
	}
	q.head++
	return &q.actions[q.head-1]
}

// grace tells when every worker has passed, that is: when no worker can still
// act on what the table said before. It belongs to the control goroutine.
//
// One grace period runs at a time. What is committed while it runs must wait
// for the next one, which begins when this one ends.
type grace struct {
	epochs     []*epoch
	seen       []uint64 // where each worker was when the running period began
	running    bool
	nextWanted bool   // somebody waits for a period that has not begun
	done       uint64 // number of the last period that is over

	// waiting asks the workers to wake control after a flush.
	workersMustWake atomic.Bool
}

func newGrace(epochs []*epoch) *grace {
	return &grace{epochs: epochs, seen: make([]uint64, len(epochs))}
}

// next returns the number of the period at whose end every worker will have
// passed what was committed until now.
func (g *grace) next() uint64 {
	if !g.running {
		g.begin()
		return g.done + 1
	}
	g.nextWanted = true
	return g.done + 2
}

func (g *grace) begin() {
	for i, e := range g.epochs {
		g.seen[i] = e.count.Load()
	}
	g.running, g.nextWanted = true, false
	g.workersMustWake.Store(true)
}

// poll returns the number of the last period that is over.
func (g *grace) poll() uint64 {
	for g.running && g.allQuiescent() {
		g.running = false
		g.done++
		if g.nextWanted {
			g.begin()
		}
	}
	if !g.running {
		g.workersMustWake.Store(false)
	}
	return g.done
}

func (g *grace) allQuiescent() bool {
	for i, e := range g.epochs {
		if g.seen[i]&1 == 1 && e.count.Load() == g.seen[i] {
			return false
		}
	}
	return true
}
