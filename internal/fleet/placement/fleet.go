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
)

var (
	_ alloc.Relay = (*Fleet)(nil)
	_ alloc.Relay = (*Regional)(nil)
)

// Fleet is an alloc.Relay over all relays of a fleet, for a process that serves the API.
// Its methods may be called concurrently; they return alloc.ErrUnavailable until Run has
// read the registry.
type Fleet struct {
	otherMachines
	*relays   // Nodes, Regions, HasRoom, Ready, StoreAway
	directory Directory
	dialer    Dialer
	log       *slog.Logger
	unused    *unusedReservations
	counts    counts
}

// otherMachines are relays that have their own configurations, and move the join codes of their hosts.
type otherMachines struct{}

// RelayConfig says that hosts can migrate, and nothing in which relays may differ.
func (otherMachines) RelayConfig() alloc.RelayConfig { return alloc.RelayConfig{HostMigration: true} }

// Observe returns an errors.ErrUnsupported: each bind and end would be a message.
func (otherMachines) Observe(alloc.Observer) error {
	return fmt.Errorf("fleet: observe relays of other machines: %w", errors.ErrUnsupported)
}

// New returns a fleet.
func New(cfg Config) *Fleet {
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
	}
}

// Run reads the registry every second, and gives up reservations that came to
// nothing, until ctx ends. It can be called once.
func (f *Fleet) Run(ctx context.Context) error {
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

// Config configures a [Fleet]. The first three fields are required.
type Config struct {
	Registry  Registry
	Directory Directory
	Dialer    Dialer
	// Seed makes the choice among relays repeatable. Zero: a random one.
	Seed   uint64
	Logger *slog.Logger
}

type Stats struct {
	Polls, PollsFailed uint64
	// Tries counts relays that were asked for a host, Placed hosts that were
	// placed. Full, Draining and Silent count the tries that failed: for lack of
	// room, because the relay drains, and because it did not answer.
	Tries, Placed, Full, Draining, Silent uint64
	// Refused are the requests that were not placed, by their region.
	Refused []Refused
	// Reservations that were given up because the store did not take where they are: Released were
	// ended at the relay, and ReleasesDropped lapse there.
	Released, ReleasesDropped uint64
	// Relays is how many the registry has. Of these Dead do not announce themselves, Stopped have
	// ended as they were told to, and Unknown may live, since the store does not answer.
	Relays, Dead, Stopped, Unknown int
	PerRelay                       []RelayStats
}

// Refused counts the hosts that were not placed: Full, since no relay of the region had room, Draining,
// since all of them drain, NoRelay, since none runs, Unavailable, since one did not answer or the registry
// was not known, and Store, since that did not take where the host is.
type Refused struct {
	Region                                      string // empty: any
	Full, Draining, NoRelay, Unavailable, Store uint64
}

type RelayStats struct {
	Relay  alloc.RelayID
	Region string
	Dead   bool
	// Silent counts the tries that it has not answered since its start.
	Silent uint64
}

type counts struct {
	tries, placed, full, draining atomic.Uint64

	mu      sync.Mutex // guards the following field
	refused map[string]*Refused
}

func (c *counts) refuse(region string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := c.of(region); {
	case errors.Is(err, alloc.ErrFull):
		r.Full++
	case errors.Is(err, alloc.ErrDraining):
		r.Draining++
	case errors.Is(err, alloc.ErrNoRelay):
		r.NoRelay++
	case errors.Is(err, alloc.ErrUnavailable):
		r.Unavailable++
	}
}

func (c *counts) homeFailed(region string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(region).Store++
}

// of returns the counts of a region. The caller holds mu.
func (c *counts) of(region string) *Refused {
	if c.refused == nil {
		c.refused = make(map[string]*Refused)
	}
	if c.refused[region] == nil {
		c.refused[region] = &Refused{Region: region}
	}
	return c.refused[region]
}

// refusals returns the counts of these regions, and of all others that have some.
func (c *counts) refusals(regions []alloc.Region) (all []Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range regions {
		c.of(r.ID)
	}
	for _, region := range slices.Sorted(maps.Keys(c.refused)) {
		all = append(all, *c.refused[region])
	}
	return all
}

// Stats returns the counts. It may be called at any time.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	st := Stats{
		Polls: f.relays.polls.Load(), PollsFailed: f.relays.pollsFailed.Load(),
		Tries: c.tries.Load(), Placed: c.placed.Load(), Full: c.full.Load(), Draining: c.draining.Load(),
		Refused: c.refusals(f.Regions()), Released: f.unused.released.Load(), ReleasesDropped: f.unused.dropped.Load(),
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
		silent := f.relays.silent(n.Relay)
		st.Silent += silent
		st.PerRelay = append(st.PerRelay, RelayStats{n.Relay, n.Region, n.IsDead(), silent})
	}
	return st
}
