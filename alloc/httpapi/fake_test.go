package httpapi

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// fakeRelay is a relay that reserves and never serves.
type fakeRelay struct {
	mu    sync.Mutex // guards the following fields
	fail  error      // what every method answers when it is not nil
	live  map[proto.AllocationID]alloc.Description
	ways  []alloc.ServerEndpoint
	calls int
	hosts []alloc.HostRequest
}

// fakeCapacity bounds the memory of a fake relay under a fuzzer.
const fakeCapacity = 1000

func newFakeRelay() *fakeRelay {
	return &fakeRelay{
		live: make(map[proto.AllocationID]alloc.Description),
		ways: []alloc.ServerEndpoint{
			{ConnectionType: "wss", Network: "tcp", Reliable: true, Secure: true, Host: "relay.example.org", Port: 443},
			{ConnectionType: "udp", Network: "udp", Host: "192.0.2.9", Port: 7777},
			{ConnectionType: "dtls", Network: "udp", Secure: true, Host: "192.0.2.9", Port: 7777},
		},
	}
}

func (f *fakeRelay) ReserveHost(_ context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	f.mu.Lock()
	f.hosts = append(f.hosts[max(len(f.hosts)-fakeCapacity, 0):], r)
	f.mu.Unlock()
	return f.reserve(alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleHost})
}

func (f *fakeRelay) ReserveJoiner(_ context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	f.mu.Lock()
	_, ok := f.live[r.Host]
	f.mu.Unlock()
	if !ok {
		return alloc.Reservation{}, alloc.ErrNotFound
	}
	return f.reserve(alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleJoiner})
}

func (f *fakeRelay) Describe(_ context.Context, id proto.AllocationID) (alloc.Description, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		return alloc.Description{}, f.fail
	}
	d, ok := f.live[id]
	if !ok {
		return alloc.Description{}, alloc.ErrNotFound
	}
	return d, nil
}

func (f *fakeRelay) reserve(d alloc.Description) (alloc.Reservation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		return alloc.Reservation{}, f.fail
	}
	if len(f.live) >= fakeCapacity {
		clear(f.live)
	}
	res := alloc.Reservation{Endpoints: f.ways}
	for _, b := range [][]byte{res.ID[:], res.Key[:], res.ConnectionData[:], res.HostConnectionData[:]} {
		_, _ = rand.Read(b)
	}
	f.live[res.ID] = d
	return res, nil
}

// failWith makes every later call fail, or none when err is nil.
func (f *fakeRelay) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// end ends every allocation.
func (f *fakeRelay) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.live)
}

func (f *fakeRelay) called() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}
