package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
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

type listQuery struct {
	filter engine.Filter
	cursor uint32
	limit  int
}

var (
	errID      = errors.New("is not the id of an allocation")
	errTenant  = errors.New("is not a tenant's digest of 16 hexadecimal digits")
	errRole    = errors.New("is neither host nor joiner")
	errBound   = errors.New("is neither true nor false")
	errProject = errors.New("needs a project")
)

func parseListQuery(query url.Values) (listQuery, error) {
	l := listQuery{limit: operator.DefaultRows}
	var tenant *alloc.Tenant
	named := func(set func(*alloc.Tenant, string)) func(string) error {
		return func(text string) error {
			if tenant == nil {
				tenant = new(alloc.Tenant)
			}
			set(tenant, text)
			return tenant.Validate()
		}
	}
	f := &l.filter
	err := parse(query, map[string]func(string) error{
		"tenant": func(text string) (err error) {
			if f.Tenant, err = strconv.ParseUint(text, 16, 64); err != nil || len(text) != 16 {
				return errTenant
			}
			return nil
		},
		"project":     named(func(t *alloc.Tenant, text string) { t.Project = text }),
		"environment": named(func(t *alloc.Tenant, text string) { t.Environment = text }),
		"match":       func(text string) (err error) { f.Match, err = parseID(text); return err },
		"role":        func(text string) (err error) { f.Role, err = parseRole(text); return err },
		"transport":   func(text string) error { f.Transport = text; return nil },
		"bound": func(text string) error {
			switch text {
			case "true":
				f.Binding = engine.OnlyBound
			case "false":
				f.Binding = engine.OnlyUnbound
			default:
				return errBound
			}
			return nil
		},
		"cursor": func(text string) error {
			n, err := number(text, math.MaxUint32)
			l.cursor = uint32(n)
			return err
		},
		"limit": func(text string) error {
			n, err := number(text, operator.MaxRows)
			l.limit = int(n)
			return err
		},
	})
	switch {
	case err != nil || tenant == nil:
	case query.Has("tenant"):
		err = fmt.Errorf("%w: tenant: %q excludes project and environment", errQuery, query.Get("tenant"))
	case !query.Has("project"):
		err = fmt.Errorf("%w: environment: %w", errQuery, errProject)
	case query.Has("environment"):
		f.Tenant = tenant.Hash()
	default:
		f.Project = tenant.Project
	}
	return l, err
}

func number(text string, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return 0, fmt.Errorf("%q is not a number up to %d", text, most)
	}
	return n, nil
}

func parseID(text string) (proto.AllocationID, error) {
	id, err := proto.ParseAllocationID(text)
	if err != nil {
		return proto.AllocationID{}, fmt.Errorf("%q %w", text, errID)
	}
	return id, nil
}

func parseRole(text string) (alloc.Role, error) {
	for _, role := range []alloc.Role{alloc.RoleHost, alloc.RoleJoiner} {
		if text == role.String() {
			return role, nil
		}
	}
	return alloc.RoleNone, errRole
}

// checkTransport returns an error for a transport that the relay does not have; "" is any.
func checkTransport(name string, workers []engine.WorkerStats) error {
	known := []string{"udp4", "udp6", "dtls"}
	for _, w := range workers {
		if w.Transport != "" && !slices.Contains(known, w.Transport) {
			known = append(known, w.Transport)
		}
	}
	if name == "" || slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("%w: transport: %q is none of this relay's: %s", errQuery, name, strings.Join(known, ", "))
}

func allocationPages(mux *http.ServeMux, relay *RelayConfig) {
	mux.HandleFunc("GET /allocations", func(w http.ResponseWriter, r *http.Request) {
		l, err := parseListQuery(r.URL.Query())
		var page operator.Allocations
		if err == nil {
			page, err = listAllocations(r.Context(), relay, l)
		}
		writeAnswer(w, page, err)
	})
	mux.HandleFunc("GET /allocations/{id}", func(w http.ResponseWriter, r *http.Request) {
		a, err := findAllocation(r, relay.Engine)
		writeAnswer(w, allocationOf(a, relay.History), err)
	})
	mux.HandleFunc("GET /allocations/{id}/players", func(w http.ResponseWriter, r *http.Request) {
		page, err := listPlayers(r, relay)
		writeAnswer(w, page, err)
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

func listAllocations(ctx context.Context, relay *RelayConfig, l listQuery) (page operator.Allocations, err error) {
	page.Allocations = []operator.Allocation{} // not null
	if err := checkTransport(l.filter.Transport, relay.Engine.Stats().Workers); err != nil {
		return page, err
	}
	err = withTimeout(ctx, func(ctx context.Context) error {
		all, next, err := relay.Engine.Allocations(ctx, l.filter, l.cursor, l.limit)
		for _, a := range all {
			page.Allocations = append(page.Allocations, allocationOf(a, relay.History))
		}
		page.Next = uint32(next)
		return err
	})
	return page, err
}

func pathID(r *http.Request) (proto.AllocationID, error) {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		return id, fmt.Errorf("%w: %w", errQuery, err)
	}
	return id, nil
}

func findAllocation(r *http.Request, relay Relay) (a engine.Allocation, err error) {
	id, err := pathID(r)
	if err != nil {
		return a, err
	}
	err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
		page, _, err := relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
		if err == nil && len(page) == 0 {
			err = alloc.ErrNotFound
		}
		if err != nil {
			return err
		}
		a = page[0]
		return nil
	})
	return a, err
}

func listPlayers(r *http.Request, relay *RelayConfig) (operator.Allocations, error) {
	host, err := findAllocation(r, relay.Engine)
	if err != nil {
		return operator.Allocations{}, err
	}
	l, err := parseListQuery(r.URL.Query())
	if err != nil {
		return operator.Allocations{}, err
	}
	if host.Role != alloc.RoleHost {
		return operator.Allocations{}, fmt.Errorf("%w: %v is a player, its host is %v", errQuery, host.ID, host.Match)
	}
	l.filter.Match, l.filter.Role = host.ID, alloc.RoleJoiner
	return listAllocations(r.Context(), relay, l)
}

func changeAllocation(r *http.Request, log *slog.Logger, what string,
	do func(context.Context, proto.AllocationID) error) (operator.ActionResult, error) {
	id, err := pathID(r)
	if err != nil {
		return operator.ActionResult{}, err
	}
	if err := withTimeout(r.Context(), func(ctx context.Context) error { return do(ctx, id) }); err != nil {
		return operator.ActionResult{}, err
	}
	log.Info("operator: an allocation was "+what, "allocation", id.String(), "from", r.RemoteAddr)
	return operator.ActionResult{ID: id.String(), Done: what}, nil
}
