// Package alloctest has a relay without clients, for tests of services and of the calls between machines.
package alloctest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Relay is an alloc.Relay and a placement.Relay that makes reservations and serves no clients. Its
// methods may be called concurrently; the mutex guards its fields, which the test may set.
type Relay struct {
	sync.Mutex
	Config    alloc.RelayConfig
	Region    string // of reservations
	Endpoints []alloc.ServerEndpoint
	// Before is called by each reservation before it is made, OnDescribe by each Describe once it has its
	// answer, with the number of the call from 1. The mutex is free then.
	Before     func(context.Context)
	OnDescribe func(call int)

	Live  map[proto.AllocationID]alloc.Description
	Left  proto.AllocationID // the host that has left, and whose place any player may take
	Codes map[proto.AllocationID]string

	// What it was asked for, without what it failed; of each the last ones.
	Hosts      []alloc.HostRequest
	Joiners    []alloc.JoinerRequest
	Migrations []alloc.MigrationRequest
	Leaves     []alloc.LeaveRequest

	Calls       int // of the methods that may fail
	Made, Ended int

	observers []alloc.Observer
	described int
	errs      map[string]error
}

// capacity bounds the memory of a relay in a benchmark or under a fuzzer.
const capacity = 1000

// NewRelay returns a relay with host migration.
func NewRelay() *Relay {
	return &Relay{
		Config: alloc.RelayConfig{HostMigration: true}, Live: make(map[proto.AllocationID]alloc.Description),
		Codes: make(map[proto.AllocationID]string), errs: make(map[string]error),
	}
}

// Methods that may fail.
var methods = []string{"ReserveHost", "ReserveJoiner", "MigrateHost", "LeaveHost", "Describe", "KeepCode"}

// Fail makes every later call of these methods fail, by default of all but End, or none when err is nil.
func (r *Relay) Fail(err error, calls ...string) {
	r.Lock()
	defer r.Unlock()
	if len(calls) == 0 {
		calls = methods
	}
	for _, name := range calls {
		r.errs[name] = err
	}
}

// begin returns the error that the call shall return. The caller holds the mutex.
func (r *Relay) begin(call string) error {
	r.Calls++
	return r.errs[call]
}

func last[Q any](all []Q, q Q) []Q { return append(all[max(len(all)-capacity, 0):], q) }

// RelayConfig returns Config.
func (r *Relay) RelayConfig() alloc.RelayConfig { return r.Config }

// ReserveHost makes an allocation.
func (r *Relay) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	d := alloc.Description{Tenant: q.Tenant.Hash(), Player: q.PlayerHash, Role: alloc.RoleHost}
	return r.reserve(ctx, "ReserveHost", d, func() error {
		r.Hosts = last(r.Hosts, q)
		return nil
	})
}

// ReserveJoiner makes an allocation for a live host that has not left.
func (r *Relay) ReserveJoiner(ctx context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	d := alloc.Description{Tenant: q.Tenant.Hash(), Player: q.PlayerHash, Role: alloc.RoleJoiner}
	return r.reserve(ctx, "ReserveJoiner", d, func() error {
		host, live := r.Live[q.Host]
		switch {
		case q.Host == r.Left:
			return alloc.RefusedError{Err: alloc.ErrMigration, Reason: "the host has left"}
		case !live || host.Tenant != d.Tenant:
			return alloc.ErrNotFound
		}
		r.Joiners = last(r.Joiners, q)
		return nil
	})
}

// MigrateHost makes an allocation for the place of the host that has left.
func (r *Relay) MigrateHost(ctx context.Context, q alloc.MigrationRequest) (alloc.Reservation, error) {
	r.Lock()
	r.Migrations = last(r.Migrations, q)
	r.Unlock()
	d := alloc.Description{Tenant: q.Tenant.Hash(), Player: q.PlayerHash, Role: alloc.RoleHost, Code: q.Code}
	return r.reserve(ctx, "MigrateHost", d, func() error {
		_, live := r.Live[q.Host]
		switch {
		case q.Host == r.Left:
			return nil
		case live:
			return alloc.RefusedError{Err: alloc.ErrHostPresent, Host: q.Host}
		}
		return alloc.ErrNotFound
	})
}

// reserve makes an allocation unless check, which is called with the mutex held, returns an error.
func (r *Relay) reserve(ctx context.Context, call string, d alloc.Description, check func() error) (alloc.Reservation, error) {
	if r.Before != nil {
		r.Before(ctx)
	}
	r.Lock()
	defer r.Unlock()
	err := r.begin(call)
	if err == nil {
		err = check()
	}
	if err != nil {
		return alloc.Reservation{}, err
	}
	if len(r.Live) >= capacity {
		clear(r.Live)
	}
	r.Made++
	res := alloc.Reservation{ID: proto.AllocationID{0: 0xFB}, Region: r.Region, Endpoints: r.Endpoints}
	binary.BigEndian.PutUint64(res.ID[8:], uint64(r.Made))
	for _, b := range [][]byte{res.Key[:], res.ConnectionData[:], res.HostConnectionData[:]} {
		_, _ = rand.Read(b)
	}
	r.Live[res.ID] = d
	return res, nil
}

// LeaveHost sets Left, for a player that owns the host or a backend.
func (r *Relay) LeaveHost(_ context.Context, q alloc.LeaveRequest) error {
	r.Lock()
	defer r.Unlock()
	r.Leaves = last(r.Leaves, q)
	if err := r.begin("LeaveHost"); err != nil {
		return err
	}
	d, live := r.Live[q.Host]
	if !live || d.Tenant != q.Tenant.Hash() || q.PlayerHash != (alloc.PlayerHash{}) && q.PlayerHash != d.Player {
		return alloc.ErrNotFound
	}
	r.Left = q.Host
	return nil
}

// Describe returns what Live has.
func (r *Relay) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	r.Lock()
	r.described++
	call, hook := r.described, r.OnDescribe
	d, live := r.Live[id]
	err := r.begin("Describe")
	r.Unlock()
	if hook != nil {
		hook(call)
	}
	switch {
	case err != nil:
		return alloc.Description{}, err
	case ctx.Err() != nil:
		return alloc.Description{}, alloc.ErrUnavailable
	case !live:
		return alloc.Description{}, alloc.ErrNotFound
	}
	return d, nil
}

// KeepCode sets the code of a live host in Codes.
func (r *Relay) KeepCode(_ context.Context, host proto.AllocationID, code string) error {
	r.Lock()
	defer r.Unlock()
	_, live := r.Live[host]
	switch err := r.begin("KeepCode"); {
	case err != nil:
		return err
	case !live:
		return alloc.ErrNotFound
	}
	r.Codes[host] = code
	return nil
}

// End ends an allocation, of which observers hear.
func (r *Relay) End(_ context.Context, id proto.AllocationID) error {
	r.Lock()
	_, live := r.Live[id]
	err, observers := r.errs["End"], slices.Clone(r.observers)
	if err == nil && live {
		delete(r.Live, id)
		r.Ended++
	}
	r.Unlock()
	switch {
	case err != nil:
		return err
	case !live:
		return alloc.ErrNotFound
	}
	for _, o := range observers {
		o.OnEnd(id)
	}
	return nil
}

// Lose ends all allocations, of which no observer hears.
func (r *Relay) Lose() {
	r.Lock()
	defer r.Unlock()
	clear(r.Live)
}

// Count returns how many allocations it has made, and how many are live.
func (r *Relay) Count() (made, live int) {
	r.Lock()
	defer r.Unlock()
	return r.Made, len(r.Live)
}

// Observe calls o for each End.
func (r *Relay) Observe(o alloc.Observer) error {
	r.Lock()
	defer r.Unlock()
	if err := r.errs["Observe"]; err != nil {
		return err
	}
	r.observers = append(r.observers, o)
	return nil
}
