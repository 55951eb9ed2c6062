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
	host, err := c.Allocate(ctx, api.AllocateRequest{MaxConnections: 2})
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	if code, err = c.JoinCode(ctx, host.AllocationID); err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	joiner, err := c.Join(ctx, code)
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	return code, f.Add(host, joiner)
}
