package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/proto"
)

// Limits of connections to a public admin listener, in total and from one address: for
// scrapers and a few people.
const (
	adminConnections        = 256
	adminAddressConnections = 64
)

// openAdmin opens the operator's port: plain HTTP on loopback, and with the
// API's certificate elsewhere, if there is a token to protect.
func (a *App) openAdmin() error {
	c := &a.opts.Config
	var secure *tls.Config
	loopback := c.Admin.Addr().Unmap().IsLoopback()
	if c.AdminToken != "" && !loopback {
		secure = a.certificates.tls()
	}
	l, err := openPort(a.opts.Parent, adminFile, c.Admin.AddrPort)
	if err != nil {
		return err
	}
	accept := a.accepting.config(a.opts.Logger)
	accept.Reserve = true
	a.admin = newWeb(l, &a.adminPages, secure, a.opts.Logger, accept)
	a.admin.server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, reservedKey{}, sock.IsReserved(conn))
	}
	a.admin.server.Handler = closeReserved(&a.adminPages)
	traceCalls(a.admin, a.tracer)
	a.parts.add(a.admin.part("admin"))
	if !loopback {
		a.admin.listener = httpapi.LimitListener(a.admin.listener, httpapi.ConnLimits{
			Total: adminConnections, PerAddress: adminAddressConnections,
		})
	}
	return nil
}

// pages returns the handler of the admin pages for these settings.
func (a *App) pages(c *config.Config) (http.Handler, error) {
	token, err := adminToken(c)
	if err != nil {
		return nil, err
	}
	people, err := adminOIDC(c)
	if err != nil {
		return nil, err
	}
	cfg := admin.Config{
		Title:        "ferry " + a.opts.Version,
		Metrics:      a.metrics.Write,
		Probe:        func(context.Context) error { return nil },
		Workers:      func() []engine.WorkerStats { return a.Stats().Workers },
		Ready:        a.ready.check,
		AllowAnyHost: c.AdminPublic || !c.Admin.Addr().Unmap().IsLoopback(),

		Nodes: a.nodes, Token: token, Since: a.since, Logger: a.opts.Logger,
		Console: a.console, Docs: a.docs, Sessions: a.sessions, Audit: slog.New(a.audit), Flight: &a.flight, Bans: a.bans, OIDC: people,
		Timeline: a.history.Timeline(), Reach: reach,
	}
	if a.relay != nil {
		cfg.Relay, cfg.Probe, cfg.UsageSince = relayPages{a.relay.engine, a.usage}, a.relay.engine.Probe, a.usage.since
		cfg.Drain, cfg.Undrain, cfg.Draining = a.drainer.Drain, a.drainer.Undrain, a.drainer.DrainState
		cfg.DrainDefaults = a.drainer.defaults
		cfg.History, cfg.Capture = a.history, a.capture
		if a.relay.fastPath != nil {
			cfg.FastPath = a.relay.fastPath
		}
	}
	if a.frontEnd != nil {
		cfg.Fleet, cfg.DrainDefaults = a.frontEnd.operator(), engine.DrainConfig{Deadline: -1, Threshold: -1}
	}
	if a.opts.Level != nil {
		cfg.Settings, cfg.Reload, cfg.Level = a.settings.values, a.settings.Reload, a.opts.Level
		cfg.Upgrade = a.handover.Upgrade
	}
	return admin.New(cfg), nil
}

// capture is engine.Server.Capture, if the settings allow it.
func (a *App) capture(ctx context.Context, match proto.AllocationID, each func(*engine.Captured) error) (lost uint64, err error) {
	if now := a.settings.current(); !now.Capture {
		return 0, admin.ErrCaptureOff
	}
	return a.relay.engine.Capture(ctx, match, each)
}

// errOIDCToken: without a token there are no sessions.
var errOIDCToken = errors.New("app: admin_oidc_issuer needs admin_token_file: its token signs the sessions of the console")

// adminOIDC returns the sign-in of people, nil if there is none.
func adminOIDC(c *config.Config) (*admin.OIDC, error) {
	o := &admin.OIDC{Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, URL: c.OIDCURL, Operators: c.OIDCOperators, Viewers: c.OIDCViewers}
	switch {
	case o.Issuer == "" && o.ClientID+o.URL+c.OIDCSecret == "" && len(o.Operators)+len(o.Viewers) == 0:
		return nil, nil
	case c.AdminToken == "":
		return nil, errOIDCToken
	}
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	if c.OIDCSecret != "" {
		secret, err := config.ReadSecret(c.OIDCSecret)
		if err != nil {
			return nil, fmt.Errorf("app: admin_oidc_secret_file: %w", err)
		}
		o.ClientSecret = string(secret)
	}
	return o, nil
}

// adminToken reads the operator's token, empty if there is none.
func adminToken(c *config.Config) (string, error) {
	if c.AdminToken == "" {
		return "", nil
	}
	token, err := config.ReadSecret(c.AdminToken)
	if err == nil {
		err = admin.CheckToken(string(token))
	}
	if err != nil {
		return "", fmt.Errorf("app: admin_token_file: %w", err)
	}
	return string(token), nil
}

// nodes returns this process and, for an API, all relays of its fleet.
func (a *App) nodes(context.Context) ([]operator.Node, error) {
	st, state := a.Stats(), "ready"
	switch a.ready.check() {
	case errNotReady:
		state = "not ready"
	case errDraining:
		state = "draining"
	}
	n := operator.Node{
		ID: a.opts.Identity.Relay.String(), Role: a.opts.Mode.String(), Region: a.opts.Config.Region,
		Version: a.opts.Version, State: state, API: a.URL(), Since: a.since,
		Allocations: st.Allocations, Bound: st.Bound, Links: st.Links, Seats: st.Seats,
	}
	if a.relay != nil {
		now := a.settings.current()
		n.MaxSeats = a.relay.seats(&now.Config)
	}
	for _, addr := range a.udp() {
		n.UDP = append(n.UDP, addr.String())
	}
	if a.frontEnd == nil {
		return []operator.Node{n}, nil
	}
	n.ID, n.Region = hostname(), ""
	return append([]operator.Node{n}, a.frontEnd.nodes()...), nil
}

// swapHandler is a handler that can be replaced while it serves. Current requests continue
// with the handler that began them.
type swapHandler struct{ current atomic.Pointer[http.Handler] }

func (s *swapHandler) serve(h http.Handler) { s.current.Store(&h) }

func (s *swapHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.current.Load()).ServeHTTP(w, r)
}

// viewer is [admin.Pages.Viewer] of the pages in force.
func (a *App) viewer(r *http.Request) (name string, ok bool) {
	pages, ok := (*a.adminPages.current.Load()).(*admin.Pages)
	if !ok {
		return "", false
	}
	return pages.Viewer(r)
}
