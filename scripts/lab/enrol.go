package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ferryrelay/ferry/alloc/api"
)

// enrolling is how many matches are set up at a time.
const enrolling = 4

// Enrol sets up n matches over the API and adds them to the fleet. It returns
// their join codes and does not wait for anything on UDP.
func Enrol(ctx context.Context, c *api.Client, f *Fleet, n int) ([]string, error) {
	codes := make([]string, n)
	errs := make([]error, enrolling)
	var tasks sync.WaitGroup
	for w := range enrolling {
		tasks.Go(func() {
			for i := w; i < n && errs[w] == nil; i += enrolling {
				codes[i], errs[w] = enrol(ctx, c, f)
			}
		})
	}
	tasks.Wait()
	return codes, errors.Join(errs...)
}

func enrol(ctx context.Context, c *api.Client, f *Fleet) (code string, err error) {
	host, joiner, code, err := Meet(ctx, c, api.AllocateRequest{MaxConnections: 2})
	if err != nil {
		return "", err
	}
	return code, f.Add(host, joiner)
}

// Backend is what a game's backend calls to bring players together; a client of
// the API is one.
type Backend interface {
	Allocate(ctx context.Context, r api.AllocateRequest) (api.Allocation, error)
	JoinCode(ctx context.Context, allocationID string) (string, error)
	Join(ctx context.Context, joinCode string) (api.Allocation, error)
}

// Meet allocates a host and lets one player join it.
func Meet(ctx context.Context, c Backend, r api.AllocateRequest) (host, joiner api.Allocation, code string, err error) {
	if host, err = c.Allocate(ctx, r); err != nil {
		return host, joiner, "", fmt.Errorf("lab: %w", err)
	}
	if code, err = c.JoinCode(ctx, host.AllocationID); err != nil {
		return host, joiner, "", fmt.Errorf("lab: %w", err)
	}
	if joiner, err = c.Join(ctx, code); err != nil {
		return host, joiner, "", fmt.Errorf("lab: %w", err)
	}
	return host, joiner, code, nil
}
