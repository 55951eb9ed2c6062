package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

var _ alloc.Relay = (*Fleet)(nil)

// ErrAlreadyRun is returned by a second call of Run.
var ErrAlreadyRun = errors.New("fleet: Run was called before")

// Fleet is many relays as one, for a process that serves the API. Its methods
// may be called from several goroutines; they answer alloc.ErrUnavailable until
// Run has read the registry.
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
	// polling is taken by whoever reads the registry.
	polling chan struct{}

	mu   sync.Mutex // guards the following fields; held for no call
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
		registry: cfg.Registry, directory: cfg.Directory, dialer: cfg.Dialer,
		defaults: cfg.Defaults, hints: hints, log: orSilent(cfg.Logger), start: time.Now(),
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
		if f.turn(ctx) {
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

// turn waits until nobody else reads the registry. It reports false when ctx
// ends first.
func (f *Fleet) turn(ctx context.Context) bool {
	select {
	case f.polling <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// poll reads the registry. The caller has its turn.
func (f *Fleet) poll(ctx context.Context) {
	at := f.now()
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	nodes, err := f.registry.Nodes(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // Nobody waits for it any more.
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.down != (err != nil)
	f.down = err != nil
	if err != nil {
		f.counts.pollsFailed.Add(1)
		f.view.shake(f.now())
		if changed {
			f.log.Warn("the store does not tell which relays there are; what is running goes on", "error", err)
		}
		return
	}
	f.counts.polls.Add(1)
	f.view.read(nodes, at)
	if changed {
		f.log.Info("the store tells again which relays there are", "relays", len(nodes))
	}
}

// refresh reads the registry anew unless somebody just did. It reports whether
// the view is younger than the call.
func (f *Fleet) refresh(ctx context.Context) bool {
	asked := f.now()
	if !f.turn(ctx) {
		return false
	}
	defer func() { <-f.polling }()
	f.mu.Lock()
	last := max(f.view.last, f.view.shaken.at)
	f.mu.Unlock()
	if last < asked && f.now()-last >= pollLeast {
		f.poll(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view.last >= asked
}

// Nodes returns the relays as this process sees them: with what it has promised
// of them since their last heartbeats.
func (f *Fleet) Nodes() []Candidate {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.view.age(f.now())
	return append([]Candidate(nil), f.view.nodes...)
}

// Regions returns the regions in which a relay lives, by id. While the store is
// gone they are those of before.
func (f *Fleet) Regions() []alloc.Region {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view.regions()
}

// Ready returns nil when the fleet can place hosts as far as this process
// knows, else why not, wrapping alloc.ErrStoreUnavailable.
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
	case now-f.view.last > staleAfter:
		return fmt.Errorf("fleet: the registry was last read %v ago: %w",
			(now - f.view.last).Round(time.Second), alloc.ErrStoreUnavailable)
	}
	return nil
}

// unavailable returns err as an alloc.ErrUnavailable: the given one, if err does
// not say which.
func unavailable(what string, who, err error) error {
	if errors.Is(err, alloc.ErrUnavailable) {
		return fmt.Errorf("fleet: %s: %w", what, err)
	}
	return fmt.Errorf("fleet: %s: %w: %w", what, who, err)
}
