package process

import (
	"context"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

// onMigrate is called when a player has taken the place of its host.
func (a *App) onMigrate(e engine.MigrateEvent) {
	a.devLog.migrates(e)
	a.history.migrates(e)
	a.observers.migrated(e)
}

func (a *App) onMigrationEnd(e engine.MigrationEndEvent) { a.observers.migrationEnded(e.Host) }

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

// codes returns the join codes that still lead to these hosts.
func (v *migratingHosts) codes(store *alloc.MemoryStore) (all []migratingCode) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for host, tenant := range v.hosts {
		if code, err := store.CodeOf(context.Background(), tenant, host); err == nil {
			all = append(all, migratingCode{host, tenant, code})
		}
	}
	return all
}

// restore continues with the codes of the process before this one.
func (v *migratingHosts) restore(store *alloc.MemoryStore, all []migratingCode) {
	for _, c := range all {
		store.Restore(c.Tenant.Hash(), c.Code, c.Host)
		v.add(engine.EndEvent{ID: c.Host, Tenant: c.Tenant})
	}
}

// observeMigrations connects the hooks of the relay with the store of this process.
func (a *App) observeMigrations() {
	a.observers.left = func(e engine.EndEvent) {
		a.service.OnBind(e.ID) // It may not have been bound in this run.
		a.migratingHosts.add(e)
	}
	a.observers.migrated = func(e engine.MigrateEvent) {
		if moved, err := a.codes.MoveCode(context.Background(), e.Tenant, e.Code, e.Host, e.NewHost); err != nil || !moved {
			a.onMoveRefused(e.NewHost)
		}
	}
	a.observers.migrationEnded = func(host proto.AllocationID) {
		a.migratingHosts.remove(host)
		a.service.OnEnd(host)
	}
}

// onMoveRefused is called for a host that has taken the place of another one, whose join code
// leads elsewhere by now: no player would find it.
func (a *App) onMoveRefused(host proto.AllocationID) {
	a.opts.Logger.Warn("a player has taken the place of a host, but the join code leads to another match: the host is ended", "host", host)
	go func() { _ = a.relay.End(context.Background(), host) }() // The hook runs on the goroutine that does this.
}
