package admin

import (
	"context"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

// History knows what happened to the allocations of a relay. Its methods must be safe for
// concurrent use.
type History interface {
	// Why explains an allocation, live or ended. Error: alloc.ErrUnavailable.
	Why(context.Context, proto.AllocationID) (operator.Why, error)
	// HostOf returns the live host of a join code.
	HostOf(code string) (proto.AllocationID, bool)
	// CodeOf returns the join code of a live host, "" if it has none.
	CodeOf(host proto.AllocationID) string
	// PlayerOf returns the player of a live allocation, "" if it is not known, for display.
	PlayerOf(proto.AllocationID) string
	// AllocationsOf returns the live allocations that may be of a player, as far as its name
	// is known.
	AllocationsOf(player string) []proto.AllocationID
	// PlayerUsage returns what the players of a project and environment have used, in no order;
	// empty: of any. Error: alloc.ErrUnavailable.
	PlayerUsage(ctx context.Context, project, environment string) (operator.PlayersUsage, error)
}

func explain(h History) func(context.Context, operator.NameQuery) (operator.Why, error) {
	return func(ctx context.Context, q operator.NameQuery) (answer operator.Why, err error) {
		id, err := allocationNamed(h, q.Name)
		if err != nil {
			return answer, err
		}
		return h.Why(ctx, id)
	}
}

// allocationNamed returns the allocation with that id, or the host with that join code.
func allocationNamed(h History, name string) (proto.AllocationID, error) {
	id, err := proto.ParseAllocationID(name)
	if err == nil {
		return id, nil
	}
	if h != nil {
		if host, ok := h.HostOf(name); ok {
			return host, nil
		}
	}
	return id, fmt.Errorf("%w: %q is neither the id of an allocation nor the join code of a live host", alloc.ErrNotFound, name)
}
