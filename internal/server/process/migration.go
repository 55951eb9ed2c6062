package process

import (
	"context"
	"log/slog"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/proto"
)

// localCodes are the join codes of a process that stores them itself. The service of the relay, which
// observes it, is the one that forgets and moves them. Its fields are fixed before Run.
type localCodes struct {
	alloc.Store
	relay     *engine.Server
	log       *slog.Logger
	migrating migratingHosts
}

// MoveCode implements alloc.Store, and ends a host to which no code can lead.
func (c *localCodes) MoveCode(ctx context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	moved, err := c.Store.MoveCode(ctx, tenant, code, from, to)
	if err != nil || !moved {
		endUnreachableHost(c.relay, c.log, to)
	}
	return moved, err
}

func (c *localCodes) subscribe(s *events.Stream) {
	s.End.Subscribe(func(e engine.EndEvent) {
		if e.Migration {
			c.migrating.add(e)
		}
	})
	s.MigrationEnd.Subscribe(c.migrating.remove)
}

// endUnreachableHost ends a host that has taken the place of another one, whose join code leads
// elsewhere by now: no player would find it.
func endUnreachableHost(relay *engine.Server, log *slog.Logger, host proto.AllocationID) {
	log.Warn("a player has taken the place of a host, but the join code leads to another match: the host is ended", "host", host)
	go func() { _ = relay.End(context.Background(), host) }() // The hook runs on the goroutine that does this.
}

// migratingHosts are the hosts that have ended and whose place a player may take, in a process that
// stores join codes itself: another process that takes over needs their codes.
type migratingHosts struct {
	mu    sync.Mutex // guards hosts
	hosts map[proto.AllocationID]alloc.Tenant
}

func (v *migratingHosts) add(e engine.EndEvent) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.hosts == nil {
		v.hosts = make(map[proto.AllocationID]alloc.Tenant)
	}
	v.hosts[e.ID] = e.Tenant
}

func (v *migratingHosts) remove(host proto.AllocationID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.hosts, host)
}

// migratingCode is the join code of such a host. It is handed over as JSON.
type migratingCode struct {
	Host   proto.AllocationID
	Tenant alloc.Tenant
	Code   string
}

func (v *migratingHosts) codes(store alloc.Store) (all []migratingCode) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for host, tenant := range v.hosts {
		if code, err := store.CodeOf(context.Background(), tenant, host); err == nil {
			all = append(all, migratingCode{host, tenant, code})
		}
	}
	return all
}

func (v *migratingHosts) restore(store alloc.Store, all []migratingCode) {
	for _, c := range all {
		_, _ = store.MoveCode(context.Background(), c.Tenant.Hash(), c.Code, c.Host, c.Host)
		v.add(engine.EndEvent{ID: c.Host, Tenant: c.Tenant})
	}
}
