package alloc

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// memoryStore identifies tenants by Tenant.Hash, as the relay does.
type memoryStore struct {
	seed maphash.Seed

	mu     sync.Mutex // guards the following fields
	slab   slab
	byCode index
	byHost index
	counts map[uint64]int // codes by tenant, none of them zero
}

// NewMemoryStore returns an empty store in this process's memory. A code takes less than 100 bytes
// without a pointer; memory is used again and not given back.
func NewMemoryStore() Store { return newMemoryStore() }

func newMemoryStore() *memoryStore {
	return &memoryStore{seed: maphash.MakeSeed(), counts: make(map[uint64]int)}
}

// codeKey identifies a join code, packed by joincode.Pack, within its tenant.
type codeKey struct{ tenant, code uint64 }

func (m *memoryStore) PutCode(_ context.Context, t Tenant, code string, host proto.AllocationID) (bool, error) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return false, ErrCodeMalformed
	}
	key := codeKey{t.Hash(), packed}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.insert(key, host), nil
}

// insert stores a code for a caller that holds mu.
func (m *memoryStore) insert(key codeKey, host proto.AllocationID) bool {
	if m.findHost(host) >= 0 || m.findCode(key) >= 0 {
		return false
	}
	n := m.slab.add(entry{codeKey: key, host: host})
	m.byCode.add(m.hashCode(key), n, m.codeOf)
	m.byHost.add(m.hashHost(host), n, m.hostOf)
	m.counts[key.tenant]++
	return true
}

func (m *memoryStore) HostOf(_ context.Context, t Tenant, code string) (proto.AllocationID, error) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return proto.AllocationID{}, ErrCodeNotFound
	}
	key := codeKey{t.Hash(), packed}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.findCode(key)
	if n < 0 {
		return proto.AllocationID{}, ErrCodeNotFound
	}
	return m.slab.at(n).host, nil
}

func (m *memoryStore) CodeOf(_ context.Context, t Tenant, host proto.AllocationID) (string, error) {
	tenant := t.Hash()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.findHost(host)
	if n < 0 || m.slab.at(n).tenant != tenant {
		return "", ErrCodeNotFound
	}
	return joincode.Unpack(m.slab.at(n).code), nil
}

func (m *memoryStore) Codes(_ context.Context, t Tenant, _ proto.AllocationID) (string, int, error) {
	tenant := t.Hash()
	m.mu.Lock()
	defer m.mu.Unlock()
	return "", m.counts[tenant], nil
}

// No call holds the lock for longer than tens of microseconds.
func (m *memoryStore) Forget(host proto.AllocationID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(host)
}

// forget is Forget for a caller that holds mu.
func (m *memoryStore) forget(host proto.AllocationID) {
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

func (m *memoryStore) MoveCode(_ context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return false, ErrCodeMalformed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := codeKey{tenant, packed}
	if n := m.findCode(key); n >= 0 {
		holder := m.slab.at(n).host
		if holder == to {
			return true, nil
		}
		if holder != from || m.findHost(to) >= 0 {
			return false, nil
		}
		m.forget(from)
	}
	return m.insert(key, to), nil
}

// findCode returns the number of the code's entry, or -1. The caller holds mu.
func (m *memoryStore) findCode(key codeKey) int {
	return m.byCode.find(m.hashCode(key), func(n int) bool { return m.slab.at(n).codeKey == key })
}

// findHost returns the number of the host's entry, or -1. The caller holds mu.
func (m *memoryStore) findHost(host proto.AllocationID) int {
	return m.byHost.find(m.hashHost(host), func(n int) bool { return m.slab.at(n).host == host })
}

func (m *memoryStore) hashCode(key codeKey) uint64 { return maphash.Comparable(m.seed, key) }

func (m *memoryStore) hashHost(host proto.AllocationID) uint64 { return maphash.Bytes(m.seed, host[:]) }

func (m *memoryStore) codeOf(n int) uint64 { return m.hashCode(m.slab.at(n).codeKey) }

func (m *memoryStore) hostOf(n int) uint64 { return m.hashHost(m.slab.at(n).host) }

// entry is a join code and its host: 32 bytes without a pointer.
type entry struct {
	codeKey
	host proto.AllocationID
}

// chunkLen is the number of entries that the slab grows by: 32 KiB, so that an
// idle store is small and growing one never copies.
const chunkLen = 1024

// slab holds entries by number and reuses the numbers of freed entries. The zero
// value is empty.
type slab struct {
	chunks []*[chunkLen]entry
	used   int // numbers that were in use at least once
	freed  int // head of the free list, plus one; 0: empty
}

func (s *slab) at(n int) *entry { return &s.chunks[n/chunkLen][n%chunkLen] }

func (s *slab) add(e entry) int {
	n := s.freed - 1
	switch {
	case n >= 0:
		s.freed = int(s.at(n).code)
	default:
		n = s.used
		if n == len(s.chunks)*chunkLen {
			s.chunks = append(s.chunks, new([chunkLen]entry))
		}
		s.used++
	}
	*s.at(n) = e
	return n
}

// free removes entry n and pushes it on the free list. The code of a free entry is
// the next free entry.
func (s *slab) free(n int) {
	*s.at(n) = entry{codeKey: codeKey{code: uint64(s.freed)}}
	s.freed = n + 1
}

// An index has 1,024 pages, so that a call that grows one of them moves only a
// thousandth of all entries.
const (
	pageBits = 10
	pageMin  = 8 // cells of the smallest page, a power of two
)

// index finds entries of a slab by a hash: open addressing with linear probing in
// pages that grow one by one. A cell is the number of an entry plus one, or 0. The
// caller computes hashes from the entries.
type index struct {
	pages [1 << pageBits]page
}

// page is a part of an index. The number of its cells is a power of two; at most
// three quarters of them are in use.
type page struct {
	cells []uint32
	used  int
}

// pageOf returns the page of a hash: its upper bits select the page, its lower bits
// the first cell to probe.
func (x *index) pageOf(hash uint64) *page { return &x.pages[hash>>(64-pageBits)] }

// find returns the number of the entry with that hash for which is returns true, or
// -1.
func (x *index) find(hash uint64, is func(n int) bool) int {
	p := x.pageOf(hash)
	if p.used == 0 {
		return -1
	}
	mask := uint64(len(p.cells) - 1)
	for i := hash & mask; p.cells[i] != 0; i = (i + 1) & mask {
		if n := int(p.cells[i]) - 1; is(n) {
			return n
		}
	}
	return -1
}

// add inserts entry n, which must not be in the index.
func (x *index) add(hash uint64, n int, hashOf func(n int) uint64) {
	p := x.pageOf(hash)
	if (p.used+1)*4 > len(p.cells)*3 {
		p.grow(hashOf)
	}
	p.place(hash, uint32(n+1))
	p.used++
}

func (p *page) place(hash uint64, cell uint32) {
	mask := uint64(len(p.cells) - 1)
	i := hash & mask
	for p.cells[i] != 0 {
		i = (i + 1) & mask
	}
	p.cells[i] = cell
}

func (p *page) grow(hashOf func(n int) uint64) {
	old := p.cells
	p.cells = make([]uint32, max(pageMin, 2*len(old)))
	for _, cell := range old {
		if cell != 0 {
			p.place(hashOf(int(cell)-1), cell)
		}
	}
}

// remove deletes entry n and moves entries behind it back so that probing still
// reaches them. An empty page keeps no cells.
func (x *index) remove(hash uint64, n int, hashOf func(n int) uint64) {
	p := x.pageOf(hash)
	if p.used--; p.used == 0 {
		p.cells = nil
		return
	}
	mask := uint64(len(p.cells) - 1)
	hole := hash & mask
	for p.cells[hole] != uint32(n+1) {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; p.cells[i] != 0; i = (i + 1) & mask {
		home := hashOf(int(p.cells[i])-1) & mask
		if (i-home)&mask >= (i-hole)&mask {
			p.cells[hole] = p.cells[i]
			hole = i
		}
	}
	p.cells[hole] = 0
}
