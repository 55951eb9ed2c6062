package placement

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
)

// relays are the relays of a fleet as this process sees them: it reads the registry, and keeps what it
// learns of a relay otherwise until the next heartbeat. Its methods may be called concurrently.
type relays struct {
	registry Registry
	log      *slog.Logger
	start    time.Time
	// polling is a lock that is held while the registry is read.
	polling            chan struct{}
	polls, pollsFailed atomic.Uint64

	mu   sync.Mutex // guards the following fields; held during no call
	view view
	rnd  *rand.Rand
	down bool // the last poll failed
}

func (r *relays) run(ctx context.Context) {
	for {
		if r.lockPolling(ctx) {
			r.poll(ctx)
			<-r.polling
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.pollAfter()):
		}
	}
}

// pollAfter returns the time until the next poll, a tenth more or less, so that
// the processes of a fleet do not all poll at once.
func (r *relays) pollAfter() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return PollEvery + time.Duration((r.rnd.Float64()-0.5)*float64(PollEvery)/5)
}

func (r *relays) now() time.Duration { return time.Since(r.start) }

// lockPolling waits for the polling lock. It reports false when ctx ends first.
func (r *relays) lockPolling(ctx context.Context) bool {
	select {
	case r.polling <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// poll reads the registry. The caller holds the polling lock.
func (r *relays) poll(ctx context.Context) {
	at := r.now()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	nodes, err := r.registry.Nodes(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // the caller has cancelled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.down != (err != nil)
	r.down = err != nil
	if err != nil {
		r.pollsFailed.Add(1)
		r.view.markFailed(r.now())
		if changed {
			r.log.Warn("registry unavailable; running matches are not affected", "error", err)
		}
		return
	}
	r.polls.Add(1)
	r.view.setNodes(nodes, at)
	if changed {
		r.log.Info("registry available again", "relays", len(nodes))
	}
}

// refresh reads the registry again, unless another goroutine just did. It reports
// whether the view was read after the call began.
func (r *relays) refresh(ctx context.Context) bool {
	asked := r.now()
	if !r.lockPolling(ctx) {
		return false
	}
	defer func() { <-r.polling }()
	r.mu.Lock()
	last := max(r.view.last, r.view.suspect.at)
	r.mu.Unlock()
	if last < asked && r.now()-last >= minPollInterval {
		r.poll(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.last >= asked
}

// Nodes returns the relays as this process sees them, including the seats that it has
// assigned since their last heartbeats.
func (r *relays) Nodes() []Candidate {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.view.updateAges(now)
	all := append([]Candidate(nil), r.view.nodes...)
	for i := range all {
		all[i].Unknown = r.view.isUnknown(&all[i], now)
	}
	return all
}

// StoreAway reports whether the registry cannot be read, and since when: its last reading, or the
// start of the fleet.
func (r *relays) StoreAway() (since time.Time, away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start.Add(r.view.last), r.view.isStale(r.now())
}

// Regions returns the regions that have a live relay, ordered by id. While the store is
// unavailable they do not change.
func (r *relays) Regions() []alloc.Region {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.regions()
}

// HasRoom reports whether a relay of the region could take a host with so many seats when the
// registry was read last.
func (r *relays) HasRoom(region string, seats int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := draw{seats: seats}
	return slices.ContainsFunc(r.view.nodes, func(c Candidate) bool {
		c.Age -= r.view.asOf - r.view.last
		return c.Region == region && d.fits(&c)
	})
}

// Ready returns nil if this process can place hosts, else an error that wraps
// alloc.ErrStoreUnavailable.
func (r *relays) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready(r.now())
}

// ready is Ready for a caller that holds mu.
func (r *relays) ready(now time.Duration) error {
	switch {
	case !r.view.known:
		return fmt.Errorf("fleet: the registry has not been read yet: %w", alloc.ErrStoreUnavailable)
	case r.view.isStale(now):
		return fmt.Errorf("fleet: the registry was last read %v ago: %w",
			(now - r.view.last).Round(time.Second), alloc.ErrStoreUnavailable)
	}
	return nil
}

// grant chooses a relay for a host that was not tried yet, and grants its seats in the view. The time
// returned identifies the grant. Errors: those of Place, and alloc.ErrStoreUnavailable.
func (r *relays) grant(q Request, tried []alloc.RelayID) (Candidate, time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if err := r.ready(now); err != nil {
		return Candidate{}, 0, err
	}
	r.view.updateAges(now)
	order, err := Place(r.view.nodes, q, len(tried)+2, r.rnd)
	if errors.Is(err, alloc.ErrRegion) && r.view.healing(now) {
		err = errHealing // The relays of the region may not have announced themselves again.
	}
	if err != nil {
		return Candidate{}, 0, err
	}
	for _, i := range order {
		if c := r.view.nodes[i]; !slices.Contains(tried, c.Relay) {
			r.view.grant(i, q.Seats, now)
			return c, now, nil
		}
	}
	return Candidate{}, 0, alloc.ErrFull
}

// undoGrant undoes a grant whose reservation failed, and records what that says about the relay by
// change, which may be nil.
func (r *relays) undoGrant(c *Candidate, seats int, at time.Duration, change func(n *observation, now event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.undoGrant(c.Relay, c.Boot, seats, at)
	if change != nil {
		r.view.update(c.Relay, c.Boot, func(n *observation) { change(n, event{r.now(), true}) })
	}
}

// silent returns how many reservations the current run of a relay has not answered.
func (r *relays) silent(relay alloc.RelayID) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.view.observed[relay]; n != nil {
		return n.silent
	}
	return 0
}

// load returns the part of the seats that is taken at the relays of a region that can take a host, and
// whether there are any.
func (r *relays) load(region string, seats int) (load float64, hasRoom bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.updateAges(r.now())
	d := draw{seats: seats}
	var all, taken int
	for i := range r.view.nodes {
		if c := &r.view.nodes[i]; c.Region == region && d.fits(c) {
			all, taken = all+c.Seats, taken+c.Taken
		}
	}
	return float64(taken) / float64(max(all, 1)), all > 0
}

// liveRelay returns the relay, errRelayAway for one that may come back, or
// alloc.ErrNotFound.
func (r *relays) liveRelay(relay alloc.RelayID) (Candidate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.view.updateAges(now)
	i, ok := r.view.find(relay)
	switch {
	case ok && r.view.nodes[i].Age <= DeadAfter:
		return r.view.nodes[i], nil
	case ok && r.view.nodes[i].Age <= DeadAfter+r.view.nodes[i].RecoverFor, !r.view.settled(now):
		return Candidate{}, errRelayAway
	}
	return Candidate{}, alloc.ErrNotFound
}

var errHealing = fmt.Errorf("fleet: the store has been away, and relays announce what it had: %w", alloc.ErrStoreUnavailable)

// notFoundUnlessHealing returns notFound, or alloc.ErrStoreUnavailable while relays may
// still restore what the store has lost.
func (r *relays) notFoundUnlessHealing(notFound error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.view.healing(r.now()) {
		return errHealing
	}
	return notFound
}
