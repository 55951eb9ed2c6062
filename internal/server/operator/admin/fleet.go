package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

// Fleet gives access to the relays of a fleet. Its methods must be safe for
// concurrent use.
type Fleet interface {
	// Drain and Undrain apply to the relay with this id. A Deadline or Threshold below 0 is the
	// default of that relay. Errors: ErrFinal, alloc.ErrUnavailable.
	Drain(ctx context.Context, relay string, cfg engine.DrainConfig) (operator.DrainState, error)
	Undrain(ctx context.Context, relay string) (operator.DrainState, error)
	// End and Kick find the relay of the allocation. Errors:
	// alloc.ErrNotFound if no relay has it, alloc.ErrUnavailable if a relay that may
	// have it did not answer, and engine.ErrKickHost from Kick.
	End(context.Context, proto.AllocationID) error
	Kick(context.Context, proto.AllocationID) error
	// Page returns the page of a relay at target, a path with a query. Error:
	// alloc.ErrUnavailable.
	Page(ctx context.Context, relay, target string) (operator.Page, error)
	// RelayOf returns the id of the relay of a host. Errors: alloc.ErrNotFound for all
	// other allocations, alloc.ErrUnavailable.
	RelayOf(context.Context, proto.AllocationID) (relay string, err error)
}

// minNodePrefix is the minimum length of a node prefix, so that a typing error does
// not select a node.
const minNodePrefix = 4

const apiRole = "api"

// maxCandidates is the maximum number of nodes in an error about an unknown name.
const maxCandidates = 8

var (
	errNode          = errors.New("admin")
	errNotServing    = errors.New("admin: this relay does not run")
	errNoRelay       = errors.New("admin: this is an API process, which has no relay: name one of the relays that ferry ctl nodes lists")
	errNoAllocations = errors.New("admin: this is an API process, which has no allocations: name one of the relays that ferry ctl nodes lists, by --node or as /nodes/NODE/allocations")
)

func findNode(nodes *operator.Nodes, name string) (operator.Node, error) {
	if len(name) < minNodePrefix {
		return operator.Node{}, fmt.Errorf("%w: %q is too short for a node: give %d characters of its id at least", operator.ErrQuery, name,
			minNodePrefix)
	}
	all := nodes.Nodes
	var found []operator.Node
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
		if err := errStoreAway(nodes); err != nil {
			return operator.Node{}, fmt.Errorf("admin: no known node has an id that begins with %q: %w", name, err)
		}
		if !slices.ContainsFunc(all, func(n operator.Node) bool { return n.Role != apiRole }) {
			return operator.Node{}, fmt.Errorf("%w: no node has an id that begins with %q: this process knows of no relay", errNode, name)
		}
		return operator.Node{}, fmt.Errorf("%w: no known node has an id that begins with %q; the relays are\n%s", errNode, name, candidates(all))
	}
	return operator.Node{}, fmt.Errorf("%w: %d nodes have an id that begins with %q; give more of one of them\n%s", operator.ErrQuery,
		len(found), name, candidates(found))
}

func errStoreAway(nodes *operator.Nodes) error {
	away := nodes.AwayText(func(at time.Time) string { return at.Format(time.RFC3339) })
	if away == "" {
		return nil
	}
	return fmt.Errorf("%w: %s, so it is not known which relays there are", alloc.ErrUnavailable, away)
}

func candidates(all []operator.Node) string {
	all = slices.DeleteFunc(slices.Clone(all), func(n operator.Node) bool { return n.Role == apiRole })
	var lines []string
	for _, n := range all[:min(len(all), maxCandidates)] {
		lines = append(lines, "  "+strings.Join([]string{n.ID, n.Role, cmp.Or(n.Region, "-"), n.State}, "  "))
	}
	if more := len(all) - maxCandidates; more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", more))
	}
	return strings.Join(append(lines, "see ferry ctl nodes for details"), "\n")
}

// drains are what drains a relay: that with an id, or the own one.
type drains struct {
	defaults engine.DrainConfig
	begin    func(ctx context.Context, relay string, want engine.DrainConfig) (operator.DrainState, error)
	cancel   func(ctx context.Context, relay string) (operator.DrainState, error)
}

// nodeDrainPages registers the pages that drain a node by its id: a relay of the fleet, or the own one, nil
// if there is none.
func nodeDrainPages(mux *http.ServeMux, own *DrainConfig, fleet relays, log *slog.Logger) {
	d := drains{defaults: engine.DrainConfig{Deadline: -1, Threshold: -1}}
	switch {
	case fleet.Fleet != nil:
		d.begin, d.cancel = fleet.Drain, fleet.Undrain
	case own != nil:
		d = own.drains()
	default:
		return
	}
	mux.HandleFunc("POST /nodes/{node}/drain", func(w http.ResponseWriter, r *http.Request) {
		var state operator.DrainState
		want, err := drainConfig(r.URL.Query(), d.defaults)
		if err == nil {
			state, err = drainNode(r, fleet, log, "drain begun", func(ctx context.Context, relay string) (operator.DrainState, error) {
				return d.begin(ctx, relay, want)
			})
		}
		writeAnswer(w, state, err)
	})
	mux.HandleFunc("DELETE /nodes/{node}/drain", func(w http.ResponseWriter, r *http.Request) {
		state, err := drainNode(r, fleet, log, "drain cancelled", d.cancel)
		writeAnswer(w, state, err)
	})
}

func drainNode(r *http.Request, fleet relays, log *slog.Logger, what string, do func(context.Context, string) (operator.DrainState,
	error)) (state operator.DrainState, err error) {
	var n operator.Node
	err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
		if n, err = relayNode(ctx, fleet, r.PathValue("node")); err != nil {
			return err
		}
		if !n.Serves() {
			return fmt.Errorf("%w: relay %s is %s: it last announced itself at %s; if its process runs, it does not reach the store: drain it on its machine",
				errNotServing, n.ID, n.State, n.LastHeartbeat.Format(time.RFC3339))
		}
		state, err = do(ctx, n.ID)
		return err
	})
	if err != nil {
		return operator.DrainState{}, err
	}
	state.Node = n.ID
	log.Info("operator: relay "+what, "relay", n.ID, "from", r.RemoteAddr)
	return state, nil
}

func relayNode(ctx context.Context, fleet relays, name string) (operator.Node, error) {
	all, err := fleet.nodes(ctx)
	if err != nil {
		return operator.Node{}, err
	}
	n, err := findNode(&all, name)
	if err == nil && n.Role == apiRole {
		err = errNoRelay
	}
	return n, err
}

func noRelayPages(mux *http.ServeMux) {
	for page, err := range map[string]error{
		"POST /drain": errNoRelay, "DELETE /drain": errNoRelay,
		"GET " + operator.ListAllocations.Path: errNoAllocations, "GET " + operator.ListStats.Path: errNoAllocations,
	} {
		mux.HandleFunc(page, func(w http.ResponseWriter, _ *http.Request) { writeAnswer(w, nil, err) })
	}
}

const (
	// DefaultDeadline applies to a drain without the parameter deadline; it is the
	// length of a match.
	DefaultDeadline = time.Hour
	// maxDeadline is the maximum of the setting drain_timeout.
	maxDeadline = 168 * time.Hour
)

// deadline is a parameter: the longest time of a drain.
type deadline time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *deadline) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 || parsed > maxDeadline {
		return fmt.Errorf("%q is not a duration such as 1h, up to 168h, or 0 for no deadline", text)
	}
	*d = deadline(parsed)
	return nil
}

func drainConfig(query url.Values, defaults engine.DrainConfig) (engine.DrainConfig, error) {
	q := struct {
		Deadline  deadline `query:"deadline"`
		Threshold int      `query:"threshold" max:"67108864"` // the maximum number of allocations of a relay
	}{deadline(defaults.Deadline), defaults.Threshold}
	err := operator.ParseQuery(query, &q)
	return engine.DrainConfig{Deadline: time.Duration(q.Deadline), Threshold: q.Threshold}, err
}

type DrainConfig struct {
	// Drain begins a drain of the relay or changes its parameters. Undrain cancels
	// it or returns ErrFinal. State returns its state.
	Drain   func(context.Context, engine.DrainConfig) error
	Undrain func(context.Context) error
	State   func() operator.DrainState
	// Defaults apply to parameters that a request omits.
	Defaults engine.DrainConfig
}

func (c *DrainConfig) drains() drains {
	return drains{
		c.Defaults,
		func(ctx context.Context, _ string, want engine.DrainConfig) (operator.DrainState, error) {
			err := c.Drain(ctx, want)
			return c.State(), err
		},
		func(ctx context.Context, _ string) (operator.DrainState, error) {
			err := c.Undrain(ctx)
			return c.State(), err
		},
	}
}

func drainPages(mux *http.ServeMux, own *DrainConfig) {
	showValue(mux, operator.ListDrain, own.State)
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		want, err := drainConfig(r.URL.Query(), own.Defaults)
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) error { return own.Drain(ctx, want) })
		}
		writeAnswer(w, own.State(), err)
	})
	mux.HandleFunc("DELETE /drain", func(w http.ResponseWriter, r *http.Request) {
		err := withTimeout(r.Context(), own.Undrain)
		writeAnswer(w, own.State(), err)
	})
}

// RelayPages returns the read-only pages of a relay, without authentication: the caller must authorize
// requests.
func RelayPages(relay *RelayConfig) http.Handler {
	mux := http.NewServeMux()
	relayPages(mux, relay)
	if relay.Timeline != nil {
		show(mux, operator.ListTimeline, listTimeline(relay.Timeline, relays{}))
	}
	if relay.Summary != nil {
		showValue(mux, operator.ListSummary, relay.Summary)
	}
	if relay.Capture != nil {
		captureForFleet(mux, relay)
	}
	if relay.Affected != nil {
		showAffected(mux, relay.Affected)
	}
	return mux
}

func relayPages(mux *http.ServeMux, relay *RelayConfig) {
	allocationPages(mux, relay)
	show(mux, operator.ListMatches, newMatchIndex(relay.Engine, relay.History, time.Now).search)
	show(mux, operator.ListUsage, listUsage(relay))
	showValue(mux, operator.ListStats, func() operator.Stats { return StatsOf(relay.Engine.Stats(), time.Now(), relay.Since) })
	if relay.History != nil {
		show(mux, operator.ListWhy, explain(relay.History))
		show(mux, operator.ListPlayerUsage, listPlayerUsage(relay.History))
	}
}

// RenderPage answers status 507 in place of a response of more than most bytes.
func RenderPage(ctx context.Context, h http.Handler, target string, most int) operator.Page {
	at, err := url.ParseRequestURI(target)
	if err != nil {
		return operator.Page{Status: http.StatusBadRequest, Body: []byte("admin: the path is invalid\n")}
	}
	r := (&http.Request{Method: http.MethodGet, URL: at, Host: "relay", Header: http.Header{}, Body: http.NoBody}).WithContext(ctx)
	page := pageBuffer{header: http.Header{}, left: most, Page: operator.Page{Status: http.StatusOK}}
	h.ServeHTTP(&page, r)
	if page.left < 0 {
		return operator.Page{Status: http.StatusInsufficientStorage, Body: []byte("admin: the page is too long: lower the parameter limit\n")}
	}
	return page.Page
}

type pageBuffer struct {
	header http.Header
	left   int // bytes; below 0 after an overflow
	operator.Page
}

func (b *pageBuffer) Header() http.Header { return b.header }

func (b *pageBuffer) WriteHeader(status int) { b.Status = status }

func (b *pageBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		b.left = -1
		return 0, io.ErrShortWrite
	}
	b.Body = append(b.Body, p...)
	return len(p), nil
}

const nodePage = "GET /nodes/{node}/{page...}"

// remotePages registers the pages of the relays of a fleet: by the id of the relay, or
// by the id of a host. A process without a fleet serves its own pages by its id.
func remotePages(mux *http.ServeMux, fleet relays, relay *RelayConfig) {
	named := func(ctx context.Context, r *http.Request) (string, error) {
		if strings.HasPrefix("/"+r.PathValue("page"), fleetCapture) {
			return "", fmt.Errorf("%w: no such page", errNode)
		}
		n, err := relayNode(ctx, fleet, r.PathValue("node"))
		return n.ID, err
	}
	if fleet.Fleet == nil {
		own := http.Handler(http.NotFoundHandler())
		if relay != nil {
			own = RelayPages(relay)
		}
		mux.HandleFunc(nodePage, func(w http.ResponseWriter, r *http.Request) {
			err := withTimeout(r.Context(), func(ctx context.Context) error {
				_, err := named(ctx, r)
				return err
			})
			if err != nil {
				writeAnswer(w, nil, err)
				return
			}
			r.URL = pathOnNode(r)
			own.ServeHTTP(w, r)
		})
		return
	}
	ofHost := func(ctx context.Context, r *http.Request) (string, error) {
		id, err := pathID(r.PathValue("id"))
		if err != nil {
			return "", err
		}
		return fleet.RelayOf(ctx, id)
	}
	for page, relay := range map[string]func(context.Context, *http.Request) (string, error){
		nodePage: named, "GET " + operator.ListAllocation.Path: ofHost, "GET " + operator.ListPlayers.Path: ofHost,
	} {
		mux.HandleFunc(page, func(w http.ResponseWriter, r *http.Request) { serveRemotePage(w, r, fleet, relay) })
	}
}

func pathOnNode(r *http.Request) *url.URL {
	if r.PathValue("node") == "" {
		return r.URL
	}
	return &url.URL{Path: "/" + r.PathValue("page"), RawQuery: r.URL.RawQuery}
}

func serveRemotePage(w http.ResponseWriter, r *http.Request, f Fleet, find func(context.Context, *http.Request) (string, error)) {
	var page operator.Page
	err := withTimeout(r.Context(), func(ctx context.Context) error {
		relay, err := find(ctx, r)
		if err == nil {
			page, err = f.Page(ctx, relay, pathOnNode(r).RequestURI())
		}
		return err
	})
	if err != nil {
		writeAnswer(w, nil, err)
		return
	}
	writePage(w, &page, "application/json")
}

func writePage(w http.ResponseWriter, page *operator.Page, contentType string) {
	if page.Status != http.StatusOK {
		contentType = "text/plain; charset=utf-8"
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(page.Status)
	_, _ = w.Write(page.Body) // An error means that the client has disconnected.
}
