// Package game is what a program of another module writes to embed Ferry: a store of join codes, a
// placer and a transport of its own.
package game

import (
	"context"
	"strings"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// key is a join code of a tenant.
type key struct {
	tenant uint64
	code   string
}

// Store implements alloc.Store.
type Store struct {
	mu    sync.Mutex
	hosts map[key]proto.AllocationID
	keys  map[proto.AllocationID]key
}

var _ alloc.Store = (*Store)(nil)

func NewStore() *Store {
	return &Store{hosts: make(map[key]proto.AllocationID), keys: make(map[proto.AllocationID]key)}
}

func (s *Store) PutCode(_ context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{t.Hash(), code}
	_, taken := s.hosts[k]
	_, has := s.keys[host]
	if taken || has {
		return false, nil
	}
	s.hosts[k], s.keys[host] = host, k
	return true, nil
}

func (s *Store) HostOf(_ context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if host, ok := s.hosts[key{t.Hash(), code}]; ok {
		return host, nil
	}
	return proto.AllocationID{}, alloc.ErrCodeNotFound
}

func (s *Store) CodeOf(_ context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keys[host]; ok && k.tenant == t.Hash() {
		return k.code, nil
	}
	return "", alloc.ErrCodeNotFound
}

func (s *Store) Codes(_ context.Context, t alloc.Tenant, _ proto.AllocationID) (prefix string, n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.hosts {
		if k.tenant == t.Hash() {
			n++
		}
	}
	return "", n, nil
}

func (s *Store) Forget(host proto.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hosts, s.keys[host])
	delete(s.keys, host)
}

func (s *Store) MoveCode(_ context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	code, err := alloc.ParseCode(strings.TrimSpace(code))
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{tenant, code}
	host, ok := s.hosts[k]
	if ok && host == to {
		return true, nil
	}
	if _, has := s.keys[to]; has || ok && host != from {
		return false, nil
	}
	if ok {
		delete(s.keys, from)
	}
	s.hosts[k], s.keys[to] = to, k
	return true, nil
}
