package cluster

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// fakeRelay is a relay that reserves and never serves.
type fakeRelay struct {
	// before, if set, is called by each reservation before it is made, with no
	// lock held.
	before func(ctx context.Context)

	mu      sync.Mutex // guards the following fields
	fail    error      // what every method answers when it is not nil
	endFail error      // what End answers when it is not nil
	live    map[proto.AllocationID]alloc.Description
	codes   map[proto.AllocationID]string
	hosts   []alloc.HostRequest
	joiners []alloc.JoinerRequest
	made    int
	ended   int
}

// fakeCapacity bounds what a fake relay remembers of a benchmark.
const fakeCapacity = 1000

func newFakeRelay() *fakeRelay {
	return &fakeRelay{
		live:  make(map[proto.AllocationID]alloc.Description),
		codes: make(map[proto.AllocationID]string),
	}
}

// fakeWays are the endpoints of the fake relay.
var fakeWays = []alloc.ServerEndpoint{
	{ConnectionType: "udp", Network: "udp", Host: "192.0.2.9", Port: 7777},
	{ConnectionType: "dtls", Network: "udp", Secure: true, Host: "192.0.2.9", Port: 7777},
	{ConnectionType: "wss", Network: "tcp", Reliable: true, Secure: true, Host: "relay.example.org", Port: 443},
}

func (f *fakeRelay) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	return f.reserve(ctx, alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleHost}, func() error {
		f.hosts = append(f.hosts, r)
		return nil
	})
}

func (f *fakeRelay) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	return f.reserve(ctx, alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleJoiner}, func() error {
		f.joiners = append(f.joiners, r)
		if _, ok := f.live[r.Host]; !ok {
			return alloc.ErrNotFound
		}
		return nil
	})
}

func (f *fakeRelay) reserve(ctx context.Context, d alloc.Description, check func() error) (alloc.Reservation, error) {
	if f.before != nil {
		f.before(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return alloc.Reservation{}, f.fail
	}
	if err := check(); err != nil {
		return alloc.Reservation{}, err
	}
	if len(f.live) >= fakeCapacity {
		clear(f.live)
		f.hosts, f.joiners = nil, nil
	}
	res := alloc.Reservation{Endpoints: fakeWays, Region: "north"}
	for _, b := range [][]byte{res.ID[:], res.Key[:], res.ConnectionData[:], res.HostConnectionData[:]} {
		_, _ = rand.Read(b)
	}
	res.ID[0] |= 1 // See fakeOperator.Close.
	f.live[res.ID] = d
	f.made++
	return res, nil
}

func (f *fakeRelay) Describe(_ context.Context, id proto.AllocationID) (alloc.Description, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.live[id]
	switch {
	case f.fail != nil:
		return alloc.Description{}, f.fail
	case !ok:
		return alloc.Description{}, alloc.ErrNotFound
	}
	return d, nil
}

func (f *fakeRelay) KeepCode(_ context.Context, host proto.AllocationID, code string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.live[host]
	switch {
	case f.fail != nil:
		return f.fail
	case !ok:
		return alloc.ErrNotFound
	}
	f.codes[host] = code
	return nil
}

func (f *fakeRelay) End(_ context.Context, id proto.AllocationID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endFail != nil {
		return f.endFail
	}
	if _, ok := f.live[id]; !ok {
		return alloc.ErrNotFound
	}
	delete(f.live, id)
	f.ended++
	return nil
}

// failWith makes every later call but End fail, or none when err is nil.
func (f *fakeRelay) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// counts returns how many reservations were made and how many are left.
func (f *fakeRelay) counts() (made, live int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made, len(f.live)
}

// failEndWith makes every later End fail, or none when err is nil.
func (f *fakeRelay) failEndWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endFail = err
}

// has reports whether an allocation is live.
func (f *fakeRelay) has(id proto.AllocationID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.live[id]
	return ok
}
