package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// findWithin bounds the search for the relay that has an allocation, and what
	// is done there. Half of it is for the store, which knows where hosts are.
	findWithin = 2 * time.Second
	// askAtOnce is how many relays are asked at the same time.
	askAtOnce = 64
	// maxNamed bounds the relays that an error names.
	maxNamed = 8
)

// reach is how an operator's wishes come from an API process to the relays. It
// has no state, and its functions may be called from several goroutines.
type reach struct {
	nodes func() []fleet.Candidate
	// ready returns why nodes may lack some relay, nil if they do not.
	ready  func() error
	dial   func(fleet.Node) cluster.Operator
	homeOf func(context.Context, proto.AllocationID) (fleet.Home, error)
}

var _ admin.Fleet = reach{}

// reach returns that of the front's fleet.
func (f *front) reach() reach {
	return reach{nodes: f.fleet.Nodes, ready: f.fleet.Ready, dial: f.dialer.Operator, homeOf: f.app.store.HomeOf}
}

// Drain lets a relay run dry. What is negative is as its settings say.
func (r reach) Drain(ctx context.Context, relay string, cfg engine.DrainConfig) (admin.DrainState, error) {
	return r.state(relay, func(o cluster.Operator) (cluster.DrainState, error) {
		return o.Drain(ctx, cluster.Drain{Deadline: cfg.Deadline, Threshold: cfg.Threshold})
	})
}

// Undrain lets a relay take new allocations again.
func (r reach) Undrain(ctx context.Context, relay string) (admin.DrainState, error) {
	return r.state(relay, func(o cluster.Operator) (cluster.DrainState, error) { return o.Undrain(ctx) })
}

// Page is what a relay shows.
func (r reach) Page(ctx context.Context, relay, target string) (admin.Shown, error) {
	o, err := r.at(relay)
	if err != nil {
		return admin.Shown{}, err
	}
	p, err := o.Page(ctx, target)
	return admin.Shown(p), told(err)
}

// RelayOf returns the relay that has a host.
func (r reach) RelayOf(ctx context.Context, id proto.AllocationID) (string, error) {
	home, err := r.homeOf(ctx, id)
	if errors.Is(err, alloc.ErrNotFound) {
		return "", fmt.Errorf("app: no host has that id, and of players the store knows nothing: name the relay, by --node or as /nodes/NODE/allocations/%v: %w", id, alloc.ErrNotFound)
	}
	return home.Relay.String(), err
}

// at returns a relay to be asked, even one that does not announce itself: it may
// only have lost the store.
func (r reach) at(relay string) (cluster.Operator, error) {
	nodes := r.nodes()
	i := slices.IndexFunc(nodes, func(c fleet.Candidate) bool { return c.Relay.String() == relay })
	if i < 0 {
		return nil, fmt.Errorf("app: relay %s has left the fleet: %w", relay, alloc.ErrUnavailable)
	}
	return r.dial(nodes[i].Node), nil
}

// state asks a relay for what becomes of its drain.
func (r reach) state(relay string, do func(cluster.Operator) (cluster.DrainState, error)) (admin.DrainState, error) {
	o, err := r.at(relay)
	if err != nil {
		return admin.DrainState{}, err
	}
	s, err := do(o)
	if err != nil {
		return admin.DrainState{}, told(err)
	}
	return admin.DrainState{
		Draining: s.Draining, Final: s.Final, Deadline: s.Deadline.Truncate(time.Second),
		Threshold: s.Threshold, Allocations: s.Allocations,
	}, nil
}

// told returns what a relay said as the admin pages know it.
func told(err error) error {
	switch {
	case errors.Is(err, cluster.ErrFinal):
		return admin.ErrFinal
	case errors.Is(err, cluster.ErrHost):
		return engine.ErrKickHost
	case errors.Is(err, alloc.ErrNotFound):
		return alloc.ErrNotFound
	}
	return err
}

// End ends an allocation wherever it is.
func (r reach) End(ctx context.Context, id proto.AllocationID) error {
	return r.wherever(ctx, id, func(ctx context.Context, o cluster.Operator) (bool, error) { return o.Close(ctx, id) })
}

// Kick removes a player from its match wherever that is.
func (r reach) Kick(ctx context.Context, id proto.AllocationID) error {
	return r.wherever(ctx, id, func(ctx context.Context, o cluster.Operator) (bool, error) { return o.Kick(ctx, id) })
}

// ask does something to an allocation at one relay, and reports whether it was
// there.
type ask func(context.Context, cluster.Operator) (bool, error)

// wherever asks the relay that has an allocation: for a host the one that the
// store names, else all that live.
func (r reach) wherever(ctx context.Context, id proto.AllocationID, do ask) error {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	nodes := r.nodes()
	home, known := r.home(ctx, id)
	if !known {
		return r.everywhere(ctx, nodes, do)
	}
	i := slices.IndexFunc(nodes, func(c fleet.Candidate) bool { return c.Relay == home.Relay })
	if i < 0 {
		return fmt.Errorf("app: the host is at relay %v, which does not announce itself: %w", home.Relay, alloc.ErrUnavailable)
	}
	_, err := do(ctx, r.dial(nodes[i].Node))
	return told(err)
}

// home returns where the store has a host.
func (r reach) home(ctx context.Context, id proto.AllocationID) (fleet.Home, bool) {
	ctx, cancel := context.WithTimeout(ctx, findWithin/2)
	defer cancel()
	h, err := r.homeOf(ctx, id)
	return h, err == nil
}

// everywhere asks all relays until the one that has it says that it did it, or why
// not. Those that were started anew lately cannot tell, and see to it that it does
// not come back. Without the store all relays look dead, and are asked.
func (r reach) everywhere(ctx context.Context, nodes []fleet.Candidate, do ask) error {
	unsure := r.ready()
	verdicts := make([]verdict, len(nodes))
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var asking sync.WaitGroup
	for range min(askAtOnce, len(nodes)) {
		asking.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(nodes); i = int(next.Add(1)) - 1 {
				v := &verdicts[i]
				if nodes[i].Age > fleet.DeadAfter && unsure == nil {
					v.err = errNotAnnounced
				} else if v.there, v.err = do(all, r.dial(nodes[i].Node)); v.final() {
					cancel() // Nobody else has it.
				}
			}
		})
	}
	asking.Wait()
	if i := slices.IndexFunc(verdicts, verdict.final); i >= 0 {
		return told(verdicts[i].err)
	}
	return nowhere(nodes, verdicts, unsure)
}

// verdict is what a relay said about an allocation.
type verdict struct {
	there bool
	err   error
}

// final reports whether it is that of the one that has the allocation.
func (v verdict) final() bool { return v.err == nil && v.there || errors.Is(v.err, cluster.ErrHost) }

// errNotAnnounced is why a relay was not asked: it is dead, and its allocations
// may come back with it.
var errNotAnnounced = fmt.Errorf("%w: it does not announce itself", alloc.ErrUnavailable)

// nowhere returns what is to be said when no relay is sure to have had it: nil
// where it can only be one that was kept from coming back, or which relays may
// have it all the same.
func nowhere(nodes []fleet.Candidate, verdicts []verdict, unsure error) error {
	var silent []string
	missing := alloc.ErrNotFound
	for i, v := range verdicts {
		switch {
		case v.err == nil:
			missing = nil
		case !errors.Is(v.err, alloc.ErrNotFound):
			why := strings.TrimPrefix(v.err.Error(), alloc.ErrUnavailable.Error()+": ")
			silent = append(silent, fmt.Sprintf("  %v %s: %s", nodes[i].Relay, nodes[i].Region, why))
		}
	}
	if len(silent) == 0 {
		if unsure != nil {
			return fmt.Errorf("app: no relay that is known has it, and there may be others: %w", unsure)
		}
		return missing
	}
	named := silent[:min(len(silent), maxNamed)]
	if more := len(silent) - maxNamed; more > 0 {
		named = append(named[:maxNamed:maxNamed], fmt.Sprintf("  and %d more", more))
	}
	return fmt.Errorf("%w: %d of %d relays do not have it, and these did not answer\n%s\nIf it is at one of them it goes on: ask again",
		alloc.ErrUnavailable, len(nodes)-len(silent), len(nodes), strings.Join(named, "\n"))
}
