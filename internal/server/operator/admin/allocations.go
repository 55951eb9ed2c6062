package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
	"github.com/ferryrelay/ferry/proto"
)

type Relay interface {
	history.Lister
	End(context.Context, proto.AllocationID) error
	Kick(context.Context, proto.AllocationID) error
	Usage(context.Context) ([]engine.Usage, error)
	Stats() engine.Stats
}

func allocationOf(a engine.Allocation, h History) operator.Allocation {
	row := operator.Allocation{
		ID: a.ID.String(), Role: a.Role.String(), Match: a.Match.String(),
		Project: a.Name.Project, Environment: a.Name.Environment, Tenant: hex(a.Tenant),
		Bound: a.Transport != "", Transport: a.Transport, Recovered: a.Recovered,
		Age: seconds(a.Age), Heard: seconds(a.SinceReceived), Active: seconds(a.SinceActive),
		Connections: a.Links, MaxConnections: a.MaxConnections,
		AllocationCounts: operator.AllocationCounts{
			SentDatagrams: a.SentDatagrams, SentBytes: a.SentBytes, ReceiverSizeDrops: a.LargeDrops, LargeMessages: a.LargeMessages,
		},
	}
	if h != nil {
		row.Player = h.PlayerOf(a.ID)
		if a.Role == alloc.RoleHost {
			row.JoinCode = h.CodeOf(a.ID)
		}
	}
	row.Endpoint = operator.EndpointText(a.Endpoint)
	return row
}

func hex(tenant uint64) string { return fmt.Sprintf("%016x", tenant) }

func seconds(d time.Duration) float64 { return d.Seconds() }

var errID = errors.New("is not the id of an allocation")

// filterOf returns what a query selects.
func filterOf(q *operator.AllocationsQuery) (f engine.Filter, err error) {
	wrong := func(name, format string, args ...any) (engine.Filter, error) {
		return f, fmt.Errorf("%w: "+name+": "+format, append([]any{operator.ErrQuery}, args...)...)
	}
	f = engine.Filter{Transport: q.Transport, Bound: q.Bound == "true", Unbound: q.Bound == "false", Role: roles[q.Role]}
	if q.Match != "" {
		if f.Match, err = parseID(q.Match); err != nil {
			return wrong("match", "%w", err)
		}
	}
	tenant := alloc.Tenant{Project: q.Project, Environment: q.Environment}
	switch {
	case q.Tenant != "" && tenant != (alloc.Tenant{}):
		return wrong("tenant", "%q excludes project and environment", q.Tenant)
	case q.Tenant != "":
		if f.Tenant, err = strconv.ParseUint(q.Tenant, 16, 64); err != nil || len(q.Tenant) != 16 {
			return wrong("tenant", "is not a tenant's digest of 16 hexadecimal digits")
		}
	case tenant == (alloc.Tenant{}):
	case q.Project == "":
		return wrong("environment", "needs a project")
	case tenant.Validate() != nil:
		return wrong("project", "%w", tenant.Validate())
	case q.Environment != "":
		f.Tenant = tenant.Hash()
	default:
		f.Project = q.Project
	}
	return f, nil
}

var roles = map[string]alloc.Role{alloc.RoleHost.String(): alloc.RoleHost, alloc.RoleJoiner.String(): alloc.RoleJoiner}

func parseID(text string) (proto.AllocationID, error) {
	id, err := proto.ParseAllocationID(text)
	if err != nil {
		return proto.AllocationID{}, fmt.Errorf("%q %w", text, errID)
	}
	return id, nil
}

// checkTransport returns an error for a transport that the relay does not have; "" is any.
func checkTransport(name string, workers []privateapi.WorkerStats) error {
	known := []string{"udp4", "udp6", "dtls"}
	for _, w := range workers {
		if w.Transport != "" && !slices.Contains(known, w.Transport) {
			known = append(known, w.Transport)
		}
	}
	if name == "" || slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("%w: transport: %q is none of this relay's: %s", operator.ErrQuery, name, strings.Join(known, ", "))
}

func allocationPages(mux *http.ServeMux, relay *RelayConfig) {
	show(mux, operator.ListAllocations, func(ctx context.Context, q operator.AllocationsQuery) (operator.Allocations, error) {
		f, err := filterOf(&q)
		if err != nil {
			return operator.Allocations{}, err
		}
		return listAllocations(ctx, relay, f, &q)
	})
	show(mux, operator.ListAllocation, func(ctx context.Context, q operator.IDQuery) (operator.Allocation, error) {
		a, err := findAllocation(ctx, q.ID, relay.Engine)
		return allocationOf(a, relay.History), err
	})
	show(mux, operator.ListPlayers, func(ctx context.Context, q operator.AllocationsQuery) (operator.Allocations, error) {
		host, err := findAllocation(ctx, q.Host, relay.Engine)
		if err != nil {
			return operator.Allocations{}, err
		}
		f, err := filterOf(&q)
		switch {
		case err != nil:
			return operator.Allocations{}, err
		case host.Role != alloc.RoleHost:
			return operator.Allocations{}, fmt.Errorf("%w: %v is a player, its host is %v", operator.ErrQuery, host.ID, host.Match)
		}
		f.Match, f.Role = host.ID, alloc.RoleJoiner
		return listAllocations(ctx, relay, f, &q)
	})
}

type allocationChanger interface {
	End(context.Context, proto.AllocationID) error
	Kick(context.Context, proto.AllocationID) error
}

func changePages(mux *http.ServeMux, c allocationChanger, log *slog.Logger) {
	mux.HandleFunc("DELETE /allocations/{id}", func(w http.ResponseWriter, r *http.Request) {
		done, err := changeAllocation(r, log, "closed", c.End)
		writeAnswer(w, done, err)
	})
	mux.HandleFunc("POST /allocations/{id}/kick", func(w http.ResponseWriter, r *http.Request) {
		done, err := changeAllocation(r, log, "kicked", c.Kick)
		writeAnswer(w, done, err)
	})
}

func listAllocations(ctx context.Context, relay *RelayConfig, f engine.Filter, q *operator.AllocationsQuery) (page operator.Allocations,
	err error) {
	page.Allocations = []operator.Allocation{} // not null
	if err := checkTransport(f.Transport, relay.Engine.Stats().Private.Workers); err != nil {
		return page, err
	}
	all, next, err := relay.Engine.Allocations(ctx, f, q.Cursor, q.Limit)
	for _, a := range all {
		page.Allocations = append(page.Allocations, allocationOf(a, relay.History))
	}
	page.Next = next
	return page, err
}

func pathID(text string) (proto.AllocationID, error) {
	id, err := parseID(text)
	if err != nil {
		return id, fmt.Errorf("%w: %w", operator.ErrQuery, err)
	}
	return id, nil
}

func findAllocation(ctx context.Context, text string, relay Relay) (a engine.Allocation, err error) {
	id, err := pathID(text)
	if err != nil {
		return a, err
	}
	page, _, err := relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
	if err == nil && len(page) == 0 {
		err = alloc.ErrNotFound
	}
	if err != nil {
		return a, err
	}
	return page[0], nil
}

func changeAllocation(r *http.Request, log *slog.Logger, what string,
	do func(context.Context, proto.AllocationID) error) (operator.ActionResult, error) {
	id, err := pathID(r.PathValue("id"))
	if err != nil {
		return operator.ActionResult{}, err
	}
	if err := withTimeout(r.Context(), func(ctx context.Context) error { return do(ctx, id) }); err != nil {
		return operator.ActionResult{}, err
	}
	log.Info("operator: an allocation was "+what, "allocation", id.String(), "from", r.RemoteAddr)
	return operator.ActionResult{ID: id.String(), Done: what}, nil
}
