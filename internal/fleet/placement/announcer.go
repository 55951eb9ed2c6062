package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// The pace of an [Announcer]; doc.go gives the reasons.
const (
	// refreshEvery is the interval at which each host is sent to the store again.
	refreshEvery = HostTTL / 3
	// catchUp is the time in which all hosts are sent to the store.
	catchUp = 3 * time.Second
	// lateAfter is how much later than due a host may be sent before the
	// announcer hurries.
	lateAfter = 5 * time.Second
	// renewBatch is the number of hosts in one call.
	renewBatch = 500
	// minRenewInterval is the time between calls with fewer hosts.
	minRenewInterval = 2 * time.Second
	// announceTick is the interval at which the announcer checks what is due.
	announceTick = 250 * time.Millisecond
	// leaveTimeout bounds the last calls of Run.
	leaveTimeout = 2 * time.Second
	// The pause after a failed call doubles from the first to the second.
	minRetryPause, maxRetryPause = 250 * time.Millisecond, time.Second
)

// The bounds of what an [Announcer] remembers. Of a host beyond maxHosts the
// store forgets after [HostTTL], as it does of an end beyond maxEnds. A code beyond maxMoves
// does not move: players do not find the host that has taken the place of another one.
const (
	maxHosts = 1 << 20
	maxEnds  = 1 << 16
	maxMoves = 1 << 16
)

// AnnouncerConfig configures an [Announcer].
type AnnouncerConfig struct {
	// Registry and Directory are the fleet's. Required.
	Registry  Registry
	Directory Directory
	// Node returns what the relay announces now. Relay and Boot are always the
	// same. Required; it is called by Run's goroutine.
	Node func() Node
	// OnLost is called for a host whose code now belongs to another host, which
	// happens after the store has lost writes: players cannot join the host with it
	// any more. Nil is allowed; it is called by Run's goroutine.
	OnLost func(host proto.AllocationID)
	// OnMoveRefused is called for a host that has taken the place of a former one and does
	// not get its code, which leads to a third host: no player finds it. Nil is allowed; it is
	// called by Run's goroutine.
	OnMoveRefused func(host proto.AllocationID)
	// Logger gets failures of the store and its return. Nil: no log.
	Logger *slog.Logger
}

// Announcer publishes a relay in the store: its heartbeat, and its hosts with their
// codes. HostReserved, HostReturned, KeepCode, HostMigrated and HostEnded may be called
// by any goroutine, also from hooks of the engine: they wait for nothing but a
// lock that no call to the store is made under.
type Announcer struct {
	registry     Registry
	directory    Directory
	node         func() Node
	onLost       func(proto.AllocationID)
	onRefused    func(proto.AllocationID)
	log          *slog.Logger
	start        time.Time
	heartbeatNow chan struct{}
	moveNow      chan struct{}

	mu    sync.Mutex // guards the following fields; held for no call
	hosts hosts
	ends  []HostEntry
	moves []move // not sent yet, the oldest first
	// made are moves that the store may lose, by the former host, as long as that is held.
	made map[proto.AllocationID]move
	ran  bool

	counts announcerCounts

	// The rest belongs to Run's goroutine.
	nextHeartbeat time.Time // when the next heartbeat is due
	lastRenewal   time.Time // when hosts were last sent
	pacedAt       time.Time // until when credit has been given
	credit        float64   // hosts that may be sent by now
	resendBefore  uint32    // the store may have lost hosts sent before this stamp
	catchingUp    bool      // there are such hosts, or late ones
	healing       bool      // and that was announced
	errorStreak   int       // calls in a row that failed
	retryAt       time.Time
	home          Home
	batch         []HostEntry
}

// announcerCounts are independent counters.
type announcerCounts struct {
	heartbeats, renewals, renewedHosts, drops, moves, failed, lost, hostsDropped, endsDropped, movesDropped atomic.Uint64
}

// AnnouncerStats are counts since the announcer was made.
type AnnouncerStats struct {
	// Heartbeats counts heartbeats, Renewals calls that sent hosts, RenewedHosts the hosts sent, Drops
	// calls that sent ends, Moves codes that passed to another host, Failed failed calls of any
	// kind.
	Heartbeats, Renewals, RenewedHosts, Drops, Moves, Failed uint64
	// Lost counts codes that now belong to other hosts.
	Lost uint64
	// HostsDropped counts hosts, EndsDropped ends, MovesDropped moves, that were not sent to
	// the store because the announcer's memory was full.
	HostsDropped, EndsDropped, MovesDropped uint64
	// Hosts is the number of hosts held, Ends the number of ends not sent yet.
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
	if cfg.OnMoveRefused == nil {
		cfg.OnMoveRefused = func(proto.AllocationID) {}
	}
	return &Announcer{
		registry: cfg.Registry, directory: cfg.Directory, node: cfg.Node, onLost: cfg.OnLost, onRefused: cfg.OnMoveRefused,
		log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), start: time.Now(), hosts: newHosts(),
		heartbeatNow: make(chan struct{}, 1), moveNow: make(chan struct{}, 1), made: make(map[proto.AllocationID]move),
	}, nil
}

// HostReserved adds a new host, whose home the API process is about to store. It must
// be called before HostEnded for the same host, see engine.Hooks.OnReserve.
func (a *Announcer) HostReserved(id proto.AllocationID, tenant uint64) {
	a.addHost(id, tenant, a.stamp())
}

// HostReturned adds a host of an earlier run, or one that may come back to this run. It
// is sent to the store before other hosts.
func (a *Announcer) HostReturned(id proto.AllocationID, tenant uint64) { a.addHost(id, tenant, 0) }

func (a *Announcer) addHost(id proto.AllocationID, tenant uint64, sent uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.hosts.find(id) != nil:
	case a.hosts.len() >= maxHosts:
		a.counts.hostsDropped.Add(1)
	default:
		a.hosts.add(id, tenant, time.Now(), sent)
	}
}

// KeepCode sets the code of a host that is held. It ignores other hosts, and malformed
// codes.
func (a *Announcer) KeepCode(id proto.AllocationID, code string) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.hosts.find(id); h != nil {
		h.code = packed
	}
}

// move is a code that passes from a host to the one that has taken its place.
type move struct {
	tenant   uint64
	code     string
	from, to proto.AllocationID
	number   uint64 // of those that were made
}

// HostMigrated moves the code of a host to the one that has taken its place. Both are held,
// the former one until no player may take its place any more, so that API processes find the
// relay by the code at any time. The store gets the move at once, and again until it answers.
func (a *Announcer) HostMigrated(tenant uint64, code string, from, to proto.AllocationID) {
	a.mu.Lock()
	a.addMove(move{tenant: tenant, code: code, from: from, to: to})
	a.mu.Unlock()
	select {
	case a.moveNow <- struct{}{}:
	default:
	}
}

// addMove queues a move. The caller holds mu.
func (a *Announcer) addMove(m move) {
	if len(a.moves) < maxMoves {
		a.moves = append(a.moves, m)
	} else {
		a.counts.movesDropped.Add(1)
	}
}

// isRestoring reports whether the store may lead a code to a host that has ended, in place of the
// one that this relay has for it.
func (a *Announcer) isRestoring() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest, ok := a.hosts.oldestSent()
	return len(a.moves) > 0 || ok && oldest == 0
}

// HostEnded removes a host that has ended. It ignores allocations that are not held.
func (a *Announcer) HostEnded(id proto.AllocationID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.made, id)
	gone, ok := a.hosts.remove(id)
	switch {
	case !ok:
	case len(a.ends) >= maxEnds:
		a.counts.endsDropped.Add(1)
	default:
		a.ends = append(a.ends, gone.entry())
	}
}

// HeartbeatNow sends the next heartbeat at once, for example when the relay begins to
// drain.
func (a *Announcer) HeartbeatNow() {
	select {
	case a.heartbeatNow <- struct{}{}:
	default:
	}
}

// Stats returns the counts. It may be called at any time.
func (a *Announcer) Stats() AnnouncerStats {
	c := &a.counts
	st := AnnouncerStats{
		Heartbeats: c.heartbeats.Load(), Renewals: c.renewals.Load(), RenewedHosts: c.renewedHosts.Load(), Drops: c.drops.Load(),
		Moves:  c.moves.Load(),
		Failed: c.failed.Load(), Lost: c.lost.Load(),
		HostsDropped: c.hostsDropped.Load(), EndsDropped: c.endsDropped.Load(), MovesDropped: c.movesDropped.Load(),
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

// Run announces the relay until ctx ends. Then it withdraws the relay's entry if no host
// is left; otherwise it marks the relay as draining and stopped, so that no new host is placed
// there until it is back. It can be called once.
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
		a.doDue(ctx)
		select {
		case <-ctx.Done():
			a.leave(ctx)
			return nil
		case <-a.heartbeatNow:
			a.nextHeartbeat = time.Time{}
		case <-a.moveNow:
		case <-tick.C:
		}
	}
}

// doDue makes all calls that are due. While the store fails, only heartbeats are due.
func (a *Announcer) doDue(ctx context.Context) {
	for ctx.Err() == nil && !time.Now().Before(a.retryAt) {
		switch {
		case a.errorStreak > 0 || a.catchingUp != a.healing || !time.Now().Before(a.nextHeartbeat):
			a.sendHeartbeat(ctx, a.node())
		case a.sendMove(ctx):
		case a.sendEnds(ctx):
		case a.sendHosts(ctx):
		default:
			return
		}
	}
}

// sendHeartbeat announces the relay.
func (a *Announcer) sendHeartbeat(ctx context.Context, n Node) {
	began := time.Now()
	a.home, n.Healing = Home{Relay: n.Relay, Boot: n.Boot}, a.catchingUp
	var intact bool
	err := a.call(ctx, func(ctx context.Context) (err error) {
		intact, err = a.registry.Announce(ctx, n)
		return err
	})
	if err != nil {
		return
	}
	a.counts.heartbeats.Add(1)
	a.nextHeartbeat, a.healing = began.Add(HeartbeatEvery), n.Healing
	if !intact {
		// Hosts sent in the same tick may have been sent before the store lost its data.
		a.resendBefore = stampAfter(began.Sub(a.start)) + 1
		a.repeatMoves()
	}
	a.hostsDue(max(a.stamp(), a.resendBefore))
}

// call makes a call to the store, and notes whether it failed.
func (a *Announcer) call(parent context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, storeTimeout)
	defer cancel()
	err := do(ctx)
	switch {
	case err == nil && a.errorStreak > 0:
		a.log.Info("the store answers again", "failed", a.errorStreak)
		a.errorStreak = 0
		return nil
	case err == nil || errors.Is(parent.Err(), context.Canceled):
		return err // the caller has cancelled, so the store did not fail
	}
	if a.errorStreak == 0 {
		a.log.Warn("the store does not answer; the relay goes on", "error", err)
	}
	a.counts.failed.Add(1)
	a.errorStreak++
	pause := min(minRetryPause<<min(a.errorStreak-1, 8), maxRetryPause)
	a.retryAt = time.Now().Add(pause/2 + rand.N(pause))
	return err
}

// sendMove sends the oldest move. It reports whether there was one. Moves are sent before
// hosts and ends, by the goroutine that sends those, so that no Renew of the former host follows.
func (a *Announcer) sendMove(ctx context.Context) bool {
	a.mu.Lock()
	if len(a.moves) == 0 {
		a.mu.Unlock()
		return false
	}
	m := a.moves[0]
	needed := a.hosts.find(m.to) != nil
	a.mu.Unlock()
	moved := false
	if needed {
		err := a.call(ctx, func(ctx context.Context) (err error) {
			moved, err = a.directory.MoveCode(ctx, m.tenant, m.code, m.from, m.to)
			return err
		})
		if err != nil {
			return true
		}
	}
	a.confirmMove(&m, moved)
	if needed && !moved {
		a.onRefused(m.to)
	}
	return true
}

// confirmMove removes the oldest move, which was made, refused, or is not needed any more.
func (a *Announcer) confirmMove(m *move, moved bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.moves = a.moves[1:]; len(a.moves) == 0 {
		a.moves = nil
	}
	from, to := a.hosts.find(m.from), a.hosts.find(m.to)
	if from != nil {
		from.code = 0
	}
	if to == nil || !moved {
		return
	}
	m.number = a.counts.moves.Add(1)
	to.code, _ = joincode.Pack(m.code)
	if from != nil {
		a.made[m.from] = *m
	}
}

// repeatMoves sends moves again that the store may have lost: it then has the code of the
// former host, which is older than the new one.
func (a *Announcer) repeatMoves() {
	a.mu.Lock()
	defer a.mu.Unlock()
	again := slices.SortedFunc(maps.Values(a.made), func(x, y move) int { return cmp.Compare(x.number, y.number) })
	a.moves = append(again, a.moves...)
}

// sendEnds sends a batch of ends. It reports whether there was one.
func (a *Announcer) sendEnds(ctx context.Context) bool {
	a.mu.Lock()
	a.batch = append(a.batch[:0], a.ends[:min(len(a.ends), renewBatch)]...)
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
	// New ends are appended behind the batch.
	if a.ends = a.ends[len(a.batch):]; len(a.ends) == 0 {
		a.ends = nil
	}
	return true
}

// sendHosts sends a batch of hosts if one is due. It reports whether it did.
func (a *Announcer) sendHosts(ctx context.Context) bool {
	now := max(a.stamp(), a.resendBefore)
	n, before := a.hostsDue(now)
	if n == 0 {
		return false
	}
	a.mu.Lock()
	a.batch = a.hosts.first(a.batch[:0], n, before)
	a.mu.Unlock()
	if len(a.batch) == 0 {
		return false
	}
	a.lastRenewal = time.Now()
	var lost []Lost
	err := a.call(ctx, func(ctx context.Context) (err error) {
		lost, err = a.directory.Renew(ctx, a.home, a.batch)
		if err != nil {
			return err
		}
		lost, err = a.takeFromEnded(ctx, lost)
		return err
	})
	if err != nil {
		return true
	}
	a.credit = max(a.credit-float64(len(a.batch)), 0)
	a.counts.renewals.Add(1)
	a.counts.renewedHosts.Add(uint64(len(a.batch)))
	a.confirmHosts(now, lost)
	return true
}

// takeFromEnded returns the hosts that have lost their codes for good. Where the code leads to a
// host of this relay that has ended, an earlier run was killed before it could send the move, and
// takeFromEnded queues that.
func (a *Announcer) takeFromEnded(ctx context.Context, lost []Lost) (others []Lost, err error) {
	for _, l := range lost {
		home, err := a.directory.HomeOf(ctx, l.Holder)
		if err != nil && !errors.Is(err, alloc.ErrNotFound) {
			return nil, err
		}
		a.mu.Lock()
		h := a.hosts.find(l.Host)
		if h != nil && h.code != 0 && home.Relay == a.home.Relay && a.hosts.find(l.Holder) == nil {
			a.addMove(move{tenant: h.tenant, code: joincode.Unpack(h.code), from: l.Holder, to: l.Host})
		} else {
			others = append(others, l)
		}
		a.mu.Unlock()
	}
	return others, nil
}

// confirmHosts records that the batch was sent at that stamp, and clears lost codes.
func (a *Announcer) confirmHosts(now uint32, lost []Lost) {
	a.mu.Lock()
	for _, x := range a.batch {
		a.hosts.markSent(x.Host, now)
	}
	lost = slices.DeleteFunc(lost, func(l Lost) bool { return !a.clearLostCode(l.Host) })
	a.mu.Unlock()
	for _, l := range lost {
		a.counts.lost.Add(1)
		a.onLost(l.Host)
	}
}

// clearLostCode clears the code of a host of the batch, unless the host has got another
// code since, and reports whether it did. The caller holds mu.
func (a *Announcer) clearLostCode(id proto.AllocationID) bool {
	h := a.hosts.find(id)
	sent := slices.IndexFunc(a.batch, func(x HostEntry) bool { return x.Host == id })
	if h == nil || sent < 0 {
		return false
	}
	code, _ := joincode.Pack(a.batch[sent].Code)
	if h.code == 0 || h.code != code {
		return false
	}
	h.code = 0
	return true
}

// hostsDue returns how many hosts may be sent now, and the stamp before which they were
// last sent. All hosts are sent at an even pace over refreshEvery; hosts that the store
// may not have, and late ones, over catchUp.
func (a *Announcer) hostsDue(now uint32) (n int, before uint32) {
	a.mu.Lock()
	count := a.hosts.len()
	oldest, ok := a.hosts.oldestSent()
	a.mu.Unlock()
	began := time.Now()
	passed := began.Sub(a.pacedAt)
	a.pacedAt = began
	if !ok {
		a.credit, a.catchingUp = 0, false
		return 0, 0
	}
	urgent := max(a.resendBefore, ago(now, refreshEvery+lateAfter), 1)
	a.catchingUp = oldest < urgent
	if a.catchingUp {
		a.addCredit(passed, max(count, renewBatch), catchUp)
		return min(int(a.credit), renewBatch), urgent
	}
	a.addCredit(passed, count, refreshEvery)
	if a.credit < renewBatch && began.Sub(a.lastRenewal) < minRenewInterval {
		return 0, 0
	}
	return min(int(a.credit), renewBatch), now
}

// addCredit adds credit for the time that has passed, at a rate of hosts per over. The
// credit is capped, so that slow calls and idle times cause no large burst.
func (a *Announcer) addCredit(passed time.Duration, hosts int, over time.Duration) {
	perTick := float64(hosts) * float64(announceTick) / float64(over)
	a.credit += perTick * float64(passed) / float64(announceTick)
	a.credit = min(a.credit, renewBatch+2*perTick)
}

// ago returns the stamp that was so long before now.
func ago(now uint32, d time.Duration) uint32 {
	return now - min(now, uint32(d/announceTick))
}

// leave sends the remaining ends, and withdraws the relay or marks it as draining.
func (a *Announcer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	n := a.node()
	a.home = Home{Relay: n.Relay, Boot: n.Boot}
	for a.errorStreak == 0 && (a.sendMove(ctx) || a.sendEnds(ctx)) {
	}
	a.mu.Lock()
	left := a.hosts.len() + len(a.ends)
	a.mu.Unlock()
	if left > 0 {
		n.Draining, n.Stopped = true, true
		a.sendHeartbeat(ctx, n)
		return
	}
	_ = a.call(ctx, func(ctx context.Context) error {
		return a.registry.Withdraw(ctx, n.Relay, n.Boot)
	})
}
