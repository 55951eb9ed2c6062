package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// The pace of an [Announcer]; doc.go gives the reasons.
const (
	// refreshEvery is how often the store is told of a host again.
	refreshEvery = HoldFor / 3
	// catchUp is how long it takes to tell the store of everything.
	catchUp = 3 * time.Second
	// lateBy is how much later than due a host may be told of before the
	// announcer hurries.
	lateBy = 5 * time.Second
	// holdBatch is how many hosts one call tells of.
	holdBatch = 500
	// holdLull is the time between calls that tell of fewer.
	holdLull = 2 * time.Second
	// announceTick is how often the announcer looks what there is to do.
	announceTick = 250 * time.Millisecond
	// farewell bounds what is told at the end.
	farewell = 2 * time.Second
	// The pause after a failed call: it doubles from one to the other.
	leastPause, mostPause = 250 * time.Millisecond, time.Second
)

// The bounds of what an [Announcer] remembers. Of a host beyond mostHosts the
// store forgets after [HoldFor], as it does of an end beyond mostEnds.
const (
	mostHosts = 1 << 20
	mostEnds  = 1 << 16
)

// AnnouncerConfig is what an [Announcer] is made of.
type AnnouncerConfig struct {
	// Registry and Directory are the fleet's. Required.
	Registry  Registry
	Directory Directory
	// Node returns what the relay announces now. Relay and Boot are always the
	// same. Required; it is called by Run's goroutine.
	Node func() Node
	// OnLost is told of a host whose code leads to another host, as happens
	// after the store has lost writes: nobody finds the host by it any more.
	// Nil is allowed; it is called by Run's goroutine.
	OnLost func(host proto.AllocationID)
	// Logger is told when the store fails and when it is back. Nil: silent.
	Logger *slog.Logger
}

// Announcer tells the store about a relay: its heartbeat, and the hosts that it
// holds, with their codes. Reserved, KeepCode, Returned and Ended may be called
// by any goroutine, also from hooks of the engine: they wait for nothing but a
// lock that no call to the store is made under.
type Announcer struct {
	registry  Registry
	directory Directory
	node      func() Node
	onLost    func(proto.AllocationID)
	log       *slog.Logger
	start     time.Time
	soon      chan struct{}

	mu    sync.Mutex // guards the following fields; held for no call
	hosts hosts
	ends  []Held
	stray uint64 // ends of what was not held
	ran   bool

	counts announced

	// The rest belongs to Run's goroutine.
	beatAt   time.Time // when the next heartbeat is due
	heldAt   time.Time // when the store was last told of hosts
	pacedAt  time.Time // until when credit has been given
	credit   float64   // hosts of which the store may be told by now
	recall   uint32    // of hosts told before this stamp the store may know nothing
	hurries  bool      // there are such hosts, or late ones
	healing  bool      // and that was announced
	failures int       // calls in a row that failed
	retryAt  time.Time
	home     Home
	batch    []Held
}

// announced are counters, each for itself.
type announced struct {
	beats, holds, held, drops, failed, lost, unheld, forgotten atomic.Uint64
}

// AnnouncerStats are counts since the announcer was made.
type AnnouncerStats struct {
	// Beats counts heartbeats, Holds calls that told of hosts, Held the hosts
	// that were told of, Drops calls that told of ends, Failed calls of any kind
	// that failed.
	Beats, Holds, Held, Drops, Failed uint64
	// Lost counts codes that lead to other hosts.
	Lost uint64
	// Unheld counts hosts, Forgotten ends, of which the store was not told
	// because there were too many to remember.
	Unheld, Forgotten uint64
	// Hosts is how many are held, Ends how many have ended without the store
	// knowing yet.
	Hosts, Ends int
}

// NewAnnouncer returns an announcer that holds nothing, or ErrConfig.
func NewAnnouncer(cfg AnnouncerConfig) (*Announcer, error) {
	switch {
	case cfg.Registry == nil:
		return nil, fmt.Errorf("%w: Registry is nil", ErrConfig)
	case cfg.Directory == nil:
		return nil, fmt.Errorf("%w: Directory is nil", ErrConfig)
	case cfg.Node == nil:
		return nil, fmt.Errorf("%w: Node is nil", ErrConfig)
	}
	if cfg.OnLost == nil {
		cfg.OnLost = func(proto.AllocationID) {}
	}
	return &Announcer{
		registry: cfg.Registry, directory: cfg.Directory, node: cfg.Node, onLost: cfg.OnLost,
		log: orSilent(cfg.Logger), start: time.Now(), soon: make(chan struct{}, 1), hosts: newHosts(),
	}, nil
}

// Reserved tells of a host whose home the API is about to set.
func (a *Announcer) Reserved(id proto.AllocationID, tenant uint64) { a.hold(id, tenant, a.stamp()) }

// Returned tells of a host of an earlier run, or one that may come back to this
// one. The store is told before it is told of others.
func (a *Announcer) Returned(id proto.AllocationID, tenant uint64) { a.hold(id, tenant, 0) }

func (a *Announcer) hold(id proto.AllocationID, tenant uint64, told uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.hosts.find(id) != nil:
	case a.hosts.len() >= mostHosts:
		a.counts.unheld.Add(1)
	default:
		a.hosts.add(id, tenant, time.Now(), told)
	}
}

// KeepCode tells the code of a host that is held. It does nothing for another
// one, and with what is no code.
func (a *Announcer) KeepCode(id proto.AllocationID, code string) {
	packed, ok := alloc.PackCode(code)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.hosts.find(id); h != nil {
		h.code = packed
	}
}

// Ended tells that a host has ended. It does nothing for one that is not held,
// and so for joiners.
func (a *Announcer) Ended(id proto.AllocationID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gone, ok := a.hosts.remove(id)
	switch {
	case !ok:
		a.stray++
	case len(a.ends) >= mostEnds:
		a.counts.forgotten.Add(1)
	default:
		a.ends = append(a.ends, gone.held())
	}
}

// strayEnds returns how many ends there were of what was not held.
func (a *Announcer) strayEnds() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stray
}

// Soon makes the next heartbeat come at once, as when the relay begins to
// drain.
func (a *Announcer) Soon() {
	select {
	case a.soon <- struct{}{}:
	default:
	}
}

// Stats returns the counts. It may be called at any time.
func (a *Announcer) Stats() AnnouncerStats {
	c := &a.counts
	st := AnnouncerStats{
		Beats: c.beats.Load(), Holds: c.holds.Load(), Held: c.held.Load(), Drops: c.drops.Load(),
		Failed: c.failed.Load(), Lost: c.lost.Load(), Unheld: c.unheld.Load(), Forgotten: c.forgotten.Load(),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	st.Hosts, st.Ends = a.hosts.len(), len(a.ends)
	return st
}

// stamp returns the time in units of announceTick since the announcer was made,
// from 1.
func (a *Announcer) stamp() uint32 { return stampAfter(time.Since(a.start)) }

func stampAfter(d time.Duration) uint32 { return uint32(max(d, 0)/announceTick) + 1 }

// Run announces until ctx ends, and then says farewell: the entry is withdrawn
// if no host is left, else it says that the relay drains, so that nothing new
// is placed there while it is away. It can be called once.
func (a *Announcer) Run(ctx context.Context) error {
	a.mu.Lock()
	again := a.ran
	a.ran = true
	a.mu.Unlock()
	if again {
		return ErrAlreadyRun
	}
	tick := time.NewTicker(announceTick)
	defer tick.Stop()
	for {
		a.work(ctx)
		select {
		case <-ctx.Done():
			a.leave(ctx)
			return nil
		case <-a.soon:
			a.beatAt = time.Time{}
		case <-tick.C:
		}
	}
}

// work does all that is due. While the store fails, that is a heartbeat now and
// then.
func (a *Announcer) work(ctx context.Context) {
	for ctx.Err() == nil && !time.Now().Before(a.retryAt) {
		switch {
		case a.failures > 0 || a.hurries != a.healing || !time.Now().Before(a.beatAt):
			a.beat(ctx, a.node())
		case a.drop(ctx):
		case a.refresh(ctx):
		default:
			return
		}
	}
}

// beat announces the relay.
func (a *Announcer) beat(ctx context.Context, n Node) {
	began := time.Now()
	a.home, n.Healing = Home{Relay: n.Relay, Boot: n.Boot}, a.hurries
	var intact bool
	err := a.call(ctx, func(ctx context.Context) (err error) {
		intact, err = a.registry.Announce(ctx, n)
		return err
	})
	if err != nil {
		return
	}
	a.counts.beats.Add(1)
	a.beatAt, a.healing = began.Add(HeartbeatEvery), n.Healing
	if !intact {
		// What was told in this very tick may have been told before.
		a.recall = stampAfter(began.Sub(a.start)) + 1
	}
	a.allowance(max(a.stamp(), a.recall))
}

// call makes a call to the store, and notes whether it failed.
func (a *Announcer) call(parent context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, callWithin)
	defer cancel()
	err := do(ctx)
	switch {
	case err == nil && a.failures > 0:
		a.log.Info("the store answers again", "failed", a.failures)
		a.failures = 0
		return nil
	case err == nil || errors.Is(parent.Err(), context.Canceled):
		return err // It was not for the store to answer.
	}
	if a.failures == 0 {
		a.log.Warn("the store does not answer; the relay goes on", "error", err)
	}
	a.counts.failed.Add(1)
	a.failures++
	pause := min(leastPause<<min(a.failures-1, 8), mostPause)
	a.retryAt = time.Now().Add(pause/2 + rand.N(pause))
	return err
}

// drop tells of a batch of ends. It reports whether it did.
func (a *Announcer) drop(ctx context.Context) bool {
	a.mu.Lock()
	a.batch = append(a.batch[:0], a.ends[:min(len(a.ends), holdBatch)]...)
	a.mu.Unlock()
	if len(a.batch) == 0 {
		return false
	}
	err := a.call(ctx, func(ctx context.Context) error {
		return a.directory.Drop(ctx, a.home, a.batch)
	})
	if err != nil {
		return true
	}
	a.counts.drops.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	// Ends are only ever added behind these.
	if a.ends = a.ends[len(a.batch):]; len(a.ends) == 0 {
		a.ends = nil
	}
	return true
}

// refresh tells of a batch of hosts, if it is time. It reports whether it did.
func (a *Announcer) refresh(ctx context.Context) bool {
	now := max(a.stamp(), a.recall)
	n, before := a.allowance(now)
	if n == 0 {
		return false
	}
	a.mu.Lock()
	a.batch = a.hosts.first(a.batch[:0], n, before)
	a.mu.Unlock()
	if len(a.batch) == 0 {
		return false
	}
	a.heldAt = time.Now()
	var lost []proto.AllocationID
	err := a.call(ctx, func(ctx context.Context) (err error) {
		lost, err = a.directory.Hold(ctx, a.home, a.batch)
		return err
	})
	if err != nil {
		return true
	}
	a.credit = max(a.credit-float64(len(a.batch)), 0)
	a.counts.holds.Add(1)
	a.counts.held.Add(uint64(len(a.batch)))
	a.told(now, lost)
	return true
}

// told notes that the store was told of a batch at that stamp.
func (a *Announcer) told(now uint32, lost []proto.AllocationID) {
	a.mu.Lock()
	for _, x := range a.batch {
		a.hosts.tell(x.Host, now)
	}
	lost = slices.DeleteFunc(lost, func(id proto.AllocationID) bool { return !a.forget(id) })
	a.mu.Unlock()
	for _, id := range lost {
		a.counts.lost.Add(1)
		a.onLost(id)
	}
}

// forget forgets the code of a host of the batch that was lost, and reports
// whether it is still the one that was sent. The caller holds mu.
func (a *Announcer) forget(id proto.AllocationID) bool {
	h := a.hosts.find(id)
	sent := slices.IndexFunc(a.batch, func(x Held) bool { return x.Host == id })
	if h == nil || sent < 0 {
		return false
	}
	code, _ := alloc.PackCode(a.batch[sent].Code)
	if h.code == 0 || h.code != code {
		return false
	}
	h.code = 0
	return true
}

// allowance returns of how many hosts the store may be told now, and before
// which stamp they were told of last. All are told of at an even pace over
// refreshEvery; those of which it may know nothing, and those that are late,
// over catchUp.
func (a *Announcer) allowance(now uint32) (n int, before uint32) {
	a.mu.Lock()
	held := a.hosts.len()
	oldest, ok := a.hosts.longest()
	a.mu.Unlock()
	began := time.Now()
	passed := began.Sub(a.pacedAt)
	a.pacedAt = began
	if !ok {
		a.credit, a.hurries = 0, false
		return 0, 0
	}
	urgent := max(a.recall, ago(now, refreshEvery+lateBy), 1)
	a.hurries = oldest < urgent
	if a.hurries {
		a.earn(passed, max(held, holdBatch), catchUp)
		return min(int(a.credit), holdBatch), urgent
	}
	a.earn(passed, held, refreshEvery)
	if a.credit < holdBatch && began.Sub(a.heldAt) < holdLull {
		return 0, 0
	}
	return min(int(a.credit), holdBatch), now
}

// earn gives credit for the time that has passed, at a pace of so many hosts in
// that time. What was missed while a call took long, or there was nothing to
// tell, is made up for by little.
func (a *Announcer) earn(passed time.Duration, hosts int, over time.Duration) {
	perTick := float64(hosts) * float64(announceTick) / float64(over)
	a.credit += perTick * float64(passed) / float64(announceTick)
	a.credit = min(a.credit, holdBatch+2*perTick)
}

// ago returns the stamp that was so long before now.
func ago(now uint32, d time.Duration) uint32 {
	return now - min(now, uint32(d/announceTick))
}

// leave tells of the last ends, and that the relay goes.
func (a *Announcer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	n := a.node()
	a.home = Home{Relay: n.Relay, Boot: n.Boot}
	for a.failures == 0 && a.drop(ctx) {
	}
	a.mu.Lock()
	left := a.hosts.len() + len(a.ends)
	a.mu.Unlock()
	if left > 0 {
		n.Draining = true
		a.beat(ctx, n)
		return
	}
	_ = a.call(ctx, func(ctx context.Context) error {
		return a.registry.Withdraw(ctx, n.Relay, n.Boot)
	})
}
