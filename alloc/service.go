package alloc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// DefaultMaxConnections is the largest maximum of connections that a host may
// ask for where the operator says nothing else (Relay Allocations API).
const DefaultMaxConnections = 100

// DefaultFailuresPerSecond is the rate of failed joins that join codes of a
// tenant withstand at the least, where the operator says nothing else.
const DefaultFailuresPerSecond = 10

// The defaults of the bound on reservations that nobody has bound yet
// (reliability-security.md 4.8, H2).
const (
	DefaultMaxOutstanding = 20
	DefaultBindTimeout    = 10 * time.Second
)

// ErrServiceConfig is returned by [NewService], with the field's name.
var ErrServiceConfig = errors.New("alloc: bad service configuration")

// Caller is who asks, as whoever checked the credentials found out.
type Caller struct {
	Tenant Tenant
	// Player names the player within the tenant. An empty name is nobody in
	// particular: what such a call reserves belongs to a player of its own, so
	// that nameless callers own nothing of one another.
	Player string
	// Server marks a backend, which may act for all hosts of its tenant.
	Server bool
	// Address is where the caller is, or its network; the zero address if that
	// is not known. It decides nothing but the region of a host that names none.
	Address netip.Addr
}

// ServiceConfig is what a [Service] is made of.
type ServiceConfig struct {
	// Relay makes the allocations. Required.
	Relay Relay
	// Store remembers the join codes. Required.
	Store Store
	// Regions are those that callers may name; the first is the default. At
	// least one, unless RegionsOf is set; ids are distinct and not empty.
	Regions []Region
	// RegionsOf returns the regions of a fleet as they are now, in place of
	// Regions; it is called for each request that needs them. The relay then
	// decides which regions there are: it is passed what the caller named, and
	// nothing if that was nothing, and says where it placed the host. Nil: the
	// regions are Regions.
	RegionsOf func() []Region
	// MaxConnections is the largest maximum a host may ask for, in players
	// besides itself. Zero: 100. At most 65535.
	MaxConnections int
	// FailuresPerSecond is the least rate of failed joins per second and tenant
	// for which join codes are made: guessing at it takes 28 days on average
	// until the first hit. A tenant whose joins are observed to fail more often
	// gets longer codes from then on, by the observed rate: that of the last
	// minute, or a former peak, which counts half after each hour. Nothing is
	// refused for it. Zero: 10.
	FailuresPerSecond float64
	// MaxOutstanding is how many allocations one player may have reserved that
	// nobody has bound yet. Backends, and callers without a name, have no such
	// bound. Bound, Ended and BindTimeout end the count of one; in a fleet the
	// last alone does. Zero: 20. At most 65536.
	MaxOutstanding int
	// BindTimeout is that of the relay, after which a reservation has lapsed.
	// Zero: 10 s.
	BindTimeout time.Duration
	// Unlimited switches the bound on outstanding reservations off, for a
	// developer's machine.
	Unlimited bool
	// Keep makes the code of a host outlive a crash. It is called after the
	// store has taken the code and before anybody is told, by one call per host
	// at a time. If it fails, the code is forgotten and the call fails with
	// ErrUnavailable, or with ErrNotFound if that is what Keep says. Nil: codes
	// are kept by the store alone.
	Keep func(ctx context.Context, host proto.AllocationID, code string) error
	// Admit is asked before each reservation that the other rules permit, and
	// its error refuses it: Denied, ErrProjectQuota, ErrProjectInactive or
	// ErrUnavailable. It may take as long as ctx lets it, and is called from many
	// goroutines. Nil: nobody objects.
	Admit func(ctx context.Context, a Ask) error
	// OnReserve is told of each reservation before its caller is. It must not
	// block, and is called from many goroutines. Nil is allowed.
	OnReserve func(m Made)
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Rand gives join codes. Nil: crypto/rand. One goroutine at a time reads it.
	Rand io.Reader
}

// validate returns the first problem with the field's name.
func (c *ServiceConfig) validate() error {
	switch {
	case c.Relay == nil:
		return fmt.Errorf("%w: Relay is nil", ErrServiceConfig)
	case c.Store == nil:
		return fmt.Errorf("%w: Store is nil", ErrServiceConfig)
	case len(c.Regions) == 0 && c.RegionsOf == nil:
		return fmt.Errorf("%w: Regions is empty", ErrServiceConfig)
	case c.MaxConnections < 0 || c.MaxConnections > math.MaxUint16:
		return fmt.Errorf("%w: MaxConnections %d is not within 0 to 65535", ErrServiceConfig, c.MaxConnections)
	case !(c.FailuresPerSecond >= 0): // catches NaN as well
		return fmt.Errorf("%w: FailuresPerSecond %v is not a rate", ErrServiceConfig, c.FailuresPerSecond)
	case c.MaxOutstanding < 0 || c.MaxOutstanding > maxOutstandingKnown:
		return fmt.Errorf("%w: MaxOutstanding %d is not within 0 to %d", ErrServiceConfig, c.MaxOutstanding, maxOutstandingKnown)
	case c.BindTimeout < 0:
		return fmt.Errorf("%w: BindTimeout %v is negative", ErrServiceConfig, c.BindTimeout)
	}
	seen := make(map[string]bool)
	for _, r := range c.Regions {
		if r.ID == "" || seen[r.ID] {
			return fmt.Errorf("%w: Regions has %q twice or an empty id", ErrServiceConfig, r.ID)
		}
		seen[r.ID] = true
	}
	return nil
}

// setDefaults fills in what zero stands for.
func (c *ServiceConfig) setDefaults() {
	if c.MaxConnections == 0 {
		c.MaxConnections = DefaultMaxConnections
	}
	if c.FailuresPerSecond == 0 {
		c.FailuresPerSecond = DefaultFailuresPerSecond
	}
	if c.MaxOutstanding == 0 {
		c.MaxOutstanding = DefaultMaxOutstanding
	}
	if c.BindTimeout == 0 {
		c.BindTimeout = DefaultBindTimeout
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
}

// Service is the Allocations service: it decides who may have an allocation,
// hands out join codes and turns them back into hosts. Its methods may be
// called from several goroutines. What it remembers of players and of failed
// joins has a fixed bound, below 10 MiB.
type Service struct {
	relay     Relay
	store     Store
	regions   []Region
	live      func() []Region // nil: regions
	ceiling   int
	failures  float64
	keep      func(context.Context, proto.AllocationID, string) error
	admit     func(context.Context, Ask) error
	onReserve func(Made)
	now       func() time.Time
	start     time.Time

	outstanding *outstanding // nil: no bound
	guessing    guessing
	turns       turns

	mu   sync.Mutex // guards rand; held for no call of relay or store
	rand io.Reader
}

// NewService returns a service, or ErrServiceConfig.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Service{
		relay:     cfg.Relay,
		store:     cfg.Store,
		regions:   slices.Clone(cfg.Regions),
		live:      cfg.RegionsOf,
		ceiling:   cfg.MaxConnections,
		failures:  cfg.FailuresPerSecond,
		keep:      cfg.Keep,
		admit:     cfg.Admit,
		onReserve: cfg.OnReserve,
		now:       cfg.Now,
		start:     cfg.Now(),
		turns:     turns{taken: make(map[proto.AllocationID]chan struct{})},
		rand:      cfg.Rand,
	}
	if !cfg.Unlimited {
		s.outstanding = newOutstanding(cfg.MaxOutstanding, cfg.BindTimeout, maxOutstandingKnown)
	}
	return s, nil
}

// Regions returns the regions that Allocate accepts; the first is the default.
// In a fleet these are the ones that it has now, and there may be none.
func (s *Service) Regions() []Region {
	if s.live != nil {
		return s.live()
	}
	return slices.Clone(s.regions)
}

// region returns what the relay is asked for: in a fleet what the caller named,
// else one of the regions, of which the first is the default.
func (s *Service) region(named string) (string, error) {
	switch {
	case s.live != nil:
		return named, nil
	case named == "":
		return s.regions[0].ID, nil
	case !slices.ContainsFunc(s.regions, func(r Region) bool { return r.ID == named }):
		return "", ErrRegion
	}
	return named, nil
}

// Allocate reserves an allocation for a host that will take maxConnections
// players besides itself. An empty region is the default one. Errors:
// ErrTenantName, ErrMaxConnections, ErrRegion, ErrOutstanding, ErrFull,
// ErrDraining, ErrUnavailable, and those of ServiceConfig.Admit.
func (s *Service) Allocate(ctx context.Context, c Caller, maxConnections int, region string) (Reservation, error) {
	if err := c.Tenant.Validate(); err != nil {
		return Reservation{}, err
	}
	if maxConnections < 1 || maxConnections > s.ceiling {
		return Reservation{}, fmt.Errorf("%w: %d is not within 1 to %d", ErrMaxConnections, maxConnections, s.ceiling)
	}
	region, err := s.region(region)
	if err != nil {
		return Reservation{}, err
	}
	player, err := s.player(c)
	if err != nil {
		return Reservation{}, err
	}
	a := Ask{Caller: c, Role: RoleHost, MaxConnections: maxConnections, Region: region}
	res, err := s.reserve(ctx, a, player, func() (Reservation, error) {
		return s.relay.ReserveHost(ctx, HostRequest{
			Tenant: c.Tenant, Player: player, MaxConnections: maxConnections, Region: region, Hint: c.Address,
		})
	})
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve a host: %w", err)
	}
	if res.Region == "" {
		res.Region = region
	}
	return res, nil
}

// Join reserves an allocation for a joiner of the host that code, in either
// case, leads to. Errors: ErrTenantName, ErrCodeMalformed, ErrCodeNotFound,
// ErrOutstanding, ErrFull, ErrDraining, those of ServiceConfig.Admit, and
// ErrUnavailable, which costs a host that the relay is still waiting for after a
// restart nothing of its code.
func (s *Service) Join(ctx context.Context, c Caller, code string) (Reservation, error) {
	res, err := s.join(ctx, c, code)
	if errors.Is(err, ErrCodeNotFound) {
		s.guessing.add(c.Tenant.Hash(), s.since())
	}
	return res, err
}

func (s *Service) join(ctx context.Context, c Caller, code string) (Reservation, error) {
	if err := c.Tenant.Validate(); err != nil {
		return Reservation{}, err
	}
	code, err := ParseCode(code)
	if err != nil {
		return Reservation{}, err
	}
	host, err := s.store.HostOf(ctx, c.Tenant, code)
	if err != nil {
		return Reservation{}, fmt.Errorf("look up the host: %w", err)
	}
	player, err := s.player(c)
	if err != nil {
		return Reservation{}, err
	}
	a := Ask{Caller: c, Role: RoleJoiner, Host: host}
	res, err := s.reserve(ctx, a, player, func() (Reservation, error) {
		return s.relay.ReserveJoiner(ctx, JoinerRequest{Tenant: c.Tenant, Player: player, Host: host})
	})
	if errors.Is(err, ErrNotFound) {
		s.store.Forget(host)
		return Reservation{}, ErrCodeNotFound
	}
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve a joiner: %w", err)
	}
	if res.Region == "" && s.live == nil {
		res.Region = s.regions[0].ID
	}
	return res, nil
}

// SetMaxOutstanding changes ServiceConfig.MaxOutstanding from the next call on,
// for a number that [NewService] takes and that is not zero. What counts goes on
// counting.
func (s *Service) SetMaxOutstanding(most int) {
	if s.outstanding != nil {
		s.outstanding.bound(most)
	}
}

// Bound tells that an allocation was bound to an endpoint, so that it is no
// outstanding reservation any more. Telling it again does no harm. It does not
// block.
func (s *Service) Bound(id proto.AllocationID) {
	if s.outstanding != nil {
		s.outstanding.settle(id)
	}
}

// Ended forgets the join code of an allocation that has ended. The relay calls
// it after Describe has begun to answer ErrNotFound for id, never before. It
// does not block.
func (s *Service) Ended(id proto.AllocationID) {
	s.Bound(id) // or it ended unbound
	s.store.Forget(id)
}

// since returns the time since the service was made, whatever happens to the
// wall clock.
func (s *Service) since() time.Duration { return s.now().Sub(s.start) }

// owns reports whether the caller may act for the allocation that d describes,
// which is known to be of its tenant.
func (c Caller) owns(d Description) bool {
	if c.Server {
		return true
	}
	return c.Player != "" && d.Player == HashPlayer(c.Tenant, c.Player)
}

// player returns the hash of the caller's name, or a random one for a caller
// without a name.
func (s *Service) player(c Caller) (PlayerHash, error) {
	if c.Player != "" {
		return HashPlayer(c.Tenant, c.Player), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var p PlayerHash
	if _, err := io.ReadFull(s.rand, p[:]); err != nil {
		return PlayerHash{}, fmt.Errorf("draw a player: %w", err)
	}
	return p, nil
}
