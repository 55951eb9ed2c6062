package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	// relaysAtOnce is how many relays are asked at the same time.
	relaysAtOnce = 16
	// relayWithin is the maximum time of one of them: the others shall not wait for it.
	relayWithin = 2 * time.Second
)

// relays are those of a fleet: Fleet reaches them, and nodes lists them. Without a fleet, Fleet is nil and
// nodes lists this process.
type relays struct {
	Fleet
	nodes func(context.Context) (operator.Nodes, error)
}

// askRelays gets a page of every relay of the fleet, calls take with each answer, one at a
// time, and stops when take returns true. What a relay does not know is no answer.
// It returns the relays that did not answer, unless take returned true; and alloc.ErrUnavailable if
// there are such and none answered.
func askRelays[T any](ctx context.Context, fleet relays, target string, take func(operator.Node, T) bool) ([]operator.Missing, error) {
	nodes, err := fleet.nodes(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu       sync.Mutex // guards what follows
		done     bool
		answered int
		missing  []operator.Missing
		failed   []error

		wait sync.WaitGroup
		gate = make(chan struct{}, relaysAtOnce)
	)
	for _, n := range nodes.Nodes {
		if n.Role == apiRole {
			continue
		}
		gate <- struct{}{}
		wait.Go(func() {
			defer func() { <-gate }()
			answer, found, err := askRelay[T](ctx, fleet, n.ID, target)
			mu.Lock()
			defer mu.Unlock()
			if done {
				return
			}
			if err != nil {
				failed, missing = append(failed, err), append(missing, missingRelay(&n, err))
				return
			}
			answered++
			if found && take(n, answer) {
				done = true
				cancel()
			}
		})
	}
	wait.Wait()
	if done {
		return nil, nil
	}
	if err := errStoreAway(&nodes); err != nil {
		failed, missing = append(failed, err), append(missing, operator.Missing{Reason: plainReason(err)})
	}
	if answered == 0 && len(failed) > 0 {
		return missing, errors.Join(failed...)
	}
	slices.SortFunc(missing, func(a, b operator.Missing) int { return cmp.Compare(a.Relay, b.Relay) })
	return missing, nil
}

// Summaries returns the summaries of these relays of a fleet, by their ids. Those that do not answer,
// or that are of a version without one, are left out.
func Summaries(ctx context.Context, f Fleet, ids []string) map[string]operator.Summary {
	all := make(map[string]operator.Summary, len(ids))
	nodes := func(context.Context) (n operator.Nodes, err error) {
		for _, id := range ids {
			n.Nodes = append(n.Nodes, operator.Node{ID: id})
		}
		return n, nil
	}
	_, _ = askRelays(ctx, relays{f, nodes}, operator.ListSummary.Path, func(n operator.Node, s operator.Summary) bool {
		all[n.ID] = s
		return false
	})
	return all
}

// errNoPage is the error of a relay of another version.
var errNoPage = fmt.Errorf("%w: its version does not have this page", alloc.ErrUnavailable)

func missingRelay(n *operator.Node, err error) operator.Missing {
	m := operator.Missing{Relay: n.ID, Region: n.Region, Reason: strings.TrimPrefix(plainReason(err), "relay "+n.ID+" at ")}
	if !n.Serves() {
		m.Reason = fmt.Sprintf("%s, last heard at %s", n.State, n.LastHeartbeat.Format(time.RFC3339))
	}
	return m
}

func plainReason(err error) string {
	return strings.TrimPrefix(err.Error(), alloc.ErrUnavailable.Error()+": ")
}

func askRelay[T any](ctx context.Context, f Fleet, relay, target string) (answer T, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, relayWithin)
	defer cancel()
	page, err := f.Page(ctx, relay, target)
	switch {
	case err != nil:
		return answer, false, err
	case page.Status == http.StatusNotFound && bytes.HasPrefix(page.Body, []byte("404")): // as ServeMux says so
		return answer, false, errNoPage
	case page.Status == http.StatusNotFound:
		return answer, false, nil
	case page.Status != http.StatusOK:
		return answer, false, fmt.Errorf("%w: relay %s: status %d", alloc.ErrUnavailable, relay, page.Status)
	}
	err = json.Unmarshal(page.Body, &answer)
	return answer, err == nil, err
}
