package placement

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/proto"
)

// The pace of an [Announcer].
const (
	// refreshEvery is the interval at which each host is sent to the store again: two rounds may be missed.
	refreshEvery = HostTTL / 3
	// catchUp is the time in which all hosts are sent to the store: 5 s with the 1.5 s until its return is noticed.
	catchUp = 3 * time.Second
	// lateAfter is how much later than due a host may be sent before the
	// announcer hurries.
	lateAfter        = 5 * time.Second
	renewBatch       = 500
	minRenewInterval = 2 * time.Second
	announceTick     = 250 * time.Millisecond
	idleTick         = time.Second // while no host and no end is held
	leaveTimeout     = 2 * time.Second
	// The pause after a failed call doubles from the first to the second, half more or less.
	minRetryPause, maxRetryPause = 250 * time.Millisecond, time.Second
)

type AnnouncerConfig struct {
	Registry  Registry  // required
	Directory Directory // required
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
	Logger        *slog.Logger
}

// Announcer publishes a relay in the store: its heartbeat, and its hosts with their
// codes. HostReserved, HostReturned, KeepCode, HostMigrated and HostEnded may be called
// by any goroutine, also from hooks of the engine: they wait for nothing but a
// lock that no call to the store is made under.
type Announcer struct {
	*relayHosts
	registry     Registry
	directory    Directory
	node         func() Node
	onLost       func(proto.AllocationID)
	onRefused    func(proto.AllocationID)
	heartbeatNow chan struct{}
	counts       announcerCounts

	// The rest belongs to Run's goroutine.
	store         storeCalls
	pace          pace
	nextHeartbeat time.Time // when the next heartbeat is due
	healing       bool      // the last one said that pace catches up
	home          Home
	batch         []HostEntry
}

type announcerCounts struct{ heartbeats, renewals, renewedHosts, drops, lost atomic.Uint64 }

type AnnouncerStats struct {
	// Renewals counts calls that sent hosts, RenewedHosts these, Drops calls that sent ends, Moves codes
	// that passed to another host, Failed failed calls of any kind.
	Heartbeats, Renewals, RenewedHosts, Drops, Moves, Failed uint64
	Lost                                                     uint64
	// HostsDropped counts hosts, EndsDropped ends, MovesDropped moves, that were not sent to
	// the store because the announcer's memory was full.
	HostsDropped, EndsDropped, MovesDropped uint64
	Hosts, Ends                             int
}

// NewAnnouncer returns an announcer that holds nothing.
func NewAnnouncer(cfg AnnouncerConfig) *Announcer {
	if cfg.OnLost == nil {
		cfg.OnLost = func(proto.AllocationID) {}
	}
	if cfg.OnMoveRefused == nil {
		cfg.OnMoveRefused = func(proto.AllocationID) {}
	}
	return &Announcer{
		relayHosts: newRelayHosts(),
		registry:   cfg.Registry, directory: cfg.Directory, node: cfg.Node, onLost: cfg.OnLost, onRefused: cfg.OnMoveRefused,
		heartbeatNow: make(chan struct{}, 1),
		store:        storeCalls{log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))},
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
		Failed: a.store.failed.Load(), Lost: c.lost.Load(),
	}
	a.relayHosts.addStats(&st)
	return st
}

// Run announces the relay until ctx ends. Then it withdraws the relay's entry if no host
// is left; otherwise it marks the relay as draining and stopped, so that no new host is placed
// there until it is back. It can be called once.
func (a *Announcer) Run(ctx context.Context) error {
	for {
		a.doDue(ctx)
		select {
		case <-ctx.Done():
			a.leave(ctx)
			return nil
		case <-a.heartbeatNow:
			a.nextHeartbeat = time.Time{}
		case <-a.relayHosts.moveNow:
		case <-periodic.Next(a.tickEvery()):
		}
	}
}

func (a *Announcer) tickEvery() time.Duration {
	if st := a.Stats(); st.Hosts+st.Ends+a.store.errorStreak > 0 {
		return announceTick
	}
	return idleTick
}

func (a *Announcer) doDue(ctx context.Context) {
	for ctx.Err() == nil && !time.Now().Before(a.store.retryAt) {
		switch {
		case a.store.errorStreak > 0 || a.pace.catchingUp != a.healing || !time.Now().Before(a.nextHeartbeat):
			a.sendHeartbeat(ctx, a.node())
		case a.sendMove(ctx):
		case a.sendEnds(ctx):
		case a.sendHosts(ctx):
		default:
			return
		}
	}
}

func (a *Announcer) sendHeartbeat(ctx context.Context, n Node) {
	began := time.Now()
	a.home, n.Healing = Home{Relay: n.Relay, Boot: n.Boot}, a.pace.catchingUp
	var intact bool
	err := a.store.call(ctx, func(ctx context.Context) (err error) {
		intact, err = a.registry.Announce(ctx, n)
		return err
	})
	if err != nil {
		return
	}
	a.counts.heartbeats.Add(1)
	a.nextHeartbeat, a.healing = began.Add(HeartbeatEvery-announceTick/2), n.Healing // Ticks are seldom on time.
	if !intact {
		// Hosts sent in the same tick may have been sent before the store lost its data.
		a.pace.resendBefore = a.relayHosts.stampAt(began) + 1
		a.relayHosts.repeatMoves()
	}
	a.hostsDue()
}

// sendMove sends the oldest move. It reports whether there was one. Moves are sent before
// hosts and ends, by the goroutine that sends those, so that no Renew of the former host follows.
func (a *Announcer) sendMove(ctx context.Context) bool {
	m, needed, ok := a.relayHosts.firstMove()
	if !ok {
		return false
	}
	moved := false
	if needed {
		err := a.store.call(ctx, func(ctx context.Context) (err error) {
			moved, err = a.directory.MoveCode(ctx, m.tenant, m.code, m.from, m.to)
			return err
		})
		if err != nil {
			return true
		}
	}
	a.relayHosts.confirmMove(&m, moved)
	if needed && !moved {
		a.onRefused(m.to)
	}
	return true
}

func (a *Announcer) sendEnds(ctx context.Context) bool {
	a.batch = a.relayHosts.firstEnds(a.batch[:0], renewBatch)
	if len(a.batch) == 0 {
		return false
	}
	err := a.store.call(ctx, func(ctx context.Context) error {
		return a.directory.Drop(ctx, a.home, a.batch)
	})
	if err == nil {
		a.counts.drops.Add(1)
		a.relayHosts.confirmEnds(len(a.batch))
	}
	return true
}

// hostsDue returns how many hosts may be sent now, the stamp before which they were last sent, and the
// stamp of now.
func (a *Announcer) hostsDue() (n int, before, now uint32) {
	now = max(a.relayHosts.stampAt(time.Now()), a.pace.resendBefore)
	count, oldest := a.relayHosts.oldest()
	n, before = a.pace.due(now, count, oldest)
	return n, before, now
}

func (a *Announcer) sendHosts(ctx context.Context) bool {
	n, before, now := a.hostsDue()
	if n == 0 {
		return false
	}
	a.batch = a.relayHosts.first(a.batch[:0], n, before)
	if len(a.batch) == 0 {
		return false
	}
	a.pace.lastRenewal = time.Now()
	var lost []Lost
	err := a.store.call(ctx, func(ctx context.Context) (err error) {
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
	a.pace.spend(len(a.batch))
	a.counts.renewals.Add(1)
	a.counts.renewedHosts.Add(uint64(len(a.batch)))
	for _, host := range a.relayHosts.confirmHosts(a.batch, now, lost) {
		a.counts.lost.Add(1)
		a.onLost(host)
	}
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
		if home.Relay != a.home.Relay || !a.relayHosts.moveFromEnded(l) {
			others = append(others, l)
		}
	}
	return others, nil
}

func (a *Announcer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	n := a.node()
	a.home = Home{Relay: n.Relay, Boot: n.Boot}
	for a.store.errorStreak == 0 && (a.sendMove(ctx) || a.sendEnds(ctx)) {
	}
	if st := a.Stats(); st.Hosts+st.Ends > 0 {
		n.Draining, n.Stopped = true, true
		a.sendHeartbeat(ctx, n)
		return
	}
	_ = a.store.call(ctx, func(ctx context.Context) error {
		return a.registry.Withdraw(ctx, n.Relay, n.Boot)
	})
}

// storeCalls makes calls to the store, and pauses after those that fail. It belongs to one goroutine.
type storeCalls struct {
	log         *slog.Logger
	failed      atomic.Uint64 // for any goroutine
	errorStreak int           // calls in a row that failed
	retryAt     time.Time
}

func (s *storeCalls) call(parent context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, storeTimeout)
	defer cancel()
	err := do(ctx)
	switch {
	case err == nil && s.errorStreak > 0:
		s.log.Info("the store answers again", "failed", s.errorStreak)
		s.errorStreak = 0
		return nil
	case err == nil || errors.Is(parent.Err(), context.Canceled):
		return err // the caller has cancelled, so the store did not fail
	}
	if s.errorStreak == 0 {
		s.log.Warn("the store does not answer; the relay goes on", "error", err)
	}
	s.failed.Add(1)
	s.errorStreak++
	pause := min(minRetryPause<<min(s.errorStreak-1, 8), maxRetryPause)
	s.retryAt = time.Now().Add(pause/2 + rand.N(pause))
	return err
}
