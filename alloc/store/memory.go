package store

import (
	"context"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Memory is a store in this process's memory. Its methods may be called from
// several goroutines and never fail but with alloc.ErrCodeNotFound; contexts
// are not looked at, as nothing here waits. A tenant without codes takes no
// memory.
type Memory struct {
	mu      sync.Mutex
	tenants map[alloc.Tenant]*codes
	byHost  map[proto.AllocationID]entry
}

// codes are those of one tenant.
type codes struct {
	tenant alloc.Tenant
	hosts  map[string]proto.AllocationID
}

// entry is the code of one host, and whose it is.
type entry struct {
	code string
	in   *codes
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{
		tenants: make(map[alloc.Tenant]*codes),
		byHost:  make(map[proto.AllocationID]entry),
	}
}

// PutCode remembers code for host. It reports false, and changes nothing, when
// the tenant has that code or the host has one.
func (m *Memory) PutCode(_ context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.byHost[host]; has {
		return false, nil
	}
	in := m.tenants[t]
	if in == nil {
		in = &codes{tenant: t, hosts: make(map[string]proto.AllocationID)}
		m.tenants[t] = in
	}
	if _, taken := in.hosts[code]; taken {
		return false, nil
	}
	in.hosts[code] = host
	m.byHost[host] = entry{code: code, in: in}
	return true, nil
}

// HostOf returns the host that code leads to, or alloc.ErrCodeNotFound.
func (m *Memory) HostOf(_ context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := m.tenants[t]; in != nil {
		if host, ok := in.hosts[code]; ok {
			return host, nil
		}
	}
	return proto.AllocationID{}, alloc.ErrCodeNotFound
}

// CodeOf returns the code of host, or alloc.ErrCodeNotFound when it has none
// or is of another tenant.
func (m *Memory) CodeOf(_ context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.byHost[host]
	if !ok || e.in.tenant != t {
		return "", alloc.ErrCodeNotFound
	}
	return e.code, nil
}

// Codes returns how many codes the tenant has.
func (m *Memory) Codes(_ context.Context, t alloc.Tenant) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := m.tenants[t]; in != nil {
		return len(in.hosts), nil
	}
	return 0, nil
}

// Forget drops the code of host, if it has one. It waits for nothing but the
// store's own lock, which no call holds for longer than a map operation.
func (m *Memory) Forget(host proto.AllocationID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.byHost[host]
	if !ok {
		return
	}
	delete(m.byHost, host)
	delete(e.in.hosts, e.code)
	if len(e.in.hosts) == 0 {
		delete(m.tenants, e.in.tenant)
	}
}
