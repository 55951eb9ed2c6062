package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.Relay = (*Local)(nil)

// Engine is the relay of this process: engine.Server.
type Engine interface {
	alloc.Relay
	// KeepCode makes the code of a live host outlive a crash. Errors:
	// alloc.ErrNotFound, alloc.ErrUnavailable, alloc.ErrCodeMalformed.
	KeepCode(ctx context.Context, host proto.AllocationID, code string) error
	// End ends an allocation. Errors: alloc.ErrNotFound, alloc.ErrUnavailable.
	End(ctx context.Context, id proto.AllocationID) error
}

// LocalConfig is what a [Local] is made of.
type LocalConfig struct {
	// Engine serves the players. Required.
	Engine Engine
	// Seats is how many players the relay takes, hosts among them. Required.
	Seats int
	// Overcommit is how many seats are promised for one that there is, where
	// hosts ask for more players than come. Zero: 1. Below 1: seats stay empty.
	Overcommit float64
	// Announcer is told of hosts and of their codes. Nil: nobody is.
	Announcer *Announcer
}

// Local is the relay of this process as the API reaches it: it promises no more
// seats than there are, whatever any API process believes. Its methods may be
// called from several goroutines.
type Local struct {
	engine    Engine
	seats     int
	announcer *Announcer

	mu      sync.Mutex // guards the following fields; held for no call
	taken   int
	byHost  map[proto.AllocationID]int32
	strange uint64 // ends of hosts that are not in byHost
}

// NewLocal returns a relay without hosts, or ErrConfig.
func NewLocal(cfg LocalConfig) (*Local, error) {
	if cfg.Overcommit == 0 {
		cfg.Overcommit = 1
	}
	promised := float64(cfg.Seats) * cfg.Overcommit
	switch {
	case cfg.Engine == nil:
		return nil, fmt.Errorf("%w: Engine is nil", ErrConfig)
	case cfg.Seats < 1:
		return nil, fmt.Errorf("%w: Seats is %d, want at least 1", ErrConfig, cfg.Seats)
	case !(cfg.Overcommit > 0), promised < 1, promised > math.MaxInt32:
		return nil, fmt.Errorf("%w: Overcommit is %v, which makes %v seats of %d",
			ErrConfig, cfg.Overcommit, promised, cfg.Seats)
	}
	return &Local{
		engine: cfg.Engine, seats: int(promised), announcer: cfg.Announcer,
		byHost: make(map[proto.AllocationID]int32),
	}, nil
}

// Seats returns how many seats may be promised, and how many are: what
// [Node] announces as Seats and Taken.
func (l *Local) Seats() (all, taken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seats, l.taken
}

// ReserveHost reserves a host with its seats. Errors: those of the engine, and
// alloc.ErrFull when there are not as many.
func (l *Local) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	if r.MaxConnections < 1 || r.MaxConnections > math.MaxUint16 {
		return alloc.Reservation{}, alloc.ErrMaxConnections
	}
	seats := r.MaxConnections + 1
	strange, err := l.take(seats)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res, err := l.engine.ReserveHost(ctx, r)
	if err != nil {
		l.give(seats)
		return alloc.Reservation{}, err
	}
	l.enter(res.ID, seats)
	if l.announcer != nil {
		l.announcer.Reserved(res.ID, r.Tenant.Hash())
	}
	// It may have ended before it was entered, and nobody would free its seats.
	if l.strangers() != strange && l.gone(ctx, res.ID) {
		l.Ended(res.ID)
		return alloc.Reservation{}, fmt.Errorf("fleet: the reservation has ended: %w", alloc.ErrUnavailable)
	}
	return res, nil
}

// gone reports whether a host has ended, whether its caller still waits or not.
func (l *Local) gone(ctx context.Context, host proto.AllocationID) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callWithin)
	defer cancel()
	_, err := l.engine.Describe(ctx, host)
	return errors.Is(err, alloc.ErrNotFound)
}

// ReserveJoiner reserves a joiner, whose seat its host has taken.
func (l *Local) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	return l.engine.ReserveJoiner(ctx, r)
}

// Describe tells about an allocation.
func (l *Local) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	return l.engine.Describe(ctx, id)
}

// KeepCode keeps the code of a host, on disk and in the store.
func (l *Local) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	if err := l.engine.KeepCode(ctx, host, code); err != nil {
		return err
	}
	if l.announcer != nil {
		l.announcer.KeepCode(host, code)
	}
	return nil
}

// End ends an allocation: a reservation that the API gave up. Its seats are
// free when the engine has told of the end.
func (l *Local) End(ctx context.Context, id proto.AllocationID) error { return l.engine.End(ctx, id) }

// Ended frees the seats of a host that has ended. It is for the engine's hook:
// it does not block. Of an allocation that is no host it need not be told.
func (l *Local) Ended(id proto.AllocationID) {
	l.mu.Lock()
	if seats, ok := l.byHost[id]; ok {
		l.taken -= int(seats)
		delete(l.byHost, id)
	} else {
		l.strange++
	}
	l.mu.Unlock()
	if l.announcer != nil {
		l.announcer.Ended(id)
	}
}

// Returned takes the seats of a host that came back after a restart, of which
// nobody reserved it anew, even where there are none: it was promised them. It
// is for the engine's hook: it does not block. Telling it again does no harm.
func (l *Local) Returned(host proto.AllocationID, tenant uint64, maxConnections int) {
	l.mu.Lock()
	_, known := l.byHost[host]
	if !known {
		l.taken += maxConnections + 1
		l.byHost[host] = int32(maxConnections + 1)
	}
	l.mu.Unlock()
	if !known && l.announcer != nil {
		l.announcer.Returned(host, tenant)
	}
}

// take takes seats, and returns the number of strange ends so far.
func (l *Local) take(seats int) (strange uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seats-l.taken < seats {
		return 0, fmt.Errorf("fleet: %d of %d seats are taken: %w", l.taken, l.seats, alloc.ErrFull)
	}
	l.taken += seats
	return l.strange, nil
}

func (l *Local) give(seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken -= seats
}

// enter notes whose the seats are that were taken.
func (l *Local) enter(host proto.AllocationID, seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byHost[host] = int32(seats)
}

func (l *Local) strangers() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.strange
}
