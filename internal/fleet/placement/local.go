package placement

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Local is the relay of this process as API processes call it. Its methods may be called
// concurrently. The engine's hooks report reservations, ends and returns of hosts to the
// announcer, in their order; codes reach it through KeepCode.
type Local struct {
	Relay
	announcer *Announcer
}

// NewLocal returns the relay of that engine.Server. Both arguments are required.
func NewLocal(relay Relay, announcer *Announcer) *Local {
	return &Local{Relay: relay, announcer: announcer}
}

// ReserveJoiner reserves an allocation for a joiner. While the relay has yet to announce the codes of
// its last run, a host that is not found is alloc.ErrUnavailable: its code may be another host's.
func (l *Local) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	res, err := l.Relay.ReserveJoiner(ctx, r)
	return res, l.notFoundUnlessRestoring(err)
}

// MigrateHost reserves an allocation for the place of a host, with the same exception.
func (l *Local) MigrateHost(ctx context.Context, r alloc.MigrationRequest) (alloc.Reservation, error) {
	res, err := l.Relay.MigrateHost(ctx, r)
	return res, l.notFoundUnlessRestoring(err)
}

func (l *Local) notFoundUnlessRestoring(err error) error {
	if errors.Is(err, alloc.ErrNotFound) && l.announcer.isRestoring() {
		return fmt.Errorf("fleet: the relay has just started, and announces its join codes: %w", alloc.ErrUnavailable)
	}
	return err
}

// KeepCode keeps the code of a host, on disk and in the store.
func (l *Local) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	if err := l.Relay.KeepCode(ctx, host, code); err != nil {
		return err
	}
	l.announcer.KeepCode(host, code)
	return nil
}
