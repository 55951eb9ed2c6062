package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/statefile"
	"github.com/ferryrelay/ferry/internal/table"
)

// control is the single writer of all state: bindings, links, reservations, ends. It
// belongs to the goroutine in run; other goroutines reach it through inboxes and calls.
type control struct {
	shared  *shared
	hooks   Hooks
	inboxes []*inbox
	wheel   wheel
	queue   actionQueue
	out     outbox
	buf     [replySize]byte
	counts  counters

	pace       expiryPace
	backlog    bool // the last call left work for the next millisecond
	pause      expiryPause
	recovery   recovery
	drain      drain
	seats      seats
	projects   projects
	rebuilt    atomic.Uint64
	sendTotals func() sendCounts
	stateFile  *statefile.File // nil methods do nothing
	slow       slowLog

	wake  chan struct{}
	calls chan call
}

// call is a function that another goroutine has control run. Control sends its error,
// errFault or nil, when it has run.
type call struct {
	do   func(*control)
	done chan error
}

// errFault is the error of a call that panicked.
var errFault = fmt.Errorf("%w: a fault in the relay, see its log", alloc.ErrUnavailable)

// run works until ctx ends.
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
		c.logSlowChanges(c.shared.clock())
	}
}

// serve runs a call. A panic in it, as in a listing, ends the call and no match.
func (c *control) serve(call call) {
	err := errFault
	defer func() { call.done <- err }()
	defer c.recoverFault("call")
	call.do(c)
	err = nil
}

// recoverFault ends a panic and logs it. It must be deferred. What control guards in
// this way are hooks, calls and commands: each of them concerns one player or
// operator, and a client repeats what it has no answer to. A panic anywhere else, such
// as in expiry, ends the process, whose successor recovers from the state file.
func (c *control) recoverFault(what string) {
	if fault := recover(); fault != nil {
		c.shared.logFault(c.shared.clock(), fault, "in", what)
	}
}

// guard returns the hook with that name, which then cannot end the process.
func guard[E any](c *control, name string, hook func(E)) func(E) {
	if hook == nil {
		return nil
	}
	return func(e E) {
		defer c.recoverFault(name)
		hook(e)
	}
}

// guardHooks returns hooks that cannot end the process. Admit is part of a call, which
// fails with it.
func (c *control) guardHooks(h Hooks) Hooks {
	h.OnReserve = guard(c, "OnReserve", h.OnReserve)
	h.OnBind = guard(c, "OnBind", h.OnBind)
	h.OnConnect = guard(c, "OnConnect", h.OnConnect)
	h.OnDisconnect = guard(c, "OnDisconnect", h.OnDisconnect)
	h.OnEnd = guard(c, "OnEnd", h.OnEnd)
	h.OnReturn = guard(c, "OnReturn", h.OnReturn)
	h.OnLargeMessage = guard(c, "OnLargeMessage", h.OnLargeMessage)
	return h
}

// runOnce does a bounded amount of all pending work and reports whether more may be
// pending.
func (c *control) runOnce(now int64) bool {
	more := false
	c.pause.noteTime(now)
	for _, b := range c.inboxes {
		more = b.drain(c.execute) || more
	}
	c.backlog = false
	more = c.expireSome(now) || more
	c.recoverSome(now)
	c.drainSome(now)
	for range len(c.calls) {
		c.serve(<-c.calls)
	}
	c.runActions(now)
	c.counts.sent(c.out.flush())
	return more
}

// execute executes a command and counts its outcome. The worker has already counted
// the datagram of a report about a large message. A panic drops the command.
func (c *control) execute(cmd *command) {
	defer func() {
		if fault := recover(); fault != nil {
			if cmd.large.size == 0 {
				c.counts.add(DropPanic)
			}
			c.shared.logFault(cmd.now, fault, "in", "command", "type", cmd.kind)
		}
	}()
	if cmd.large.size != 0 {
		c.reportLargeMessage(cmd)
		return
	}
	c.counts.add(c.commit(cmd))
}

// runActions runs the actions whose grace period is over.
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

// deliver adds the datagram of an action to the outbox.
func (c *control) deliver(d *action) {
	if c.out.full() {
		c.counts.sent(c.out.flush())
	}
	c.out.add(d.to, append(c.out.reply(), d.room[:d.size]...))
}

// confirmBinding records that a BIND_RECEIVED is sent, if its BIND is still the last
// one: the owner may have left the endpoint and come back.
func (c *control) confirmBinding(d *action) {
	e, ok := c.shared.table.At(d.handle)
	if ok && e.Endpoint == d.to && e.Nonce == d.nonce && !e.Is(table.BindConfirmed) {
		c.shared.table.SetFlags(d.handle, table.BindConfirmed)
	}
}

// actionKind is what control does when a grace period is over.
type actionKind uint8

const (
	sendReply        actionKind = iota // send the first size bytes of room
	sendBindReceived                   // the same, a BIND_RECEIVED for handle
	sendTimeout                        // the same, an ERROR 1, unless the endpoint has another owner
	recycleSlot                        // let the slot of an ended allocation be used again
	expireAllocation                   // end handle if it is still overdue
)

// action is one deferred action.
type action struct {
	after  uint64 // number of the grace period that must be over; 0: none
	kind   actionKind
	handle table.Handle
	to     endpoint.Endpoint
	size   uint8
	nonce  uint16 // sendBindReceived: of the BIND
	room   [replySize]byte
}

// actionQueue holds deferred actions in the order of their commits. It is first in,
// first out, so a reply that need not wait is sent after an earlier one that must. It
// belongs to the control goroutine. Its size is bounded by the commands of one grace
// period and two actions for each allocation.
type actionQueue struct {
	actions []action
	head    int
}

func (q *actionQueue) empty() bool { return q.head == len(q.actions) }

// add appends an action and returns it; it is valid until the next call.
func (q *actionQueue) add() *action {
	// Reuse the space of finished actions when they are more than half.
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

// pop returns the first action if its grace period is over, else nil. The action is
// valid until the next add.
func (q *actionQueue) pop(done uint64) *action {
	if q.empty() || q.actions[q.head].after > done {
		return nil
	}
	q.head++
	return &q.actions[q.head-1]
}

// grace tracks grace periods, as in RCU: at the end of one, every worker has passed
// through a quiescent state (the end of a batch), so that no worker can still act on
// what the table held before the period began. It belongs to the control goroutine.
//
// One period runs at a time. A change that is committed while it runs waits for the
// next one, which begins when this one ends.
type grace struct {
	epochs     []*epoch
	seen       []uint64 // epoch of each worker when the running period began
	running    bool
	nextWanted bool   // an action waits for a period that has not begun
	done       uint64 // number of the last period that is over

	// workersMustWake makes each worker wake control after its next batch.
	workersMustWake atomic.Bool
}

func newGrace(epochs []*epoch) *grace {
	return &grace{epochs: epochs, seen: make([]uint64, len(epochs))}
}

// next returns the number of the period after which no worker acts on what was
// committed before now.
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
