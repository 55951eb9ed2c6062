// Package admin serves the operator's HTTP pages of a running process: health,
// metrics, allocations, usage, settings and drain. The index is at /.
//
// /livez sends a datagram through the UDP socket of the relay and back, and checks
// that no worker is stuck in one batch. It depends on nothing outside the process, so
// that a failure elsewhere does not restart this process. /readyz succeeds from the
// end of start-up to the begin of a drain or shutdown.
//
// The index (see [writeIndex]) has all pages. Those that only list are the values [operator.List] of package operator,
// from which [show] and [showFleet] make their pages; the others change something, and are written out.
//
// Responses are JSON, with the types of package operator; errors are one line of text.
//
// # A fleet
//
// An API process of a fleet has no relay and reaches all relays of its fleet. NODE is
// the id of a relay, or a unique prefix of it. DELETE and kick work for an allocation
// on any relay; 503 means that a relay which may have it did not answer.
// /allocations/ID and its players work for hosts, since the store knows their relay;
// all other pages about allocations need a NODE.
//
// # Access control
//
// [AddrAllowed] requires a loopback listener by default; every process of the machine
// then has access. With a token, every page except /livez and /readyz requires it, and
// the listener may be public, over TLS. On a public listener without a token
// (admin_public), other machines see health and metrics only. Requests of foreign
// web pages are rejected in all cases, since the browser of the operator reaches
// loopback.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/ban"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
)

// Config holds the sources of the pages. All functions are required unless stated
// otherwise, and must be safe for concurrent use.
type Config struct {
	Title   string
	Metrics func(io.Writer)
	Health  Health
	Access  Access

	// Relay is the relay of this process. Nil: none, and no pages about allocations
	// and usage.
	Relay *RelayConfig
	// Drain drains this relay. Nil: no pages.
	Drain *DrainConfig
	// Fleet reaches the relays of the fleet, for a process without a relay. Nil:
	// all pages are about this process.
	Fleet Fleet
	// Nodes returns the processes of the fleet, or only this one. Nil: no page.
	Nodes func(context.Context) (operator.Nodes, error)
	// Settings are those of this process. Nil: no pages.
	Settings *SettingsConfig
	// Timeline is what happened lately, for /timeline. Nil: no page.
	Timeline *timeline.Timeline
	// Bans are the bans. Nil: no page.
	Bans Bans
	// Console serves the operator's page, below /console/. Nil: there is none.
	Console http.Handler
	// Docs serves the documentation below /docs/. Nil: no pages.
	Docs http.Handler
	// Canaries are the reports of ferry ping --every. Nil: they end with this handler.
	Canaries *Canaries
	// Flight is the flight recorder. Nil: it does not outlive this handler.
	Flight *Flight
	// Logger records the changes that an operator makes. Nil: no log.
	Logger *slog.Logger
}

type Health struct {
	Probe   func(context.Context) error
	Workers func() []privateapi.WorkerStats
	// Ready returns nil while the process accepts requests, otherwise the reason.
	Ready func() error
}

// RelayConfig holds the sources of the pages about a relay.
type RelayConfig struct {
	Engine Relay
	Title  string
	// FastPath is the relay's program in the kernel. Nil: none.
	FastPath privateapi.FastPath
	// History is what happened to the allocations of the relay. Nil: no page.
	History History
	// Timeline is what happened lately, and Summary what the console of an API process shows, for an API
	// process. Nil: no page.
	Timeline *timeline.Timeline
	Summary  func() operator.Summary
	// Capture is that of privateapi.Relay, or returns ErrCaptureOff. Nil: no page.
	Capture CaptureFunc
	// Affected counts what a checked ban would end on the relay. Nil: nothing is counted.
	Affected func(context.Context, operator.Ban) (operator.Affected, error)
	// Since is the start of the process, and UsageSince when the counting of usage began, in
	// an earlier run; zero: Since.
	Since, UsageSince time.Time
	Logger            *slog.Logger
}

func logOf(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

type Pages struct {
	http.Handler
	access access
}

// Viewer reports whether a request may see pages, as one that began earlier, and returns its
// person, or the sign-in of one without a name. The name is empty for a token and for
// loopback, which may be many people.
func (p *Pages) Viewer(r *http.Request) (name string, ok bool) {
	role, session := p.access.roleOf(r)
	if session.person != "" || session.end.IsZero() {
		return session.person, role != roleNone
	}
	return session.name(), role != roleNone
}

// New returns the handler of the admin pages.
func New(cfg Config) *Pages {
	mux := http.NewServeMux()
	cfg.Logger = logOf(cfg.Logger)
	if cfg.Flight == nil {
		cfg.Flight = new(Flight)
	}
	if cfg.Canaries == nil {
		cfg.Canaries = new(Canaries)
	}
	access := newAccess(&cfg.Access, cfg.Console != nil)
	index := func(w http.ResponseWriter, _ *http.Request) { writeIndex(w, cfg.Title) }
	canaryPages(mux, cfg.Canaries)
	if cfg.Console != nil {
		mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusFound))
		mux.Handle("GET /console/", cfg.Console)
		loginPages(mux, access, cfg.Logger)
		oidcPages(mux, access, cfg.Access.Audit, cfg.Logger)
		mux.HandleFunc("GET /pages", index)
	} else {
		mux.HandleFunc("GET /{$}", index)
	}
	if cfg.Docs != nil {
		mux.Handle("GET /docs", http.RedirectHandler("/docs/", http.StatusFound))
		mux.Handle("GET /docs/", cfg.Docs)
	}
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		cfg.Metrics(w)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		writeHealth(w, checkLive(r.Context(), cfg.Health.Probe, cfg.Health.Workers))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		writeHealth(w, cfg.Health.Ready())
	})
	if cfg.Settings != nil {
		settingPages(mux, cfg.Settings, cfg.Logger)
	}
	if cfg.Drain != nil {
		drainPages(mux, cfg.Drain)
	}
	fleet := relays{cfg.Fleet, cfg.Nodes}
	if cfg.Bans != nil {
		var count affectedCounter
		if cfg.Fleet != nil {
			count = func(ctx context.Context, b operator.Ban) (operator.Affected, error) {
				return affectedInFleet(ctx, fleet, b)
			}
		} else if cfg.Relay != nil {
			count = cfg.Relay.Affected
		}
		banPages(mux, cfg.Bans, count, cfg.Logger)
	}
	if cfg.Timeline != nil {
		show(mux, operator.ListTimeline, listTimeline(cfg.Timeline, fleet))
	}
	if cfg.Relay != nil {
		relayPages(mux, cfg.Relay)
		changePages(mux, cfg.Relay.Engine, cfg.Logger)
		fastPathPages(mux, cfg.Relay.FastPath, cfg.Logger)
		if cfg.Relay.Capture != nil {
			capturePages(mux, cfg.Relay)
		}
	}
	if cfg.Fleet != nil {
		captureOfFleet(mux, fleet)
		noRelayPages(mux)
		show(mux, operator.ListWhy, func(ctx context.Context, q operator.NameQuery) (operator.Why, error) {
			return findInFleet(ctx, fleet, q.Name)
		})
		showFleet(mux, operator.ListMatches, fleet)
		showFleet(mux, operator.ListUsage, fleet)
		showFleet(mux, operator.ListPlayerUsage, fleet)
		changePages(mux, cfg.Fleet, cfg.Logger)
	}
	if cfg.Nodes != nil {
		show(mux, operator.ListNodes, func(ctx context.Context, _ operator.NoQuery) (operator.Nodes, error) { return cfg.Nodes(ctx) })
		remotePages(mux, fleet, cfg.Relay)
		nodeDrainPages(mux, cfg.Drain, fleet, cfg.Logger)
	}
	debugPages(mux, cfg.Flight)
	pages := access.requireAccess(auditChanges(mux, cfg.Access.Audit, access))
	return &Pages{rejectForeignPages(pages, cfg.Access.AllowAnyHost), access}
}

func writeHealth(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

const index = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>%[1]s</title>
<h1>%[1]s</h1>
<ul>
<li><a href="/docs/">/docs/</a>: the documentation
<li><a href="/metrics">/metrics</a>: counters and gauges, in the text format of Prometheus
<li><a href="/livez">/livez</a>: liveness: the relay answers and no worker is stuck
<li><a href="/readyz">/readyz</a>: readiness: the process accepts requests
<li><a href="/nodes">/nodes</a>: this process, or all processes of a fleet; POST and DELETE /nodes/ID/drain: the same as /drain for a relay of the fleet
<li><a href="/allocations">/allocations</a>: the allocations of the relay (?role=host&amp;bound=true&amp;match=ID&amp;limit=100&amp;cursor=NEXT); /allocations/ID, /allocations/ID/players; DELETE /allocations/ID ends an allocation, POST /allocations/ID/kick removes a player; POST /allocations/NAME/capture?seconds=5 captures the messages of a match
<li><a href="/matches">/matches</a>: the matches (?q=TEXT&amp;sort=age&amp;order=asc&amp;limit=100&amp;offset=0); TEXT is an id, a join code, a player, an address or a project
<li>/why/NAME: what happened to an allocation, by its id or join code, and why its players are not in the match
<li>/timeline?project=NAME: what happened to the allocations of a project lately, and which of its calls were refused (&amp;limit=100)
<li><a href="/bans">/bans</a>: banned players and networks; POST (?prefix=192.0.2.0/24&amp;for=24h) adds one, DELETE /bans/ID removes it, and DELETE /bans?prefix=192.0.2.0/24 all of a network and of those inside it; /bans/affected?prefix=192.0.2.0/24: what a ban would end now and shut out
<li><a href="/usage">/usage</a>: usage of each project, and <a href="/usage/players">/usage/players</a> of each player (?project=NAME&amp;sort=bytes&amp;top=100); <a href="/stats">/stats</a>: counters as JSON
<li><a href="/canaries">/canaries</a>: what each canary has seen in the last hour; POST /canary is its report
<li><a href="/config">/config</a>: the settings in force; POST /reload reloads them
<li><a href="/debug/pprof/">/debug/pprof/</a>: profiles; /debug/flight-recorder: the execution trace of the last seconds; PUT turns it on (?state=on)
<li><a href="/fast-path">/fast-path</a>: the program in the kernel; PUT turns it on or off (?state=off)
<li><a href="/log-level">/log-level</a>: PUT changes it (?level=debug)
<li><a href="/drain">/drain</a>: the state of the drain; POST begins a drain (?deadline=1h&amp;threshold=0), DELETE cancels it
</ul>
<p>ferry ctl shows these pages in a terminal.
`

func writeIndex(w http.ResponseWriter, title string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	fmt.Fprintf(w, index, html.EscapeString(title))
}

// answerTimeout is the timeout of one request to the relay. A listing of a million
// allocations takes a fraction of it.
const answerTimeout = 5 * time.Second

func withTimeout(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return do(ctx)
}

func writeAnswer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// An error means that the client has disconnected.
	_ = json.NewEncoder(w).Encode(value)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, operator.ErrQuery), errors.Is(err, ban.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, alloc.ErrNotFound), errors.Is(err, errNode), errors.Is(err, errNoBan):
		return http.StatusNotFound
	case errors.Is(err, operator.ErrFinal), errors.Is(err, engine.ErrKickHost), errors.Is(err, errNoRelay),
		errors.Is(err, errNotServing), errors.Is(err, errNoAllocations),
		errors.Is(err, errNoFastPath), errors.Is(err, errFlightOff), errors.Is(err, errFlight),
		errors.Is(err, ErrCaptureOff), errors.Is(err, privateapi.ErrCapture), errors.Is(err, ErrBanElsewhere), errors.Is(err, ErrBansFull),
		errors.Is(err, ErrBanShared),
		errors.Is(err, ErrNotUpgraded):
		return http.StatusConflict
	case errors.Is(err, ErrRefused):
		return http.StatusUnprocessableEntity
	case errors.Is(err, alloc.ErrUnavailable):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
