package quota

import (
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
	// Inactive refuses everything.
	Inactive bool
}

// Usage is what a project uses now, in terms of [Limits]. What is not known is
// zero.
type Usage struct {
	Allocations, Players int
	BytesPerSecond       int64
}

// Config is what a [Guard] is made of.
type Config struct {
	// Limits are those of each project that has any. The map is not changed.
	Limits map[string]Limits
	// Usage says what a project uses. It is called for projects with limits
	// only, from many goroutines. Required where there are limits.
	Usage func(ctx context.Context, project string) (Usage, error)
	// Logger hears of usage that nobody could tell, at debug level. Nil: nobody.
	Logger *slog.Logger
}

// Guard refuses reservations beyond the limits of a project. Its fields do not
// change, but for the counters.
type Guard struct {
	limits  map[string]Limits
	usage   func(context.Context, string) (Usage, error)
	log     *slog.Logger
	refused atomic.Uint64
	unknown atomic.Uint64
}

// NewGuard returns a guard, or an error for limits that nobody can check.
func NewGuard(cfg Config) (*Guard, error) {
	if len(cfg.Limits) > 0 && cfg.Usage == nil {
		return nil, fmt.Errorf("quota: limits of %d projects, and nobody says what they use", len(cfg.Limits))
	}
	for project, l := range cfg.Limits {
		if project == "" || l.Allocations < 0 || l.Players < 0 || l.BytesPerSecond < 0 {
			return nil, fmt.Errorf("quota: project %q: a project has a name, and no limit is negative", project)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Guard{limits: cfg.Limits, usage: cfg.Usage, log: cfg.Logger}, nil
}

// Admit reports whether a may be reserved: nil, or alloc.ErrProjectQuota or
// alloc.ErrProjectInactive.
func (g *Guard) Admit(ctx context.Context, a alloc.Ask) error {
	project := a.Caller.Tenant.Project
	l, ok := g.limits[project]
	switch {
	case !ok:
		return nil
	case l.Inactive:
		g.refused.Add(1)
		return alloc.ErrProjectInactive
	case l == Limits{}:
		return nil
	}
	u, err := g.usage(ctx, project)
	if err != nil {
		g.unknown.Add(1)
		g.log.Debug("quota: nobody can say what the project uses: it is let in", "project", project, "error", err)
		return nil
	}
	if l.spent(u) {
		g.refused.Add(1)
		return alloc.ErrProjectQuota
	}
	return nil
}

// spent reports whether there is no room for one more.
func (l Limits) spent(u Usage) bool {
	return l.Allocations > 0 && u.Allocations >= l.Allocations ||
		l.Players > 0 && u.Players >= l.Players ||
		l.BytesPerSecond > 0 && u.BytesPerSecond >= l.BytesPerSecond
}

// Stats are counts since the start.
type Stats struct {
	Refused uint64 // reservations
	Unknown uint64 // reservations let in since nobody could say
}

// Stats returns the counts.
func (g *Guard) Stats() Stats { return Stats{g.refused.Load(), g.unknown.Load()} }
