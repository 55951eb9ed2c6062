package app

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/quota"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
)

const (
	// leaseEvery is the time between two reports of a relay about what its projects
	// use: by as much a quota can be exceeded.
	leaseEvery = 2 * time.Second
	// leaseFor is how long a report counts, and so what a dead relay takes with it.
	leaseFor = 10 * time.Second
)

// The scopes of leases: what a project uses, of each thing that has a limit.
const (
	scopeAllocations = "allocations:"
	scopePlayers     = "players:"
	scopeBytes       = "bytes:" // per second
)

// leases tell what a project uses in a fleet: the sum of what its relays report.
type leases struct {
	store *redisstore.Store // set before anybody asks
}

// usage is for quota.Config. Its error means that nobody can say.
func (l *leases) usage(ctx context.Context, project string) (u quota.Usage, err error) {
	allocations, err := l.store.Used(ctx, scopeAllocations+project)
	if err != nil {
		return u, err
	}
	players, err := l.store.Used(ctx, scopePlayers+project)
	if err != nil {
		return u, err
	}
	bytes, err := l.store.Used(ctx, scopeBytes+project)
	return quota.Usage{Allocations: int(allocations), Players: int(players), BytesPerSecond: bytes}, err
}

// report tells the store what each project uses of the relay, until ctx ends. Who
// came back after a restart is in it.
func (m *member) report(ctx context.Context) {
	ticker := time.NewTicker(leaseEvery)
	defer ticker.Stop()
	holder := m.node.Relay.String()
	var told map[string]int64
	var relayed bandwidth
	for {
		select {
		case <-ctx.Done():
			return // What was told ends by itself, unless the next run is quicker.
		case <-ticker.C:
		}
		all, err := m.app.relay.Usage(ctx)
		if err != nil {
			continue // The relay does not run yet, or no more.
		}
		uses, next := changed(told, all, relayed.measure(all, time.Now()))
		if len(uses) > 0 && m.app.store.Leases(ctx, holder, leaseFor, uses) != nil {
			continue // The store is away, of which others complain.
		}
		told = next
	}
}

// changed returns what is used now by scope, and with it the scopes that were
// told of and are used no more.
func changed(told map[string]int64, all []engine.Usage, perSecond map[string]int64) (uses []redisstore.Use, next map[string]int64) {
	next = make(map[string]int64)
	for i := range all {
		if project := all[i].Name.Project; project != "" && all[i].Allocations > 0 {
			next[scopeAllocations+project] += int64(all[i].Allocations)
			next[scopePlayers+project] += int64(all[i].Players)
		}
	}
	for project, n := range perSecond {
		if n > 0 {
			next[scopeBytes+project] = n
		}
	}
	for scope, n := range next {
		uses = append(uses, redisstore.Use{Scope: scope, Used: n})
	}
	for scope := range told {
		if _, still := next[scope]; !still {
			uses = append(uses, redisstore.Use{Scope: scope})
		}
	}
	return uses, next
}
