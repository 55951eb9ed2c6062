package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.Relay = (*Local)(nil)

// Engine is the relay of this process: engine.Server. It alone counts seats.
type Engine interface {
	alloc.Relay
	// KeepCode makes the code of a live host outlive a crash. Errors:
	// alloc.ErrNotFound, alloc.ErrUnavailable, alloc.ErrCodeMalformed.
	KeepCode(ctx context.Context, host proto.AllocationID, code string) error
	// End ends an allocation. Errors: alloc.ErrNotFound, alloc.ErrUnavailable.
	End(ctx context.Context, id proto.AllocationID) error
}

// Local is the relay of this process as API processes call it. It passes reservations
// and codes to the engine and records them in the announcer; the engine's hooks report
// ends and returns to the announcer. Its methods may be called concurrently.
type Local struct {
	engine    Engine
	announcer *Announcer
}

// NewLocal returns the relay whose engine that is. Both are required.
func NewLocal(engine Engine, announcer *Announcer) *Local {
	return &Local{engine: engine, announcer: announcer}
}

// ReserveHost reserves a host and has it announced. Errors: those of the
// engine, and alloc.ErrUnavailable for a host that has ended already.
func (l *Local) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	stray := l.announcer.unknownEndCount()
	res, err := l.engine.ReserveHost(ctx, r)
	if err != nil {
		return alloc.Reservation{}, err
	}
	l.announcer.HostReserved(res.ID, r.Tenant.Hash())
	// The host may have ended before it was added, and would be announced forever.
	if l.announcer.unknownEndCount() != stray && l.hasEnded(ctx, res.ID) {
		l.announcer.HostEnded(res.ID)
		return alloc.Reservation{}, fmt.Errorf("fleet: the reservation has ended: %w", alloc.ErrUnavailable)
	}
	return res, nil
}

// hasEnded reports whether a host has ended, also after the caller has left.
func (l *Local) hasEnded(ctx context.Context, host proto.AllocationID) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	_, err := l.engine.Describe(ctx, host)
	return errors.Is(err, alloc.ErrNotFound)
}

// ReserveJoiner reserves a joiner, whose seat its host has taken.
func (l *Local) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	return l.engine.ReserveJoiner(ctx, r)
}

// Describe describes an allocation.
func (l *Local) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	return l.engine.Describe(ctx, id)
}

// KeepCode keeps the code of a host, on disk and in the store.
func (l *Local) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	if err := l.engine.KeepCode(ctx, host, code); err != nil {
		return err
	}
	l.announcer.KeepCode(host, code)
	return nil
}

// End ends a reservation that the API process released. The engine's hook reports the
// end to the announcer.
func (l *Local) End(ctx context.Context, id proto.AllocationID) error { return l.engine.End(ctx, id) }
