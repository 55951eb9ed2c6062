package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// control is the single writer of all state. It belongs to the goroutine in run; others reach it
// through inboxes and calls.
type control struct {
	shared  *shared
	hooks   Hooks // guarded
	guard   *hookGuard
	inboxes inboxes
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
	migrations migrations
	projects   projects
	players    players
	rebuilt    atomic.Uint64
	sendTotals func() sendCounts
	stateFile  *statefile.File // nil methods do nothing
	rewrite    rewrite
	codes      map[table.Handle]statefile.Code // join codes of live hosts, for rewrite
	tags       map[table.Handle]uint64         // of live allocations that have one
	sentTotals sentTotals
	slow       slowLog
	refusals   refusalGates
	nextHops   *nextHops      // nil: there is no fast path
	records    driver.Records // nil: none
	transports []Transport
	// A plain UDP endpoint always counts as open.
	isOpen func(endpoint.Endpoint) bool

	wake  chan struct{}
	calls chan *call
}

func (c *control) run(ctx context.Context) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	every := time.Duration(0)
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-tick.C:
			due = true
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
		now := c.shared.clock()
		c.logSlowChanges(now)
		next := c.tickEvery(now)
		until := periodic.Until(next)
		if due || next != every {
			tick.Reset(until)
		}
		every = next
		c.pause.lastRun = now + until.Milliseconds() - table.TickMillis
	}
}

// idleTick is the time between two ticks while nothing expires before the next but one.
const idleTick = time.Second

func (c *control) tickEvery(now int64) time.Duration {
	soon := tick(now) + table.Tick(2*idleTick.Milliseconds()/table.TickMillis)
	if len(c.migrations.queue)+c.queue.len() > 0 || c.drain.active.Load() || c.wheel.next(soon) < soon {
		return table.TickMillis * time.Millisecond
	}
	return idleTick
}

// wakeUp never blocks. Any goroutine calls it.
func (c *control) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// networkChanged makes control ask for all next hops again. Any goroutine calls it.
func (c *control) networkChanged() {
	c.nextHops.changed.Store(true)
	c.wakeUp()
}

// recoverFault ends a panic and logs it. It must be deferred, around calls and commands only: each
// concerns one player or operator. A panic anywhere else, such as in expiry, ends the process,
// whose candidate recovers from the state file.
func (c *control) recoverFault(what string) {
	if fault := recover(); fault != nil {
		c.shared.logFault(c.shared.clock(), fault, "in", what)
	}
}

func (c *control) runOnce(now int64) bool {
	c.pause.noteTime(now)
	c.inboxes.drain(&c.queue, c.execute)
	c.backlog = false
	more := c.expireSome(now)
	more = c.nextHops.update() || more
	c.recoverSome(now)
	c.rewriteSome(now)
	c.drainSome(now)
	more = c.endMigrations(now) || more
	for range len(c.calls) {
		select {
		case call := <-c.calls:
			c.serve(call)
		default: // hookGuard.watch has refused it.
		}
	}
	c.runActions(now)
	if t := c.shared.tap.Load(); t != nil {
		t.endRound()
	}
	c.counts.countSent(c.out.flush())
	return more || c.inboxes.hasMore(&c.queue)
}

// The worker has already counted the datagram of a report.
func (c *control) execute(cmd *command) {
	defer func() {
		if fault := recover(); fault != nil {
			if cmd.large.size == 0 && cmd.refused == 0 {
				c.counts.add(dropPanic)
			}
			c.shared.logFault(cmd.now, fault, "in", "command", "type", cmd.kind)
		}
	}()
	if cmd.large.size != 0 {
		c.reportLargeMessage(cmd)
		return
	}
	if cmd.refused != 0 {
		c.hooks.Private.OnRefuse(cmd.refusal(cmd.refused))
		return
	}
	outcome := c.commit(cmd)
	c.counts.add(outcome)
	if t := c.shared.tap.Load(); t != nil {
		t.decide(cmd.now, cmd.from, cmd.kind, outcome)
	}
	if c.hooks.Private.OnRefuse != nil && outcome.isRefusal() && c.refusals.take(c.shared.budgets, cmd.from, cmd.now) {
		c.hooks.Private.OnRefuse(cmd.refusal(outcome))
	}
}

func (c *control) runActions(now int64) {
	for {
		d := c.queue.pop(c.shared.grace.poll())
		if d == nil {
			if !c.shared.grace.begin() {
				return
			}
			continue // If no worker handles a batch, the period is over.
		}
		switch d.kind {
		case recycleSlot:
			c.shared.table.Recycle(d.handle)
		case expireAllocation:
			c.expireMarked(d.handle, tick(now))
		default:
			c.send(d)
		}
	}
}

func (c *control) send(d *action) {
	if d.kind == sendTimeout {
		var other table.Entry
		if c.shared.table.FindByEndpoint(d.to, &other) {
			return
		}
	}
	if c.out.full() {
		c.counts.countSent(c.out.flush())
	}
	c.out.add(d.to, append(c.out.reply(), d.room[:d.size]...))
	if t := c.shared.tap.Load(); t != nil {
		t.addSentByControl(d.to, d.room[:d.size])
	}
	if d.kind == sendBindReceived {
		c.confirmBinding(d)
	}
}

// confirmBinding checks that the BIND is still the last one: the owner may have left the endpoint
// and come back.
func (c *control) confirmBinding(d *action) {
	e, ok := c.shared.table.At(d.handle)
	if ok && e.Endpoint == d.to && e.Nonce == d.nonce && !e.Is(table.BindConfirmed) {
		c.shared.table.SetFlags(d.handle, table.BindConfirmed)
	}
}

// submit executes the action of a reply, or queues it behind a grace period or an earlier datagram
// to its endpoint.
func (c *control) submit(d action) {
	if d.after == 0 && !c.queue.awaits(d.to) {
		c.send(&d)
		return
	}
	c.queue.push(d)
}

type actionKind uint8

const (
	sendReply        actionKind = iota // send the first size bytes of room
	sendBindReceived                   // the same, a BIND_RECEIVED for handle
	sendTimeout                        // the same, an ERROR 1, unless the endpoint has another owner
	recycleSlot                        // let the slot of an ended allocation be used again
	expireAllocation                   // end handle if it is still overdue
)

type action struct {
	after  uint64 // number of the grace period that must be over; 0: none
	kind   actionKind
	handle table.Handle
	to     endpoint.Endpoint
	size   uint8
	nonce  uint16 // sendBindReceived: of the BIND
	room   [replySize]byte
}

// The queue of actions is bounded: beyond it control leaves the commands of a class in the
// inboxes, and workers then refuse further ones by source prefix. First BINDs wait earlier than
// messages of those that play. At 100,000 commands a second that need a grace period, a worker may
// take 160 ms for one batch.
const (
	maxActions      = 16 << 10
	maxFreshActions = maxActions / 2
	keptActions     = 1 << 10
)

// actionQueue holds the actions that wait for a grace period, in the order of their commits, and
// those that must not overtake them. Besides maxActions of commands it holds up to maxMarked of
// expiry, and two for each allocation that has ended. It belongs to the control goroutine.
type actionQueue struct {
	actions []action
	head    int
	waiting [1024]uint32 // datagrams in the queue, by a hash of the endpoint
}

func (q *actionQueue) len() int { return len(q.actions) - q.head }

func (q *actionQueue) awaits(to endpoint.Endpoint) bool { return *q.gate(to) != 0 }

func (q *actionQueue) gate(to endpoint.Endpoint) *uint32 {
	return &q.waiting[endpoint.Mix64(endpoint.Mix64(to.Hi^to.Tail)^to.Lo)%uint64(len(q.waiting))]
}

func (q *actionQueue) push(d action) {
	if q.head*2 >= len(q.actions) && q.head > 0 {
		n := copy(q.actions, q.actions[q.head:])
		q.actions, q.head = q.actions[:n], 0
	}
	q.actions = append(q.actions, d)
	if !d.to.IsZero() {
		*q.gate(d.to)++
	}
}

// The action that pop returns is valid until the next push or pop.
func (q *actionQueue) pop(done uint64) *action {
	if q.len() == 0 {
		if cap(q.actions) > keptActions {
			q.actions, q.head = nil, 0
		}
		return nil
	}
	d := &q.actions[q.head]
	if d.after > done {
		return nil
	}
	q.head++
	if !d.to.IsZero() {
		*q.gate(d.to)--
	}
	return d
}

// grace tracks grace periods, as in RCU: at the end of one, every worker has passed a quiescent
// state (the end of a batch), so that none acts on what the table held before the period began. It
// belongs to the control goroutine.
//
// A period begins after the commands of one round of control, and waits for the workers that
// handle a batch then. Several run at once, and end in order: a worker that the later one waits
// for is in the same batch, or in a later one.
type grace struct {
	// Workers read workersMustWake after each batch, so it is on a line of its own and written on
	// change only.
	workersMustWake atomic.Bool
	_               [63]byte

	epochs       []*epoch
	kernel       *kernelGrace       // nil: there is no fast path
	periods      [maxPeriods]period // of the running ones, by number
	begun        uint64             // number of the last period that has begun
	done         uint64             // number of the last period that is over
	wanted       bool               // an action waits for the next period
	kernelWanted bool
}

// maxPeriods: while a worker takes so long that so many began, the next one waits for it.
const maxPeriods = 16

type period struct {
	seen   []uint64 // epoch of each worker at the beginning
	passed int      // workers before this one have passed a quiescent state
	kernel uint64   // number of the period in the kernel; 0: none
}

func newGrace(epochs []*epoch) *grace {
	g := &grace{epochs: epochs}
	for i := range g.periods {
		g.periods[i].seen = make([]uint64, len(epochs))
	}
	return g
}

// next returns the number of the period after which no worker and no fast path acts on what was
// committed before now.
func (g *grace) next() uint64 {
	g.kernelWanted = g.kernel != nil
	return g.nextOfWorkers()
}

// nextOfWorkers is next for what the fast path did not know.
func (g *grace) nextOfWorkers() uint64 {
	g.wanted = true
	return g.begun + 1
}

func (g *grace) begin() bool {
	if !g.wanted || g.begun-g.done == maxPeriods {
		return false
	}
	g.wanted = false
	g.begun++
	p := &g.periods[g.begun%maxPeriods]
	p.passed, p.kernel = 0, 0
	if g.kernelWanted {
		g.kernelWanted = false
		p.kernel = g.kernel.begin()
	}
	for i, e := range g.epochs {
		p.seen[i] = e.count.Load()
	}
	if !g.workersMustWake.Load() {
		g.workersMustWake.Store(true)
	}
	return true
}

func (g *grace) poll() uint64 {
	for g.done < g.begun && g.isOver(&g.periods[(g.done+1)%maxPeriods]) {
		g.done++
	}
	if g.workersMustWake.Load() && !g.waitsForWorkers() {
		g.workersMustWake.Store(false)
	}
	return g.done
}

// The last period decides, since they end in order.
func (g *grace) waitsForWorkers() bool {
	return g.done < g.begun && !g.periods[g.begun%maxPeriods].passedWorkers(g.epochs)
}

func (g *grace) isOver(p *period) bool {
	return p.passedWorkers(g.epochs) && (p.kernel == 0 || g.kernel.isOver(p.kernel))
}

func (p *period) passedWorkers(epochs []*epoch) bool {
	for ; p.passed < len(epochs); p.passed++ {
		if seen := p.seen[p.passed]; seen&1 == 1 && epochs[p.passed].count.Load() == seen {
			return false
		}
	}
	return true
}
