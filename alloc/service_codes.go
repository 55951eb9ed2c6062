package alloc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// codeAttempts bounds the draws for one join code. A code is taken with a
// chance far below one in a thousand, so a second draw is already rare.
const codeAttempts = 16

// settleTimeout bounds what follows once a code was stored, a second look at
// its host and its keeping, and goes on when the caller has left: somebody has
// to take the code back.
const settleTimeout = 5 * time.Second

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
	giveBack, err := s.turns.take(ctx, id)
	if err != nil {
		return "", fmt.Errorf("join code: %w", err)
	}
	defer giveBack()
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
		return s.settle(ctx, id, fresh, err)
	}
	return "", fmt.Errorf("join code: %d draws, all taken: %w", codeAttempts, ErrUnavailable)
}

// settle returns a code that was put, with the error of putting it, when its
// host is still there and the code is kept.
func (s *Service) settle(ctx context.Context, host proto.AllocationID, code string, put error) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := s.confirm(ctx, host); err != nil {
		return "", err
	}
	if put != nil {
		if s.keep != nil { // if it was stored after all, then not kept
			s.store.Forget(host)
		}
		return "", fmt.Errorf("store the join code: %w", put)
	}
	if s.keep == nil {
		return code, nil
	}
	err := s.keep(ctx, host, code)
	switch {
	case err == nil:
		return code, nil
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrUnavailable):
		err = fmt.Errorf("keep the join code: %w", err)
	default:
		err = fmt.Errorf("keep the join code: %w: %w", ErrUnavailable, err)
	}
	s.store.Forget(host)
	return "", err
}

// confirm looks whether host is still there, and forgets its code if not. A
// host that ended before its code was stored has had its Ended already, and
// nobody else would forget the code; one that ends later has its Ended to come.
// A relay that does not answer counts as gone: the player asks again.
func (s *Service) confirm(ctx context.Context, host proto.AllocationID) error {
	if _, err := s.relay.Describe(ctx, host); err != nil {
		s.store.Forget(host)
		return fmt.Errorf("join code: %w", err)
	}
	return nil
}

// draw returns a code of the length that the tenant's next one needs.
func (s *Service) draw(ctx context.Context, t Tenant) (string, error) {
	active, err := s.store.Codes(ctx, t)
	if err != nil {
		return "", fmt.Errorf("count join codes: %w", err)
	}
	failures := max(s.failures, s.guessing.perSecond(t.Hash(), s.since()))
	s.mu.Lock()
	defer s.mu.Unlock()
	return newCode(s.rand, CodeLen(active+1, failures))
}
