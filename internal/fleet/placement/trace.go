package placement

import (
	"context"

	"github.com/ferryrelay/ferry/internal/base/trace"
	"github.com/ferryrelay/ferry/proto"
)

// tracedDirectory is a Directory whose calls about homes are spans, in a context that has
// one. Calls about codes are spans of the alloc.Service.
type tracedDirectory struct{ Directory }

func (t tracedDirectory) SetHome(ctx context.Context, host proto.AllocationID, home Home) error {
	ctx, span := trace.Start(ctx, "store.SetHome")
	err := t.Directory.SetHome(ctx, host, home)
	span.End(err)
	return err
}

func (t tracedDirectory) HomeOf(ctx context.Context, host proto.AllocationID) (Home, error) {
	ctx, span := trace.Start(ctx, "store.HomeOf")
	home, err := t.Directory.HomeOf(ctx, host)
	span.End(err)
	return home, err
}
