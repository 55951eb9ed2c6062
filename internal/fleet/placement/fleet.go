package placement

import (
	"cmp"
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

var _ alloc.MigrationRelay = (*Fleet)(nil)

// ErrAlreadyRun is returned by a second call of Run.
var ErrAlreadyRun = errors.New("fleet: Run was called before")

// Fleet is an alloc.MigrationRelay over all relays of a fleet, for a process that serves the API.
// Its methods may be called concurrently; they return alloc.ErrUnavailable until Run has
// read the registry.
type Fleet struct {
	registry  Registry
	directory Directory
	dialer    Dialer
	defaults  map[string]string
	hints     hints
	log       *slog.Logger
	start     time.Time

	counts   counts
	releases chan release
	// polling is a lock that is held while the registry is read.
	polling chan struct{}

	mu   sync.Mutex // guards the following fields; held during no call
	view view
	rnd  *rand.Rand
	down bool // the last poll failed
	ran  bool
}

// New returns a fleet, or ErrConfig.
func New(cfg Config) (*Fleet, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	hints, err := newHints(cfg.Hints)
	if err != nil {
		return nil, err
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &Fleet{
		registry: cfg.Registry, directory: tracedDirectory{cfg.Directory}, dialer: cfg.Dialer,
		defaults: cfg.Defaults, hints: hints, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), start: time.Now(),
		releases: make(chan release, releaseQueue), polling: make(chan struct{}, 1),
		rnd: rand.New(rand.NewPCG(seed, seed)),
	}, nil
}

// Run reads the registry every second, and gives up reservations that came to
// nothing, until ctx ends. It can be called once.
func (f *Fleet) Run(ctx context.Context) error {
	f.mu.Lock()
	again := f.ran
	f.ran = true
	f.mu.Unlock()
	if again {
		return ErrAlreadyRun
	}
	var releasers sync.WaitGroup
	defer releasers.Wait()
	for range releaseAtOnce {
		releasers.Go(func() { f.releaseAll(ctx) })
	}
	for {
		if f.lockPolling(ctx) {
			f.poll(ctx)
			<-f.polling
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.pollAfter()):
		}
	}
}

// pollAfter returns the time until the next poll, a tenth more or less, so that
// the processes of a fleet do not all poll at once.
func (f *Fleet) pollAfter() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return PollEvery + time.Duration((f.rnd.Float64()-0.5)*float64(PollEvery)/5)
}

// now returns the time since the fleet was made.
func (f *Fleet) now() time.Duration { return time.Since(f.start) }

// lockPolling waits for the polling lock. It reports false when ctx ends first.
func (f *Fleet) lockPolling(ctx context.Context) bool {
	select {
	case f.polling <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// poll reads the registry. The caller holds the polling lock.
func (f *Fleet) poll(ctx context.Context) {
	at := f.now()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	nodes, err := f.registry.Nodes(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // the caller has cancelled
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.down != (err != nil)
	f.down = err != nil
	if err != nil {
		f.counts.pollsFailed.Add(1)
		f.view.markFailed(f.now())
		if changed {
			f.log.Warn("registry unavailable; running matches are not affected", "error", err)
		}
		return
	}
	f.counts.polls.Add(1)
	f.view.setNodes(nodes, at)
	if changed {
		f.log.Info("registry available again", "relays", len(nodes))
	}
}

// refresh reads the registry again, unless another goroutine just did. It reports
// whether the view was read after the call began.
func (f *Fleet) refresh(ctx context.Context) bool {
	asked := f.now()
	if !f.lockPolling(ctx) {
		return false
	}
	defer func() { <-f.polling }()
	f.mu.Lock()
	last := max(f.view.last, f.view.suspect.at)
	f.mu.Unlock()
	if last < asked && f.now()-last >= minPollInterval {
		f.poll(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view.last >= asked
}

// Nodes returns the relays as this process sees them, including the seats that it has
// assigned since their last heartbeats.
func (f *Fleet) Nodes() []Candidate {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	f.view.updateAges(now)
	all := append([]Candidate(nil), f.view.nodes...)
	for i := range all {
		all[i].Unknown = f.view.isUnknown(&all[i], now)
	}
	return all
}

// StoreAway reports whether the registry cannot be read, and since when: its last reading, or the
// start of the fleet.
func (f *Fleet) StoreAway() (since time.Time, away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.start.Add(f.view.last), f.view.isStale(f.now())
}

// Regions returns the regions that have a live relay, ordered by id. While the store is
// unavailable they do not change.
func (f *Fleet) Regions() []alloc.Region {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view.regions()
}

// HasRoom reports whether a relay of the region could take a host with so many seats when the
// registry was read last.
func (f *Fleet) HasRoom(region string, seats int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := draw{seats: seats}
	return slices.ContainsFunc(f.view.nodes, func(c Candidate) bool {
		c.Age -= f.view.asOf - f.view.last
		return c.Region == region && d.fits(&c)
	})
}

// Ready returns nil if this process can place hosts, else an error that wraps
// alloc.ErrStoreUnavailable.
func (f *Fleet) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready(f.now())
}

// ready is Ready for a caller that holds mu.
func (f *Fleet) ready(now time.Duration) error {
	switch {
	case !f.view.known:
		return fmt.Errorf("fleet: the registry has not been read yet: %w", alloc.ErrStoreUnavailable)
	case f.view.isStale(now):
		return fmt.Errorf("fleet: the registry was last read %v ago: %w",
			(now - f.view.last).Round(time.Second), alloc.ErrStoreUnavailable)
	}
	return nil
}

// unavailable wraps err, and makes it an alloc.ErrUnavailable by wrapping cause too if
// it is not one already.
func unavailable(operation string, cause, err error) error {
	if errors.Is(err, alloc.ErrUnavailable) {
		return fmt.Errorf("fleet: %s: %w", operation, err)
	}
	return fmt.Errorf("fleet: %s: %w: %w", operation, cause, err)
}

// ErrConfig is returned by [New] and [NewAnnouncer], with the field's name.
var ErrConfig = errors.New("fleet: bad configuration")

// The limits of time of a [Fleet]; doc.go gives the reasons.
const (
	// PollEvery is how often a process reads the registry.
	PollEvery = time.Second
	// ReserveWithin bounds a reservation, over all the relays that it tries.
	ReserveWithin = 2 * time.Second
	// HealFor is how long after the store has failed what it does not have may
	// still be on its way back into it.
	HealFor = DeadAfter + 4*time.Second

	minPollInterval = 250 * time.Millisecond
	staleAfter      = 3 * PollEvery
	relayTimeout    = 2 * time.Second
	storeTimeout    = time.Second
)

// Config configures a [Fleet].
type Config struct {
	// Registry, Directory and Dialer are the fleet. Required.
	Registry  Registry
	Directory Directory
	Dialer    Dialer
	// Defaults are the regions of projects whose callers name none, by project.
	Defaults map[string]string
	// Hints are the regions of clients, where neither caller nor project names
	// one.
	Hints []Hint
	// Seed makes the choice among relays repeatable. Zero: a random one.
	Seed uint64
	// Logger gets failures of the store, its return, and relays that do not answer.
	// Nil: no log.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Registry == nil:
		return fmt.Errorf("%w: Registry is nil", ErrConfig)
	case c.Directory == nil:
		return fmt.Errorf("%w: Directory is nil", ErrConfig)
	case c.Dialer == nil:
		return fmt.Errorf("%w: Dialer is nil", ErrConfig)
	}
	for project, region := range c.Defaults {
		if region == "" {
			return fmt.Errorf("%w: Defaults has no region for project %q", ErrConfig, project)
		}
	}
	return nil
}

// Stats are counts since the fleet was made.
type Stats struct {
	// Polls and PollsFailed count readings of the registry.
	Polls, PollsFailed uint64
	// Tries counts relays that were asked for a host, Placed hosts that were
	// placed. Full, Draining and Silent count the tries that failed: for lack of
	// room, because the relay drains, and because it did not answer.
	Tries, Placed, Full, Draining, Silent uint64
	// Refused counts requests for which no relay had room, Unavailable those
	// for which one did not answer or the registry was not known.
	Refused, Unavailable uint64
	// HomeErrors counts reservations that were given up because the store did not
	// take where they are. Of these Released were ended at the relay, and
	// ReleasesDropped lapse there.
	HomeErrors, Released, ReleasesDropped uint64
	// Relays is how many the registry has. Of these Dead do not announce themselves, Stopped have
	// ended as they were told to, and Unknown may live, since the store does not answer.
	Relays, Dead, Stopped, Unknown int
}

// counts are independent counters.
type counts struct {
	polls, pollsFailed                    atomic.Uint64
	tries, placed, full, draining, silent atomic.Uint64
	refused, unavailable                  atomic.Uint64
	homeErrors, released, releasesDropped atomic.Uint64
}

// Stats returns the counts. It may be called at any time.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	st := Stats{
		Polls: c.polls.Load(), PollsFailed: c.pollsFailed.Load(),
		Tries: c.tries.Load(), Placed: c.placed.Load(), Full: c.full.Load(),
		Draining: c.draining.Load(), Silent: c.silent.Load(),
		Refused: c.refused.Load(), Unavailable: c.unavailable.Load(),
		HomeErrors: c.homeErrors.Load(), Released: c.released.Load(), ReleasesDropped: c.releasesDropped.Load(),
	}
	for _, n := range f.Nodes() {
		st.Relays++
		switch {
		case n.Unknown:
			st.Unknown++
		case n.Stopped:
			st.Stopped++
		case n.IsDead():
			st.Dead++
		}
	}
	return st
}
