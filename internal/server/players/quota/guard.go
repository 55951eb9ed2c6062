package quota

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
)

// Limits are what a project may use at once, in all its environments together.
// Zero means no limit.
type Limits struct {
	// Allocations, of hosts and joiners, reserved or bound.
	Allocations int
	// Players are the bound ones among them.
	Players int
	// BytesPerSecond is what the project relays.
	BytesPerSecond int64
	Inactive       bool
}

type Usage struct {
	Allocations, Players int
	BytesPerSecond       int64
}

// Source returns what a project uses. An error means that it is not known.
type Source func(ctx context.Context, project string) (Usage, error)

// Guard refuses reservations beyond the limits of a project. It does not change,
// but for the counts: [Guard.With] returns one with other limits.
type Guard struct {
	limits map[string]Limits
	log    *slog.Logger
	counts *counts // shared with the guards that it was made of
}

// NewGuard returns a guard without limits. A nil log discards.
func NewGuard(log *slog.Logger) *Guard {
	return &Guard{log: cmp.Or(log, slog.New(slog.DiscardHandler)), counts: new(counts)}
}

// With returns a guard with other limits that counts on. The map is not changed.
func (g *Guard) With(limits map[string]Limits) (*Guard, error) {
	for project, l := range limits {
		if project == "" || l.Allocations < 0 || l.Players < 0 || l.BytesPerSecond < 0 {
			return nil, fmt.Errorf("quota: project %q: a project has a name, and no limit is negative", project)
		}
	}
	next := *g
	next.limits = limits
	return &next, nil
}

// Admit reports whether a may be reserved: nil, or alloc.ErrProjectQuota,
// alloc.ErrProjectInactive, or an alloc.ErrUnavailable if the usage is unknown, which is read for
// projects with limits only. Calls at the same time see the same usage, see [Guard.Check].
func (g *Guard) Admit(ctx context.Context, a alloc.AdmissionRequest, usage Source) error {
	project := a.Caller.Tenant.Project
	l := g.limits[project]
	if l.Inactive || l == (Limits{}) {
		return g.Check(project, Usage{})
	}
	u, err := usage(ctx, project)
	if err != nil {
		g.counts.unknown.Add(1)
		g.log.Debug("quota: usage unknown; the reservation is refused", "project", project, "error", err)
		return fmt.Errorf("%w: quota: usage of the project: %w", alloc.ErrUnavailable, err)
	}
	return g.Check(project, u)
}

// Check reports whether a project with this usage may reserve one allocation more: nil,
// alloc.ErrProjectQuota or alloc.ErrProjectInactive. A quota holds exactly if no other
// reservation of the project is made between the call and the reservation.
func (g *Guard) Check(project string, u Usage) error {
	l := g.limits[project]
	if l.Inactive {
		g.counts.refused[RefusedInactive].Add(1)
		return alloc.ErrProjectInactive
	}
	if limit, spent := l.spent(u); spent {
		g.counts.refused[limit].Add(1)
		return alloc.ErrProjectQuota
	}
	return nil
}

func (l Limits) spent(u Usage) (Refusal, bool) {
	switch {
	case l.Allocations > 0 && u.Allocations >= l.Allocations:
		return RefusedAllocations, true
	case l.Players > 0 && u.Players >= l.Players:
		return RefusedPlayers, true
	case l.BytesPerSecond > 0 && u.BytesPerSecond >= l.BytesPerSecond:
		return RefusedBandwidth, true
	}
	return 0, false
}

type Refusal uint8

const (
	RefusedInactive Refusal = iota
	RefusedAllocations
	RefusedPlayers
	RefusedBandwidth
	NumRefusals
)

// String names the limit as in a metric.
func (r Refusal) String() string {
	switch r {
	case RefusedInactive:
		return "inactive"
	case RefusedAllocations:
		return "allocations"
	case RefusedPlayers:
		return "players"
	case RefusedBandwidth:
		return "bandwidth"
	}
	return "unknown"
}

type Stats struct {
	// Refused counts reservations by the first limit that they met.
	Refused [NumRefusals]uint64
	Unknown uint64
}

type counts struct {
	refused [NumRefusals]atomic.Uint64
	unknown atomic.Uint64
}

// Stats returns the counts.
func (g *Guard) Stats() (st Stats) {
	for r := range st.Refused {
		st.Refused[r] = g.counts.refused[r].Load()
	}
	st.Unknown = g.counts.unknown.Load()
	return st
}
