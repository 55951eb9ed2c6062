package placement

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// simRelay is a relay of the simulation: Local and its announcer, with an engine
// below them that counts seats, reserves and never serves.
type simRelay struct {
	Relay // of which the simulation calls no more than what is below
	sim   *sim
	seats int

	mu        sync.Mutex // guards the following fields
	node      Node       // as it announced itself lastly, at beat
	beat      time.Time
	local     *Local
	announcer *Announcer                 // gets hosts, and never runs
	live      map[proto.AllocationID]int // seats
	taken     int                        // as the engine counts them
	made      int
	down      time.Time // until when it is dead
	draining  time.Time // until when it drains
}

// begin starts the relay, at first or after a crash, with those of its hosts
// that come back: even where there are no seats, since they were promised them.
func (r *simRelay) begin(t *testing.T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	store := simStore{sim: r.sim}
	announcer := NewAnnouncer(AnnouncerConfig{Registry: store, Directory: store, Node: func() Node { return Node{} }})
	r.node.Boot++
	r.taken = 0
	for id, seats := range r.live {
		if r.sim.chance(simLost) {
			delete(r.live, id)
			continue
		}
		r.taken += seats
		announcer.HostReturned(id, testTenant.Hash())
	}
	r.local, r.announcer = NewLocal(r, announcer), announcer
}

func (r *simRelay) ReserveHost(_ context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seats := q.MaxConnections + 1
	switch {
	case time.Now().Before(r.draining):
		return alloc.Reservation{}, alloc.ErrDraining
	case r.seats-r.taken < seats:
		return alloc.Reservation{}, alloc.ErrFull
	}
	r.made++
	id := hostID(r.made)
	r.live[id] = seats
	r.taken += seats
	r.announcer.HostReserved(id, q.Tenant.Hash())
	way := alloc.ServerEndpoint{Host: r.node.Control}
	return alloc.Reservation{ID: id, Endpoints: []alloc.ServerEndpoint{way}}, nil
}

func (r *simRelay) End(_ context.Context, id proto.AllocationID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	seats, ok := r.live[id]
	delete(r.live, id)
	r.taken -= seats
	if ok && !time.Now().Before(r.down) {
		r.announcer.HostEnded(id)
	}
	return nil
}

func (r *simRelay) announce() {
	lost := r.sim.chance(simBeatLost)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if lost || now.Before(r.down) {
		return
	}
	r.beat = now
	r.node.Seats, r.node.Taken = r.seats, r.taken
	r.node.Draining = now.Before(r.draining)
	r.node.Load = 0.6 * float64(r.node.Taken) / float64(r.node.Seats)
}

// truth returns how many seats there are really, how many hosts think that they
// have, and whether new hosts could come.
func (r *simRelay) truth() (all, taken int, open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seats := range r.live {
		taken += seats
	}
	now := time.Now()
	return r.seats, taken, !now.Before(r.down) && !now.Before(r.draining)
}

// simRemote is how an API process reaches a relay.
type simRemote struct {
	Relay
	relay *simRelay
}

// ReserveHost reserves, after some time. A dead relay refuses the connection or
// swallows it; and an answer may be lost, whose reservation is then cancelled.
func (x simRemote) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	time.Sleep(simTrip)
	r := x.relay
	r.mu.Lock()
	dead, swallows, local := time.Now().Before(r.down), r.node.Boot%2 == 0, r.local
	r.mu.Unlock()
	if dead {
		if swallows {
			<-ctx.Done()
		}
		return alloc.Reservation{}, alloc.ErrUnavailable
	}
	res, err := local.ReserveHost(ctx, q)
	if err == nil && r.sim.chance(simAnswerLost) {
		<-ctx.Done()
		_ = r.End(context.WithoutCancel(ctx), res.ID)
		return alloc.Reservation{}, alloc.ErrUnavailable
	}
	return res, err
}

type simStore struct {
	Directory
	sim *sim
}

func (s simStore) SetHome(context.Context, proto.AllocationID, Home) error { return nil }

func (s simStore) Announce(context.Context, Node) (bool, error) { return true, nil }

func (s simStore) Withdraw(context.Context, alloc.RelayID, uint64) error { return nil }

func (s simStore) Nodes(context.Context) ([]Seen, error) {
	all := make([]Seen, len(s.sim.relays))
	for i, r := range s.sim.relays {
		r.mu.Lock()
		all[i] = Seen{Node: r.node, Age: time.Since(r.beat)}
		r.mu.Unlock()
	}
	return all, nil
}
