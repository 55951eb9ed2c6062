package engine

import (
	"sync"

	"github.com/ferryrelay/ferry/alloc"
)

// names are what tenants are called of whom the relay knows nothing but the
// connection data of players that come back after a restart. Workers learn, and
// control asks. The zero names know nobody.
type names struct {
	mu sync.Mutex // guards of; held for no call
	of map[uint64]alloc.Tenant
}

// learn notes the name that an authentic BIND of a run before carries. It copies
// what it keeps. Beyond the tenants that are counted apart none is kept.
func (n *names) learn(c *alloc.Claims) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.of[c.Tenant]; known || len(n.of) >= maxProjects {
		return
	}
	if n.of == nil {
		n.of = make(map[uint64]alloc.Tenant)
	}
	n.of[c.Tenant] = alloc.Tenant{Project: string(c.Project), Environment: string(c.Environment)}
}

// find returns the name of a tenant, if somebody has brought it.
func (n *names) find(tenant uint64) (t alloc.Tenant, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, ok = n.of[tenant]
	return t, ok
}
