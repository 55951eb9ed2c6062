package history

import (
	"context"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Lister is the relay whose allocations are listed.
type Lister interface {
	Allocations(context.Context, engine.Filter, uint32, int) ([]engine.Allocation, uint32, error)
}

// EachAllocation calls do for at most so many allocations, and reports whether there are more.
// Errors: those of engine.Server.Allocations.
func EachAllocation(ctx context.Context, relay Lister, f engine.Filter, most int, do func(engine.Allocation)) (more bool, err error) {
	at := uint32(0)
	for n := 0; n < most; {
		page, next, err := relay.Allocations(ctx, f, at, min(operator.MaxRows, most-n))
		if err != nil {
			return false, err
		}
		for _, a := range page {
			do(a)
		}
		if at = next; at == 0 {
			return false, nil
		}
		n += len(page)
	}
	return true, nil
}
