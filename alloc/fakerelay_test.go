package alloc_test

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// fakeRelay keeps allocations in a map. Its methods may be called concurrently.
type fakeRelay struct {
	mu                            sync.Mutex
	next                          uint64
	live                          map[proto.AllocationID]alloc.Description
	hosts                         []alloc.HostRequest
	joins                         []alloc.JoinerRequest
	region                        string
	hostErr, joinErr, describeErr error
	// onDescribe, if set, is called by Describe once it has its answer, with
	// the number of the call from 1 and no lock held.
	onDescribe func(call int)
	describes  int
}

func newFakeRelay() *fakeRelay {
	return &fakeRelay{live: make(map[proto.AllocationID]alloc.Description)}
}

func (r *fakeRelay) ReserveHost(_ context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hostErr != nil {
		return alloc.Reservation{}, r.hostErr
	}
	r.hosts = append(r.hosts, q)
	return r.reserve(q.Tenant, q.Player, alloc.RoleHost), nil
}

func (r *fakeRelay) ReserveJoiner(_ context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joinErr != nil {
		return alloc.Reservation{}, r.joinErr
	}
	if d, ok := r.live[q.Host]; !ok || d.Tenant != q.Tenant.Hash() {
		return alloc.Reservation{}, alloc.ErrNotFound
	}
	r.joins = append(r.joins, q)
	return r.reserve(q.Tenant, q.Player, alloc.RoleJoiner), nil
}

// reserve makes an allocation. The caller holds r.mu.
func (r *fakeRelay) reserve(t alloc.Tenant, p alloc.PlayerHash, role alloc.Role) alloc.Reservation {
	r.next++
	id := proto.AllocationID{0: 0xFA}
	binary.BigEndian.PutUint64(id[8:], r.next)
	r.live[id] = alloc.Description{Tenant: t.Hash(), Player: p, Role: role}
	return alloc.Reservation{ID: id, Region: r.region}
}

func (r *fakeRelay) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	r.mu.Lock()
	r.describes++
	call, hook := r.describes, r.onDescribe
	d, ok := r.live[id]
	err := r.describeErr
	r.mu.Unlock()
	if hook != nil {
		hook(call)
	}
	switch {
	case err != nil:
		return alloc.Description{}, err
	case ctx.Err() != nil:
		return alloc.Description{}, alloc.ErrUnavailable
	case !ok:
		return alloc.Description{}, alloc.ErrNotFound
	}
	return d, nil
}

// end removes id and then calls OnEnd, as a relay does.
func (r *fakeRelay) end(s *alloc.Service, id proto.AllocationID) {
	r.mu.Lock()
	delete(r.live, id)
	r.mu.Unlock()
	s.OnEnd(id)
}
