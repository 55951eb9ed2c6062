package alloc

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/unset"
	"github.com/ferryrelay/ferry/proto"
)

// The defaults of a [ServiceConfig].
const (
	DefaultMaxConnections    = 100 // that of the original Relay Allocations API
	defaultFailuresPerSecond = 10
	DefaultBindTimeout       = 10 * time.Second
	defaultMaxOutstanding    = 20
)

// ServiceConfig configures a [Service]. Relay, Store and Regions are required.
type ServiceConfig struct {
	// Relay makes the allocations. Required. The service observes it; of one that cannot be observed,
	// the program must say what is bound and what ends, by OnBind and OnEnd.
	Relay Relay
	// Store holds the join codes. Required.
	Store Store
	// Regions are those that callers may name; the first is the default. At least
	// one is required unless LiveRegions is set; ids are distinct and not empty.
	Regions []Region
	// LiveRegions replaces Regions in a fleet: it returns the regions that have a
	// live relay, for each request that needs them. Relay then checks the region
	// that the caller named, which may be empty. Nil: the regions are Regions.
	LiveRegions func() []Region
	// HasRoom reports whether a relay of the region can take a host with so many seats, its own
	// included, as far as it is known. It is called by ChooseRegion, concurrently. Nil: all have.
	HasRoom func(region string, seats int) bool
	// AllowedRegions returns the ids of the regions in which a tenant may have hosts, the
	// preferred one first. No id: all. Nil: all for every tenant.
	AllowedRegions func(Tenant) []string
	// MaxConnections is the largest number of players, besides itself, that a host
	// may request. Zero: that of the relay, or 100 if it is not known. At most 65535, and at most that
	// of the relay.
	MaxConnections int
	// FailuresPerSecond is the rate of failed joins, per tenant, that sets the
	// least length of join codes: guessing at this rate takes 28 days on average
	// until the first hit. A tenant with a higher observed rate gets longer new
	// codes. No join is refused for it. Zero: 10.
	FailuresPerSecond float64
	// MaxOutstanding limits how many allocations of one player may be reserved and
	// not bound at once; of a player that is not Caller.Individual, in each network (an IPv4
	// address or an IPv6 /56). Backends, and callers without a name, have no limit. Zero: 20.
	// At most 65536.
	MaxOutstanding int
	// BindTimeout is the relay's, after which an unbound reservation expires.
	// Zero: that of the relay, or 10 s if it is not known.
	BindTimeout time.Duration
	// HostMigration lets a player take the place of a host that has left, see
	// Service.Migrate. The relay must have it.
	HostMigration bool
	// KeepCode makes the code of a host survive a crash of the relay. It is called
	// after the store has accepted the code and each time before JoinCode returns it, also
	// concurrently for one host. If it fails, JoinCode returns ErrUnavailable, or ErrNotFound
	// if KeepCode did. Nil: only the store has codes. Package relay sets it.
	KeepCode func(ctx context.Context, host proto.AllocationID, code string) error
	// Admit is called before each reservation that the other rules permit. An error
	// refuses the reservation: ErrDenied, perhaps as a RefusedError, ErrProjectQuota, ErrProjectInactive, or
	// another one, which is logged once a minute. It may block until ctx ends and is called concurrently. Nil
	// admits all.
	Admit func(ctx context.Context, q AdmissionRequest) error
	// OnReserve is called after each reservation, before the caller gets it. It
	// must not block and is called concurrently. Nil is allowed.
	OnReserve func(e ReservationEvent)
	// Logger receives panics of KeepCode, Admit and OnReserve, and errors of Admit. Nil: slog.Default.
	Logger *slog.Logger
	Now    func() time.Time
	// Rand is the source of join codes. Nil: crypto/rand. One goroutine at a time
	// reads it.
	Rand io.Reader
}

func (c *ServiceConfig) validate() error {
	switch {
	case unset.IsNil(c.Relay):
		return fmt.Errorf("%w: Relay is nil", ErrConfig)
	case unset.IsNil(c.Store):
		return fmt.Errorf("%w: Store is nil", ErrConfig)
	case len(c.Regions) == 0 && c.LiveRegions == nil:
		return fmt.Errorf("%w: Regions is empty", ErrConfig)
	case c.MaxConnections < 0 || c.MaxConnections > math.MaxUint16:
		return fmt.Errorf("%w: MaxConnections %d is not within 0 to 65535", ErrConfig, c.MaxConnections)
	case !(c.FailuresPerSecond >= 0): // catches NaN as well
		return fmt.Errorf("%w: FailuresPerSecond %v is not a rate", ErrConfig, c.FailuresPerSecond)
	case c.MaxOutstanding < 0 || c.MaxOutstanding > maxOutstandingTracked:
		return fmt.Errorf("%w: MaxOutstanding %d is not within 0 to %d", ErrConfig, c.MaxOutstanding, maxOutstandingTracked)
	case c.BindTimeout < 0:
		return fmt.Errorf("%w: BindTimeout %v is negative", ErrConfig, c.BindTimeout)
	}
	seen := make(map[string]bool)
	for _, r := range c.Regions {
		if r.ID == "" || seen[r.ID] {
			return fmt.Errorf("%w: Regions has %q twice or an empty id", ErrConfig, r.ID)
		}
		seen[r.ID] = true
	}
	return c.validateRelay(c.Relay.RelayConfig())
}

func (c *ServiceConfig) validateRelay(r RelayConfig) error {
	switch {
	case c.LiveRegions == nil && r.Region != "" && !slices.ContainsFunc(c.Regions, func(g Region) bool { return g.ID == r.Region }):
		return fmt.Errorf("%w: Regions does not have the relay's region %q", ErrConfig, r.Region)
	case r.MaxConnections > 0 && c.MaxConnections > r.MaxConnections:
		return fmt.Errorf("%w: MaxConnections is %d, and the relay's is %d", ErrConfig, c.MaxConnections, r.MaxConnections)
	case r.BindTimeout > 0 && c.BindTimeout > 0 && c.BindTimeout != r.BindTimeout:
		return fmt.Errorf("%w: BindTimeout is %v, and the relay's is %v", ErrConfig, c.BindTimeout, r.BindTimeout)
	case c.HostMigration && !r.HostMigration:
		return fmt.Errorf("%w: HostMigration with a Relay that has none", ErrConfig)
	}
	return nil
}

func (c *ServiceConfig) setDefaults() {
	relay := c.Relay.RelayConfig()
	c.MaxConnections = cmp.Or(c.MaxConnections, relay.MaxConnections, DefaultMaxConnections)
	c.FailuresPerSecond = cmp.Or(c.FailuresPerSecond, defaultFailuresPerSecond)
	c.MaxOutstanding = cmp.Or(c.MaxOutstanding, defaultMaxOutstanding)
	c.BindTimeout = cmp.Or(c.BindTimeout, relay.BindTimeout, DefaultBindTimeout)
	c.Rand = cmp.Or(c.Rand, rand.Reader)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Service reserves allocations, issues join codes and resolves them. Its methods
// may be called concurrently. Its memory for players and failed joins has a fixed
// limit below 10 MiB.
type Service struct {
	relay             Relay
	store             Store
	hostMigration     bool
	regions           regions
	maxConnections    int
	failuresPerSecond float64
	hooks             *hooks
	log               *slog.Logger
	now               func() time.Time
	startedAt         time.Time

	outstanding *outstandingLimit // nil: the relay is unlimited
	failedJoins failureRates

	mu   sync.Mutex // guards rand; held during no call of relay or store
	rand io.Reader
}

// NewService returns a service, or ErrConfig, or the error of Relay.Observe.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Service{
		relay:             cfg.Relay,
		store:             cfg.Store,
		hostMigration:     cfg.HostMigration,
		regions:           regions{slices.Clone(cfg.Regions), cfg.LiveRegions, cfg.HasRoom, cfg.AllowedRegions},
		maxConnections:    cfg.MaxConnections,
		failuresPerSecond: cfg.FailuresPerSecond,
		hooks:             newHooks(&cfg),
		log:               cfg.Logger,
		now:               cfg.Now,
		startedAt:         cfg.Now(),
		rand:              cfg.Rand,
	}
	if !cfg.Relay.RelayConfig().Unlimited {
		s.outstanding = newOutstandingLimit(cfg.MaxOutstanding, cfg.BindTimeout, maxOutstandingTracked)
	}
	if err := cfg.Relay.Observe(s); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("observe the relay: %w", err)
	}
	return s, nil
}

// Allocate reserves an allocation for a host of up to maxConnections players
// besides itself. An empty region selects the default one. Errors:
// ErrTenantName, ErrMaxConnections, ErrRegion, ErrOutstanding, ErrPlayerLimit, ErrFull,
// ErrDraining, ErrUnavailable, and those of ServiceConfig.Admit.
func (s *Service) Allocate(ctx context.Context, c Caller, maxConnections int, region string) (Reservation, error) {
	if inHook.Running() {
		return Reservation{}, ErrInHook
	}
	if err := c.Tenant.Validate(); err != nil {
		return Reservation{}, err
	}
	if maxConnections < 1 || maxConnections > s.maxConnections {
		return Reservation{}, fmt.Errorf("%w: %d is not within 1 to %d", ErrMaxConnections, maxConnections, s.maxConnections)
	}
	region, err := s.regions.forHost(c, region)
	if err != nil {
		return Reservation{}, err
	}
	player, err := s.player(c)
	if err != nil {
		return Reservation{}, err
	}
	q := AdmissionRequest{Caller: c, Role: RoleHost, MaxConnections: maxConnections, Region: region}
	res, err := s.reserve(ctx, q, player, func() (Reservation, error) {
		return s.relay.ReserveHost(ctx, HostRequest{Caller: c, PlayerHash: player, MaxConnections: maxConnections, Region: region})
	})
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve a host: %w", err)
	}
	if res.Region == "" {
		res.Region = region
	}
	return res, nil
}

// Join reserves an allocation for a joiner of the host that has this join code, in
// upper or lower case. Errors: ErrTenantName, ErrCodeMalformed, ErrCodeNotFound,
// ErrOutstanding, ErrPlayerLimit, ErrFull, ErrDraining, those of ServiceConfig.Admit, ErrMigration
// while a player may take the place of the host, and ErrUnavailable, also while the host
// may still come back after a restart; the code then remains valid.
func (s *Service) Join(ctx context.Context, c Caller, code string) (res Reservation, err error) {
	if inHook.Running() {
		return Reservation{}, ErrInHook
	}
	defer func() { s.failedJoins.addError(c.Tenant, err, s.elapsed()) }()
	_, host, err := s.lookUp(ctx, c.Tenant, code)
	if err != nil {
		return Reservation{}, err
	}
	player, err := s.player(c)
	if err != nil {
		return Reservation{}, err
	}
	q := AdmissionRequest{Caller: c, Role: RoleJoiner, Host: host}
	res, err = s.reserve(ctx, q, player, func() (Reservation, error) {
		return s.relay.ReserveJoiner(ctx, JoinerRequest{Caller: c, PlayerHash: player, Host: host})
	})
	if errors.Is(err, ErrNotFound) {
		s.store.Forget(host)
		return Reservation{}, ErrCodeNotFound
	}
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve a joiner: %w", err)
	}
	return s.regions.setDefault(res), nil
}

func (s *Service) lookUp(ctx context.Context, t Tenant, code string) (string, proto.AllocationID, error) {
	if err := t.Validate(); err != nil {
		return "", proto.AllocationID{}, err
	}
	code, err := ParseCode(code)
	if err != nil {
		return "", proto.AllocationID{}, err
	}
	host, err := s.store.HostOf(ctx, t, code)
	if err != nil {
		return "", proto.AllocationID{}, fmt.Errorf("look up the host: %w", err)
	}
	return code, host, nil
}

// Unlimited reports whether no caller is limited, see [RelayConfig].
func (s *Service) Unlimited() bool { return s.outstanding == nil }

// SetMaxOutstanding changes ServiceConfig.MaxOutstanding for later calls. It must
// be within 1 and 65536. Reservations that count now continue to count.
func (s *Service) SetMaxOutstanding(limit int) {
	if s.outstanding != nil {
		s.outstanding.setLimit(limit)
	}
}

// OnBind must be called when an allocation was bound to an endpoint, which a relay that is observed
// does: the allocation no longer counts as an outstanding reservation. It may be called again for the
// same id, and does not block.
func (s *Service) OnBind(id proto.AllocationID) {
	if s.outstanding != nil {
		s.outstanding.release(id)
	}
}

// OnEnd must be called when an allocation has ended, which a relay that is observed does; it removes
// its join code. For a host whose place a player may take, call OnBind, and OnEnd when that is over.
// Call it after the relay's Describe returns ErrNotFound for id, never before, as engine.Hooks.OnEnd
// does. It does not block.
func (s *Service) OnEnd(id proto.AllocationID) {
	s.OnBind(id) // an allocation may end unbound
	s.store.Forget(id)
}

// OnMigrate makes a join code lead to the host that has taken the place of another one. It may
// be called again. A relay that is observed calls it.
func (s *Service) OnMigrate(tenant uint64, code string, from, to proto.AllocationID) error {
	moved, err := s.store.MoveCode(context.Background(), tenant, code, from, to)
	if err == nil && !moved {
		err = errCodeTaken
	}
	return err
}

// errCodeTaken: a code that would be moved leads to another host.
var errCodeTaken = errors.New("alloc: the join code leads to another match")

// elapsed does not depend on changes of the wall clock.
func (s *Service) elapsed() time.Duration { return s.now().Sub(s.startedAt) }

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
