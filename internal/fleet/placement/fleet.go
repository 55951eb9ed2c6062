package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

var _ alloc.MigrationRelay = (*Fleet)(nil)

var ErrAlreadyRun = errors.New("fleet: Run was called before")

// Fleet is an alloc.MigrationRelay over all relays of a fleet, for a process that serves the API.
// Its methods may be called concurrently; they return alloc.ErrUnavailable until Run has
// read the registry.
type Fleet struct {
	*relays   // Nodes, Regions, HasRoom, Ready, StoreAway
	directory Directory
	dialer    Dialer
	log       *slog.Logger
	unused    *unusedReservations
	counts    counts
	ran       atomic.Bool
}

// New returns a fleet, or ErrConfig.
func New(cfg Config) (*Fleet, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Fleet{
		relays: &relays{
			registry: cfg.Registry, log: log, start: time.Now(), polling: make(chan struct{}, 1), rnd: rand.New(rand.NewPCG(seed, seed)),
		},
		directory: cfg.Directory, dialer: cfg.Dialer, log: log,
		unused: &unusedReservations{dialer: cfg.Dialer, log: log, queue: make(chan release, releaseQueue)},
	}, nil
}

// Run reads the registry every second, and gives up reservations that came to
// nothing, until ctx ends. It can be called once.
func (f *Fleet) Run(ctx context.Context) error {
	if f.ran.Swap(true) {
		return ErrAlreadyRun
	}
	var releasers sync.WaitGroup
	for range releaseAtOnce {
		releasers.Go(func() { f.unused.run(ctx) })
	}
	f.relays.run(ctx)
	releasers.Wait()
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

// The limits of time of a [Fleet].
const (
	PollEvery = time.Second
	// ReserveWithin bounds a reservation, over all the relays that it tries. A player waits.
	ReserveWithin = 2 * time.Second
	// HealFor is how long after the store has failed what it does not have may still be on its way
	// back into it: a lost heartbeat, and less than 4 s in which a relay announces all its hosts.
	HealFor = DeadAfter + 4*time.Second

	minPollInterval = 250 * time.Millisecond
	staleAfter      = 3 * PollEvery
	relayTimeout    = 2 * time.Second
	storeTimeout    = time.Second
)

// Config configures a [Fleet].
type Config struct {
	Registry  Registry
	Directory Directory
	Dialer    Dialer
	// Seed makes the choice among relays repeatable. Zero: a random one.
	Seed   uint64
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
	return nil
}

type Stats struct {
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

type counts struct {
	tries, placed, full, draining, silent atomic.Uint64
	refused, unavailable, homeErrors      atomic.Uint64
}

// Stats returns the counts. It may be called at any time.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	st := Stats{
		Polls: f.relays.polls.Load(), PollsFailed: f.relays.pollsFailed.Load(),
		Tries: c.tries.Load(), Placed: c.placed.Load(), Full: c.full.Load(),
		Draining: c.draining.Load(), Silent: c.silent.Load(),
		Refused: c.refused.Load(), Unavailable: c.unavailable.Load(),
		HomeErrors: c.homeErrors.Load(), Released: f.unused.released.Load(), ReleasesDropped: f.unused.dropped.Load(),
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
