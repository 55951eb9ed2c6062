package alloc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/joincode"
	"github.com/ferryrelay/ferry/internal/trace"
	"github.com/ferryrelay/ferry/proto"
)

// codeAttempts bounds the draws for one join code. A drawn code is taken with a
// probability far below 1 in 1000, so a second draw is already rare.
const codeAttempts = 16

// commitTimeout bounds the steps after a code was stored: the second check of its
// host, and KeepCode. They continue when the caller has disconnected, because the
// code has to be removed if one of them fails.
const commitTimeout = 5 * time.Second

// JoinCode returns the join code of the caller's host, the same one each time.
// Errors: ErrTenantName, ErrUnavailable, and ErrNotFound for an allocation that
// has ended, is a joiner's, or belongs to another caller.
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
	unlock, err := s.hostLocks.lock(ctx, id)
	if err != nil {
		return "", fmt.Errorf("join code: %w", err)
	}
	defer unlock()
	for range codeAttempts {
		code, err := s.store.CodeOf(ctx, c.Tenant, id)
		if err == nil {
			return code, nil
		}
		if !errors.Is(err, ErrCodeNotFound) {
			return "", fmt.Errorf("look up the join code: %w", err)
		}
		fresh, err := s.drawCode(ctx, c.Tenant)
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

// commitCode returns a code after PutCode, whose error is put, if its host is still
// alive and KeepCode succeeds. Otherwise it removes the code from the store.
func (s *Service) commitCode(ctx context.Context, host proto.AllocationID, code string, put error) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := s.checkHost(ctx, host); err != nil {
		return "", err
	}
	if put != nil {
		if s.keepCode != nil { // PutCode may have stored it despite the error, but KeepCode has not seen it
			s.store.Forget(host)
		}
		return "", fmt.Errorf("store the join code: %w", put)
	}
	if s.keepCode == nil {
		return code, nil
	}
	keeping, span := trace.Start(ctx, "keep code")
	err := s.keepCode(keeping, host, code)
	span.End(err)
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

// checkHost returns an error, and removes the host's code, unless the relay says
// that the host is alive. The OnEnd of a host that ended before its code was
// stored has already run and would not remove the code; a host that ends later
// still gets its OnEnd. A relay that does not answer counts as a host that has
// ended: the client repeats its request.
func (s *Service) checkHost(ctx context.Context, host proto.AllocationID) error {
	if _, err := s.relay.Describe(ctx, host); err != nil {
		s.store.Forget(host)
		return fmt.Errorf("join code: %w", err)
	}
	return nil
}

// drawCode returns a random code of the length that the tenant's next code needs.
func (s *Service) drawCode(ctx context.Context, t Tenant) (string, error) {
	active, err := s.store.Codes(ctx, t)
	if err != nil {
		return "", fmt.Errorf("count join codes: %w", err)
	}
	failures := max(s.failuresPerSecond, s.failedJoins.perSecond(t.Hash(), s.elapsed()))
	s.mu.Lock()
	defer s.mu.Unlock()
	return newCode(s.rand, joincode.Len(active+1, failures))
}

// hostLocks serializes the calls of JoinCode for one host. Otherwise a call could
// return a code that another call has stored and then removes because KeepCode
// failed.
type hostLocks struct {
	mu   sync.Mutex // guards held
	held map[proto.AllocationID]chan struct{}
}

// lock waits for the host's lock and returns its unlock function, or
// ErrUnavailable when ctx ends first.
func (t *hostLocks) lock(ctx context.Context, host proto.AllocationID) (unlock func(), err error) {
	for {
		t.mu.Lock()
		other, busy := t.held[host]
		if !busy {
			own := make(chan struct{})
			t.held[host] = own
			t.mu.Unlock()
			return func() { t.unlock(host, own) }, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
	}
}

func (t *hostLocks) unlock(host proto.AllocationID, own chan struct{}) {
	t.mu.Lock()
	delete(t.held, host)
	t.mu.Unlock()
	close(own)
}
