package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

// Fleet is what the pages ask of the relays of a fleet.
type Fleet interface {
	// Drain and Undrain are for the relay with that id. Errors: ErrFinal,
	// alloc.ErrUnavailable.
	Drain(ctx context.Context, relay string, cfg engine.DrainConfig) (DrainState, error)
	Undrain(ctx context.Context, relay string) (DrainState, error)
	// End and Kick are for the relay that has the allocation. Errors:
	// alloc.ErrNotFound when none has it, alloc.ErrUnavailable when one that may
	// have it did not answer, and for Kick engine.ErrHost.
	End(context.Context, proto.AllocationID) error
	Kick(context.Context, proto.AllocationID) error
	// Page is what the relay with that id shows at a path with a query. Error:
	// alloc.ErrUnavailable.
	Page(ctx context.Context, relay, target string) (Shown, error)
	// RelayOf returns the id of the relay that has a host. Errors: alloc.ErrNotFound
	// for all others, alloc.ErrUnavailable.
	RelayOf(context.Context, proto.AllocationID) (relay string, err error)
}

// minNode is how much of an id names a node: a slip of the pen must not name one
// of a few.
const minNode = 4

// apiRole is the role of a node that has no relay.
const apiRole = "api"

// maxCandidates bounds the nodes that are listed for a name that none has.
const maxCandidates = 8

var (
	// errNode is wrapped by what a name is refused for.
	errNode = errors.New("admin")
	// errNoRelay is for what only a relay can do.
	errNoRelay = errors.New("admin: this is an API process, which has no relay: name one of the relays that ferry ctl nodes lists")
	errNoTable = errors.New("admin: this is an API process, which relays nothing: name one of the relays that ferry ctl nodes lists, by --node or as /nodes/NODE/allocations")
)

// find returns the one node of which name is the id, or its beginning.
func find(all []Node, name string) (Node, error) {
	if len(name) < minNode {
		return Node{}, fmt.Errorf("%w: %q is too short for a node: give %d characters of its id at least", errQuery, name, minNode)
	}
	var found []Node
	for _, n := range all {
		switch {
		case strings.EqualFold(n.ID, name):
			return n, nil
		case len(name) < len(n.ID) && strings.EqualFold(n.ID[:len(name)], name):
			found = append(found, n)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		if !slices.ContainsFunc(all, func(n Node) bool { return n.Role != apiRole }) {
			return Node{}, fmt.Errorf("%w: no node has an id that begins with %q: this process knows of no relay", errNode, name)
		}
		return Node{}, fmt.Errorf("%w: no node that is known here has an id that begins with %q; the relays are\n%s", errNode, name, candidates(all))
	}
	return Node{}, fmt.Errorf("%w: %d nodes have an id that begins with %q; give more of one of them\n%s", errQuery, len(found), name, candidates(found))
}

// candidates lists relays by what an operator knows them by.
func candidates(all []Node) string {
	all = slices.DeleteFunc(slices.Clone(all), func(n Node) bool { return n.Role == apiRole })
	var lines []string
	for _, n := range all[:min(len(all), maxCandidates)] {
		lines = append(lines, "  "+strings.Join([]string{n.ID, n.Role, cmp.Or(n.Region, "-"), n.State}, "  "))
	}
	if more := len(all) - maxCandidates; more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", more))
	}
	return strings.Join(append(lines, "ferry ctl nodes tells more about them"), "\n")
}

// nodeDrainPages answer for the drain of a node that is named.
func nodeDrainPages(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("POST /nodes/{node}/drain", func(w http.ResponseWriter, r *http.Request) {
		want, err := drainConfig(r.URL.Query(), cfg.DrainDefaults)
		if err != nil {
			answer(w, nil, err)
			return
		}
		state, err := onNode(r, cfg, "told to drain", func(ctx context.Context, relay string) (DrainState, error) {
			if cfg.Fleet != nil {
				return cfg.Fleet.Drain(ctx, relay, want)
			}
			err := cfg.Drain(ctx, want)
			return cfg.Draining(), err
		})
		answer(w, state, err)
	})
	mux.HandleFunc("DELETE /nodes/{node}/drain", func(w http.ResponseWriter, r *http.Request) {
		state, err := onNode(r, cfg, "told to end its drain", func(ctx context.Context, relay string) (DrainState, error) {
			if cfg.Fleet != nil {
				return cfg.Fleet.Undrain(ctx, relay)
			}
			err := cfg.Undrain(ctx)
			return cfg.Draining(), err
		})
		answer(w, state, err)
	})
}

// onNode does something at the node that the path names, and says so in the log.
func onNode(r *http.Request, cfg *Config, what string, do func(context.Context, string) (DrainState, error)) (state DrainState, err error) {
	var n Node
	err = within(r.Context(), func(ctx context.Context) (err error) {
		if n, err = relayNode(ctx, cfg, r.PathValue("node")); err != nil {
			return err
		}
		state, err = do(ctx, n.ID)
		return err
	})
	if err != nil {
		return DrainState{}, err
	}
	state.Node = n.ID
	cfg.log().Info("operator: a relay was "+what, "relay", n.ID, "from", r.RemoteAddr)
	return state, nil
}

// relayNode returns the one relay of which name is the id, or its beginning.
func relayNode(ctx context.Context, cfg *Config, name string) (Node, error) {
	all, err := cfg.Nodes(ctx)
	if err != nil {
		return Node{}, err
	}
	n, err := find(all, name)
	if err == nil && n.Role == apiRole {
		err = errNoRelay
	}
	return n, err
}

// noRelayPages say why a process of a fleet that has no relay does not do what a
// relay does.
func noRelayPages(mux *http.ServeMux) {
	for page, err := range map[string]error{
		"POST /drain": errNoRelay, "DELETE /drain": errNoRelay,
		"GET /allocations": errNoTable, "GET /usage": errNoTable, "GET /stats": errNoTable,
	} {
		mux.HandleFunc(page, func(w http.ResponseWriter, _ *http.Request) { answer(w, nil, err) })
	}
}
