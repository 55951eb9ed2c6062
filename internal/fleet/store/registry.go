package store

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

var _ placement.Registry = (*MemoryRegistry)(nil)

// afterwards is how long an entry stays once its relay cannot come back.
const afterwards = time.Minute

// MemoryRegistry is a fleet.Registry in this process's memory, for tests and
// for API and relays in one process. Its methods may be called from several
// goroutines and never fail.
type MemoryRegistry struct {
	now func() time.Time

	mu    sync.Mutex // guards the following field
	nodes map[alloc.RelayID]nodeEntry
}

// nodeEntry is an entry with the time at which it was written.
type nodeEntry struct {
	node placement.Node
	at   time.Time
}

// NewMemoryRegistry returns an empty registry on the clock now; nil means
// time.Now.
func NewMemoryRegistry(now func() time.Time) *MemoryRegistry {
	if now == nil {
		now = time.Now
	}
	return &MemoryRegistry{now: now, nodes: make(map[alloc.RelayID]nodeEntry)}
}

// Announce writes the node's entry. It reports whether there was one of the
// same run.
func (r *MemoryRegistry) Announce(_ context.Context, n placement.Node) (intact bool, err error) {
	n.Endpoints = slices.Clone(n.Endpoints)
	r.mu.Lock()
	defer r.mu.Unlock()
	before, ok := r.nodes[n.Relay]
	r.nodes[n.Relay] = nodeEntry{n, r.now()}
	return ok && before.node.Boot == n.Boot, nil
}

// Nodes returns all entries that have not ended.
func (r *MemoryRegistry) Nodes(context.Context) ([]placement.Seen, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var all []placement.Seen
	for id, h := range r.nodes {
		age := now.Sub(h.at)
		if age >= h.node.RecoverFor+placement.DeadAfter+afterwards {
			delete(r.nodes, id)
			continue
		}
		n := h.node
		n.Endpoints = slices.Clone(n.Endpoints)
		all = append(all, placement.Seen{Node: n, Age: age})
	}
	return all, nil
}

// Withdraw removes the entry of a relay if it is still that boot's.
func (r *MemoryRegistry) Withdraw(_ context.Context, relay alloc.RelayID, boot uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[relay].node.Boot == boot {
		delete(r.nodes, relay)
	}
	return nil
}

// Lose forgets everything, as a store that failed over to an empty one does.
func (r *MemoryRegistry) Lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.nodes)
}
