package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// relaysAtOnce is how many relays are asked at the same time.
const relaysAtOnce = 16

// askRelays gets a page of every relay of the fleet, calls take with each answer, one at a
// time, and stops when take returns true. A page that a relay does not have is no answer.
// It returns the errors of relays that did not answer, unless take returned true.
func askRelays[T any](ctx context.Context, cfg *Config, target string, take func(operator.Node, T) bool) error {
	nodes, err := cfg.Nodes(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu     sync.Mutex // guards done and failed
		done   bool
		failed []error
		wait   sync.WaitGroup
		gate   = make(chan struct{}, relaysAtOnce)
	)
	for _, n := range nodes {
		if n.Role == apiRole {
			continue
		}
		gate <- struct{}{}
		wait.Go(func() {
			defer func() { <-gate }()
			answer, found, err := askRelay[T](ctx, cfg.Fleet, n.ID, target)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case done:
			case err != nil:
				failed = append(failed, err)
			case found && take(n, answer):
				done = true
				cancel()
			}
		})
	}
	wait.Wait()
	if done {
		return nil
	}
	return errors.Join(failed...)
}

// askRelay gets a page of one relay, and reports whether the relay has it.
func askRelay[T any](ctx context.Context, f Fleet, relay, target string) (answer T, found bool, err error) {
	page, err := f.Page(ctx, relay, target)
	switch {
	case err != nil:
		return answer, false, err
	case page.Status == http.StatusNotFound:
		return answer, false, nil
	case page.Status != http.StatusOK:
		return answer, false, fmt.Errorf("%w: relay %s: status %d", alloc.ErrUnavailable, relay, page.Status)
	}
	err = json.Unmarshal(page.Body, &answer)
	return answer, err == nil, err
}
