package store

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Memory is a store in this process's memory. Its methods may be called from
// several goroutines and never fail but with alloc.ErrCodeNotFound, and PutCode
// with alloc.ErrCodeMalformed; contexts are not looked at, as nothing here
// waits. A code takes less than 100 bytes, and nothing that the collector has
// to look into. Memory that was used once is used again and not given back; a
// tenant without codes takes none.
//
// Tenants are told apart by alloc.Tenant.Hash, as the relay does.
type Memory struct {
	seed maphash.Seed

	mu     sync.Mutex // guards the following fields
	slab   slab
	byCode index
	byHost index
	counts map[uint64]int // codes by tenant, none of them zero
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{seed: maphash.MakeSeed(), counts: make(map[uint64]int)}
}

// codeKey names a code, upper-case and packed, within its tenant.
type codeKey struct{ tenant, code uint64 }

// PutCode remembers code for host. It reports false, and changes nothing, when
// the tenant has that code or the host has one.
func (m *Memory) PutCode(_ context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	packed, ok := alloc.PackCode(code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	return m.put(codeKey{t.Hash(), packed}, host), nil
}

// Restore remembers code for host as PutCode does, for the tenant with that
// hash: it puts back after a restart what was kept elsewhere. It reports false,
// and changes nothing, for a code that is malformed or taken, and for a host
// that has one.
func (m *Memory) Restore(tenant uint64, code string, host proto.AllocationID) bool {
	packed, ok := alloc.PackCode(code)
	return ok && m.put(codeKey{tenant, packed}, host)
}

func (m *Memory) put(key codeKey, host proto.AllocationID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.findHost(host) >= 0 || m.findCode(key) >= 0 {
		return false
	}
	n := m.slab.add(entry{codeKey: key, host: host})
	m.byCode.add(m.hashCode(key), n, m.codeOf)
	m.byHost.add(m.hashHost(host), n, m.hostOf)
	m.counts[key.tenant]++
	return true
}

// HostOf returns the host that code leads to, or alloc.ErrCodeNotFound.
func (m *Memory) HostOf(_ context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	packed, ok := alloc.PackCode(code)
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	key := codeKey{t.Hash(), packed}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.findCode(key)
	if n < 0 {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	return m.slab.at(n).host, nil
}

// CodeOf returns the code of host, or alloc.ErrCodeNotFound when it has none
// or is of another tenant.
func (m *Memory) CodeOf(_ context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	tenant := t.Hash()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.findHost(host)
	if n < 0 || m.slab.at(n).tenant != tenant {
		return "", alloc.ErrCodeNotFound
	}
	return alloc.UnpackCode(m.slab.at(n).code), nil
}

// Codes returns how many codes the tenant has.
func (m *Memory) Codes(_ context.Context, t alloc.Tenant) (int, error) {
	tenant := t.Hash()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[tenant], nil
}

// Forget drops the code of host, if it has one. It waits for nothing but the
// store's own lock, which no call holds for longer than it takes to grow one
// page of an index: tens of microseconds.
func (m *Memory) Forget(host proto.AllocationID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.findHost(host)
	if n < 0 {
		return
	}
	key := m.slab.at(n).codeKey
	m.byCode.remove(m.hashCode(key), n, m.codeOf)
	m.byHost.remove(m.hashHost(host), n, m.hostOf)
	m.slab.free(n)
	if m.counts[key.tenant]--; m.counts[key.tenant] == 0 {
		delete(m.counts, key.tenant)
	}
}

// findCode returns the number of the code's entry, or -1. As the following
// methods, it needs mu.
func (m *Memory) findCode(key codeKey) int {
	return m.byCode.find(m.hashCode(key), func(n int) bool { return m.slab.at(n).codeKey == key })
}

// findHost returns the number of the host's entry, or -1.
func (m *Memory) findHost(host proto.AllocationID) int {
	return m.byHost.find(m.hashHost(host), func(n int) bool { return m.slab.at(n).host == host })
}

func (m *Memory) hashCode(key codeKey) uint64 { return maphash.Comparable(m.seed, key) }

func (m *Memory) hashHost(host proto.AllocationID) uint64 { return maphash.Bytes(m.seed, host[:]) }

// codeOf returns the hash of the code of entry n.
func (m *Memory) codeOf(n int) uint64 { return m.hashCode(m.slab.at(n).codeKey) }

// hostOf returns the hash of the host of entry n.
func (m *Memory) hostOf(n int) uint64 { return m.hashHost(m.slab.at(n).host) }
