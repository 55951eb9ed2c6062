package alloc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// codeAttempts bounds the draws for one join code. A drawn code is taken with a
// probability far below 1 in 1000.
const codeAttempts = 16

// commitTimeout bounds the steps after a code was stored: the second check of its
// host, and KeepCode. They continue when the caller has disconnected, because the
// code of a host that has ended has to be removed.
const commitTimeout = 5 * time.Second

// JoinCode returns the join code of the caller's host, the same one each time.
// Errors: ErrTenantName, ErrUnavailable, and ErrNotFound for an allocation that
// has ended, is a joiner's, or belongs to another caller.
func (s *Service) JoinCode(ctx context.Context, c Caller, id proto.AllocationID) (string, error) {
	if inHook.Running() {
		return "", ErrInHook
	}
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
	if d.Code != "" {
		return d.Code, nil
	}
	for range codeAttempts {
		code, err := s.store.CodeOf(ctx, c.Tenant, id)
		if err == nil {
			return s.answerCode(ctx, id, code)
		}
		if !errors.Is(err, ErrCodeNotFound) {
			return "", fmt.Errorf("look up the join code: %w", err)
		}
		fresh, err := s.drawCode(ctx, c.Tenant, id)
		if err != nil {
			return "", err
		}
		stored, err := s.store.PutCode(ctx, c.Tenant, fresh, id)
		if !stored && err == nil {
			continue // the code is taken, or another process has just stored one for the host
		}
		return s.commitCode(ctx, id, fresh, err)
	}
	return "", fmt.Errorf("join code: %d draws, all taken: %w", codeAttempts, ErrUnavailable)
}

// commitCode returns a code after PutCode, whose error is put, if its host is still alive.
// After an error the code may be in the store all the same: the next call finds it there.
func (s *Service) commitCode(ctx context.Context, host proto.AllocationID, code string, put error) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := s.checkHost(ctx, host); err != nil {
		return "", err
	}
	if put != nil {
		return "", fmt.Errorf("store the join code: %w", put)
	}
	return s.answerCode(ctx, host, code)
}

// answerCode returns a code of the store once KeepCode has it. That it is in the store is not
// enough: the call that stored it, perhaps of another process, may not have come to KeepCode.
func (s *Service) answerCode(ctx context.Context, host proto.AllocationID, code string) (string, error) {
	err := s.keep(ctx, host, code)
	if errors.Is(err, ErrNotFound) {
		s.store.Forget(host)
	}
	if err != nil {
		return "", err
	}
	return code, nil
}

func (s *Service) keep(ctx context.Context, host proto.AllocationID, code string) error {
	if s.hooks.keepCode == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err := s.guard(&s.hooks.keeps, func() error { return s.hooks.keepCode(ctx, host, code) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrUnavailable):
		return fmt.Errorf("keep the join code: %w", err)
	}
	return fmt.Errorf("keep the join code: %w: %w", ErrUnavailable, err)
}

// checkHost removes the code of a host that has ended: the OnEnd of one that ended before its
// code was stored has already run. If the relay does not answer, the code stays: another
// call, perhaps of another process, may answer with it at this moment.
func (s *Service) checkHost(ctx context.Context, host proto.AllocationID) error {
	_, err := s.relay.Describe(ctx, host)
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrNotFound) {
		s.store.Forget(host)
	}
	return fmt.Errorf("join code: %w", err)
}

// drawCode returns a random code of the length that the tenant's next code needs, behind the prefix
// of the host if the store has parts: a prefix is no secret, so it does not count.
func (s *Service) drawCode(ctx context.Context, t Tenant, host proto.AllocationID) (string, error) {
	prefix, active, err := s.store.Codes(ctx, t, host)
	if err != nil {
		return "", fmt.Errorf("count join codes: %w", err)
	}
	failures := max(s.failuresPerSecond, s.failedJoins.perSecond(t.Hash(), s.elapsed()))
	length := min(joincode.Len(active+1, failures), joincode.MaxLen-len(prefix))
	s.mu.Lock()
	defer s.mu.Unlock()
	code, err := newCode(s.rand, length)
	return prefix + code, err
}
