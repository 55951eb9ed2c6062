package alloc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// DefaultMaxConnections is the largest maximum of connections that a host may
// ask for where the operator says nothing else (Relay Allocations API).
const DefaultMaxConnections = 100

// DefaultFailuresPerSecond is the number of failed joins per second that a
// tenant is permitted where the operator says nothing else.
const DefaultFailuresPerSecond = 10

// codeAttempts bounds the draws for one join code. A code is taken with a
// chance far below one in a thousand, so a second draw is already rare.
const codeAttempts = 16

// recheckTimeout bounds the second look at a host after its code was stored,
// which goes on when the caller has left: somebody has to take the code back.
const recheckTimeout = 5 * time.Second

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
}

// ServiceConfig is what a [Service] is made of.
type ServiceConfig struct {
	// Relay makes the allocations. Required.
	Relay Relay
	// Store remembers the join codes. Required.
	Store Store
	// Regions are those that callers may name; the first is the default. At
	// least one; ids are distinct and not empty.
	Regions []Region
	// MaxConnections is the largest maximum a host may ask for, in players
	// besides itself. Zero: 100. At most 65535.
	MaxConnections int
	// FailuresPerSecond is how many joins per second may fail for one tenant
	// before the HTTP layer refuses more. It sets the length of join codes.
	// Zero: 10.
	FailuresPerSecond float64
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
	case len(c.Regions) == 0:
		return fmt.Errorf("%w: Regions is empty", ErrServiceConfig)
	case c.MaxConnections < 0 || c.MaxConnections > math.MaxUint16:
		return fmt.Errorf("%w: MaxConnections %d is not within 0 to 65535", ErrServiceConfig, c.MaxConnections)
	case !(c.FailuresPerSecond >= 0): // catches NaN as well
		return fmt.Errorf("%w: FailuresPerSecond %v is not a rate", ErrServiceConfig, c.FailuresPerSecond)
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

// Service is the Allocations service: it decides who may have an allocation,
// hands out join codes and turns them back into hosts. Its methods may be
// called from several goroutines.
type Service struct {
	relay    Relay
	store    Store
	regions  []Region
	ceiling  int
	failures float64

	mu   sync.Mutex // guards rand; held for no call of relay or store
	rand io.Reader
}

// NewService returns a service, or ErrServiceConfig.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = DefaultMaxConnections
	}
	if cfg.FailuresPerSecond == 0 {
		cfg.FailuresPerSecond = DefaultFailuresPerSecond
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	return &Service{
		relay:    cfg.Relay,
		store:    cfg.Store,
		regions:  slices.Clone(cfg.Regions),
		ceiling:  cfg.MaxConnections,
		failures: cfg.FailuresPerSecond,
		rand:     cfg.Rand,
	}, nil
}

// Regions returns the regions that Allocate accepts; the first is the default.
func (s *Service) Regions() []Region { return slices.Clone(s.regions) }

// Allocate reserves an allocation for a host that will take maxConnections
// players besides itself. An empty region is the default one. Errors:
// ErrTenantName, ErrMaxConnections, ErrRegion, ErrFull, ErrUnavailable.
func (s *Service) Allocate(ctx context.Context, c Caller, maxConnections int, region string) (Reservation, error) {
	if err := c.Tenant.Validate(); err != nil {
		return Reservation{}, err
	}
	if maxConnections < 1 || maxConnections > s.ceiling {
		return Reservation{}, fmt.Errorf("%w: %d is not within 1 to %d", ErrMaxConnections, maxConnections, s.ceiling)
	}
	if region == "" {
		region = s.regions[0].ID
	}
	if !slices.ContainsFunc(s.regions, func(r Region) bool { return r.ID == region }) {
		return Reservation{}, ErrRegion
	}
	player, err := s.player(c)
	if err != nil {
		return Reservation{}, err
	}
	res, err := s.relay.ReserveHost(ctx, HostRequest{Tenant: c.Tenant, Player: player, MaxConnections: maxConnections})
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve a host: %w", err)
	}
	if res.Region == "" {
		res.Region = region
	}
	return res, nil
}

// JoinCode returns the join code of the caller's host, the same one each time.
// Errors: ErrTenantName, ErrUnavailable, and ErrNotFound for an allocation that
// has ended, is a joiner's, or belongs to somebody else.
func (s *Service) JoinCode(ctx context.Context, c Caller, id proto.AllocationID) (string, error) {
	if err := c.Tenant.Validate(); err != nil {
		return "", err
	}
	d, err := s.relay.Describe(ctx, id)
	if err != nil {
		return "", fmt.Errorf("join code: %w", err)
	}
	if d.Role != RoleHost || d.Tenant != c.Tenant.Hash() || !c.owns(d) {
		return "", ErrNotFound
	}
	for range codeAttempts {
		code, err := s.store.CodeOf(ctx, c.Tenant, id)
		if err == nil {
			return code, nil
		}
		if !errors.Is(err, ErrCodeNotFound) {
			return "", fmt.Errorf("look up the join code: %w", err)
		}
		fresh, err := s.draw(ctx, c.Tenant)
		if err != nil {
			return "", err
		}
		stored, err := s.store.PutCode(ctx, c.Tenant, fresh, id)
		if !stored && err == nil {
			continue // the code is taken, or the host has just got one
		}
		if gone := s.confirm(ctx, id); gone != nil {
			return "", gone
		}
		if err != nil {
			return "", fmt.Errorf("store the join code: %w", err)
		}
		return fresh, nil
	}
	return "", fmt.Errorf("join code: %d draws, all taken: %w", codeAttempts, ErrUnavailable)
}

// confirm looks whether host is still there, and forgets its code if not. A
// host that ended before its code was stored has had its Ended already, and
// nobody else would forget the code; one that ends later has its Ended to come.
// A relay that does not answer counts as gone: the player asks again.
func (s *Service) confirm(ctx context.Context, host proto.AllocationID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recheckTimeout)
	defer cancel()
	if _, err := s.relay.Describe(ctx, host); err != nil {
		s.store.Forget(host)
		return fmt.Errorf("join code: %w", err)
	}
	return nil
}

// Join reserves an allocation for a joiner of the host that code, in either
// case, leads to. Errors: ErrTenantName, ErrCodeMalformed, ErrCodeNotFound,
// ErrFull, ErrUnavailable.
func (s *Service) Join(ctx context.Context, c Caller, code string) (Reservation, error) {
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
	res, err := s.relay.ReserveJoiner(ctx, JoinerRequest{Tenant: c.Tenant, Player: player, Host: host})
	if errors.Is(err, ErrNotFound) {
		s.store.Forget(host)
		return Reservation{}, ErrCodeNotFound
	}
	if err != nil {
		return Reservation{}, fmt.Errorf("reserve a joiner: %w", err)
	}
	if res.Region == "" {
		res.Region = s.regions[0].ID
	}
	return res, nil
}

// Ended forgets the join code of an allocation that has ended. The relay calls
// it after Describe has begun to answer ErrNotFound for id, never before. It
// does not block.
func (s *Service) Ended(id proto.AllocationID) { s.store.Forget(id) }

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

// draw returns a code of the length that the tenant's next one needs.
func (s *Service) draw(ctx context.Context, t Tenant) (string, error) {
	active, err := s.store.Codes(ctx, t)
	if err != nil {
		return "", fmt.Errorf("count join codes: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return newCode(s.rand, CodeLen(active+1, s.failures))
}
