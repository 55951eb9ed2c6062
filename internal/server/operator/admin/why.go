package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
	"github.com/ferryrelay/ferry/proto"
)

// History knows what happened to the allocations of a relay. Its methods must be safe for
// concurrent use.
type History interface {
	// Why explains an allocation, live or ended. Error: alloc.ErrUnavailable.
	Why(context.Context, proto.AllocationID) (Why, error)
	// HostOf returns the live host of a join code.
	HostOf(code string) (proto.AllocationID, bool)
	// CodeOf returns the join code of a live host, "" if it has none.
	CodeOf(host proto.AllocationID) string
	// PlayerOf returns the player of a live allocation, "" if it is not known, for display.
	PlayerOf(proto.AllocationID) string
	// AllocationsOf returns the live allocations that may be of a player, as far as its name
	// is known.
	AllocationsOf(player string) []proto.AllocationID
}

// Why is the response of /why/NAME: what happened to an allocation, live or ended, and what
// that means.
type Why struct {
	ID       string `json:"id"`
	Role     string `json:"role,omitempty"`
	JoinCode string `json:"join_code,omitempty"` // of a live host
	Player   string `json:"player,omitempty"`    // while it is live
	// Known: something has happened to it that is still known.
	Known bool `json:"known"`
	// Awaited: it is not live, and may come back after a restart of the relay.
	Awaited bool       `json:"awaited,omitempty"`
	Because string     `json:"because"` // a sentence
	Events  []WhyEvent `json:"events"`  // the oldest first
	// Players are those that joined a host lately, at most 100, the newest last.
	Players []WhyPlayer `json:"players,omitempty"`
}

// WhyPlayer is a joiner of a host.
type WhyPlayer struct {
	ID      string `json:"id"`
	Player  string `json:"player,omitempty"` // while it is live
	Because string `json:"because"`
}

// WhyEvent is an event, or Count of one kind.
type WhyEvent struct {
	// ID and Relay are those of the allocation, in a [ProjectTimeline]. ID is "" for a call that
	// was refused, and Relay if it is the one that answers.
	ID       string    `json:"id,omitempty"`
	Relay    string    `json:"relay,omitempty"`
	What     string    `json:"what"`
	Reason   string    `json:"reason,omitempty"`
	Peer     string    `json:"peer,omitempty"`
	Endpoint string    `json:"endpoint,omitempty"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Count    uint32    `json:"count"`
}

// EventOf returns an event of an allocation, without its ID.
func EventOf(e *timeline.Event) WhyEvent {
	row := WhyEvent{What: e.Kind.String(), Reason: e.Reason, First: e.First, Last: e.Last, Count: e.Count}
	if !e.Peer.IsZero() {
		row.Peer = e.Peer.String()
	}
	if e.Endpoint.IsValid() {
		row.Endpoint = e.Endpoint.String()
	}
	return row
}

// whyPages registers GET /why/NAME, where NAME is the id of an allocation or a join code.
func whyPages(mux *http.ServeMux, h History) {
	mux.HandleFunc("GET /why/{name}", func(w http.ResponseWriter, r *http.Request) {
		var answer Why
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
func whyOfFleet(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /why/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		var answer Why
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			return askRelays(ctx, cfg, "/why/"+url.PathEscape(name), func(_ Node, found Why) bool {
				if found.Known || found.Awaited {
					answer = found
				}
				return found.Known
			})
		})
		if err == nil && !answer.Known && !answer.Awaited {
			err = unknownInFleet(r.Context(), cfg, name)
		}
		writeAnswer(w, answer, err)
	})
}

// unknownInFleet says that no relay knows an allocation, or that no relay is there.
func unknownInFleet(ctx context.Context, cfg *Config, name string) error {
	nodes, err := cfg.Nodes(ctx)
	if err == nil && !slices.ContainsFunc(nodes, func(n Node) bool { return n.Role != apiRole }) {
		return fmt.Errorf("%w: this API process knows no relay at present", alloc.ErrUnavailable)
	}
	return errors.Join(err, fmt.Errorf("%w: no relay of the fleet knows %q", alloc.ErrNotFound, name))
}
