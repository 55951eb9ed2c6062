package fleet

import (
	"context"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

var _ alloc.MigrationRelay = (*Local)(nil)

// Engine is the relay of this process: engine.Server. It alone counts seats.
type Engine interface {
	alloc.MigrationRelay
	// KeepCode makes the code of a live host outlive a crash. Errors:
	// alloc.ErrNotFound, alloc.ErrUnavailable, alloc.ErrCodeMalformed.
	KeepCode(ctx context.Context, host proto.AllocationID, code string) error
	// End ends an allocation. Errors: alloc.ErrNotFound, alloc.ErrUnavailable.
	End(ctx context.Context, id proto.AllocationID) error
}

// Local is the relay of this process as API processes call it. Its methods may be called
// concurrently. The engine's hooks report reservations, ends and returns of hosts to the
// announcer, in their order; codes reach it through KeepCode.
type Local struct {
	Engine
	announcer *Announcer
}

// NewLocal returns the relay with that engine. Both arguments are required.
func NewLocal(engine Engine, announcer *Announcer) *Local {
	return &Local{Engine: engine, announcer: announcer}
}

// KeepCode keeps the code of a host, on disk and in the store.
func (l *Local) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	if err := l.Engine.KeepCode(ctx, host, code); err != nil {
		return err
	}
	l.announcer.KeepCode(host, code)
	return nil
}
