package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

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

// whyPages registers GET /why/NAME, where NAME is the id of an allocation or a join code.
func whyPages(mux *http.ServeMux, h History) {
	mux.HandleFunc("GET /why/{name}", func(w http.ResponseWriter, r *http.Request) {
		var answer operator.Why
		id, err := allocationNamed(h, r.PathValue("name"))
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
			answer, err = h.Why(ctx, id)
			return err
		})
		writeAnswer(w, answer, err)
	})
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

// whyOfFleet registers GET /why/NAME of a process without a relay, which asks all relays.
func whyOfFleet(mux *http.ServeMux, fleet relays) {
	mux.HandleFunc("GET /why/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		var answer operator.Why
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			return askAllRelays(ctx, fleet, "/why/"+url.PathEscape(name), func(_ operator.Node, found operator.Why) bool {
				if found.Known || found.Awaited {
					answer = found
				}
				return found.Known
			})
		})
		if err == nil && !answer.Known && !answer.Awaited {
			err = unknownInFleet(r.Context(), fleet, name)
		}
		writeAnswer(w, answer, err)
	})
}

// unknownInFleet says that no relay knows an allocation, or that no relay is there.
func unknownInFleet(ctx context.Context, fleet relays, name string) error {
	nodes, err := fleet.nodes(ctx)
	if err == nil && !slices.ContainsFunc(nodes.Nodes, func(n operator.Node) bool { return n.Role != apiRole }) {
		return fmt.Errorf("%w: this API process knows no relay at present", alloc.ErrUnavailable)
	}
	return errors.Join(err, fmt.Errorf("%w: no relay of the fleet knows %q", alloc.ErrNotFound, name))
}
