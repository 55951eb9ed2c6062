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

	"github.com/ferryrelay/ferry/docs"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/console"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
	"github.com/ferryrelay/ferry/proto"
)

// Limits of connections to a public admin listener, in total and from one address: for
// scrapers and a few people.
const (
	adminConnections        = 256
	adminAddressConnections = 64
)

// operatorServer serves the operator's port: the admin pages with the console, and the record of what
// operators do. Its fields are fixed before Run.
type operatorServer struct {
	web       *web
	fixed     admin.Config // of the pages, what no setting changes
	pages     swapHandler  // by the settings in force
	console   *console.Console
	audit     *console.Log // what operators do
	auditFile *auditFile   // nil: there is none
	flight    admin.Flight
	canaries  admin.Canaries
	accepting accepting // of all ports
}

// hasAdminTLS reports whether the operator's port speaks TLS, with the API's certificate.
func hasAdminTLS(c *config.Config) bool {
	return hasTLS(c) && c.AdminToken != "" && !c.Admin.Addr().Unmap().IsLoopback()
}

// openOperator opens the operator's port: plain HTTP on loopback, and with the
// API's certificate elsewhere, if there is a token to protect.
func openOperator(o *Options, certificates *certificates) (*operatorServer, error) {
	c := &o.Config
	var secure *tls.Config
	if hasAdminTLS(c) {
		secure = certificates.tls()
	}
	l, err := openPort(o.Parent, adminFile, c.Admin.AddrPort)
	if err != nil {
		return nil, err
	}
	s := new(operatorServer)
	accept := s.accepting.config(o.Logger)
	accept.Reserve = true
	s.web = newWeb(l, closeReserved(&s.pages), secure, o.Logger, accept)
	s.web.server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, reservedKey{}, sock.IsReserved(conn))
	}
	if !c.Admin.Addr().Unmap().IsLoopback() {
		s.web.listener = connlimit.Listen(s.web.listener, connlimit.Limits{
			Total: adminConnections, PerAddress: adminAddressConnections,
		})
	}
	return s, nil
}

func (s *operatorServer) handler(c *config.Config) (*admin.Pages, error) {
	cfg := s.fixed
	var err error
	if cfg.Access.Token, err = adminToken(c); err != nil {
		return nil, err
	}
	if cfg.Access.OIDC, err = adminOIDC(c); err != nil {
		return nil, err
	}
	cfg.Access.AllowAnyHost = c.AdminPublic || !c.Admin.Addr().Unmap().IsLoopback()
	return admin.New(cfg), nil
}

func (s *operatorServer) handle(c *config.Config) error {
	pages, err := s.handler(c)
	if err != nil {
		return err
	}
	s.pages.serve(pages)
	return nil
}

func (s *operatorServer) prepare(next *config.Config, _ []string) (apply, error) {
	pages, err := s.handler(next)
	if err != nil {
		return nil, err
	}
	return func(context.Context, *operator.ReloadResult) error {
		s.pages.serve(pages)
		return nil
	}, nil
}

func (s *operatorServer) viewer(r *http.Request) (name string, ok bool) {
	pages, ok := (*s.pages.current.Load()).(*admin.Pages)
	if !ok {
		return "", false
	}
	return pages.Viewer(r)
}

func (a *App) buildOperator(m *metrics.Metrics) error {
	s, now := a.operator, a.status()
	lines, _ := a.opts.Logger.Handler().(*console.Log) // see New
	cfg := console.Config{
		Title: "ferry " + a.opts.Version, Mode: a.opts.Mode.String(), Since: a.life.began, Host: hostname(),
		Nodes: now.nodes, Conditions: now.conditions, Log: lines, Audit: s.audit, Viewer: s.viewer,
	}
	if a.relay != nil {
		cfg.Relay, cfg.Region, cfg.Matches = a.opts.Identity.Relay.String(), a.opts.Config.Region, a.relay.countMatches
		cfg.Stats, cfg.Probe = a.relay.engine.Stats, a.relay.engine.Private().Check
		cfg.Refusals = func() []timeline.Event { return a.history.Timeline().Refusals(consoleRefusals) }
	}
	if a.frontEnd != nil {
		cfg.Summaries = a.frontEnd.operator().summaries
	}
	page, err := console.New(cfg, a.opts.Logger)
	if err != nil {
		return err
	}
	s.console = page
	a.parts.addTasks(func(ctx context.Context) { page.Run(ctx) })
	s.fixed = admin.Config{
		Title:   cfg.Title,
		Metrics: m.Write,
		Health: admin.Health{
			Probe:   func(context.Context) error { return nil },
			Workers: func() []engine.WorkerStats { return a.relay.stats().Workers },
			Ready:   a.ready.check,
		},
		Access: admin.Access{Sessions: admin.NewSessions(a.opts.SignOutFile, a.opts.Logger), Audit: slog.New(s.audit)},
		Nodes:  now.nodes, Logger: a.opts.Logger,
		Console: page, Docs: docs.Handler("/docs/"),
		Flight: &s.flight, Canaries: &s.canaries,
		Bans: a.bans, Timeline: a.history.Timeline(),
	}
	if r := a.relay; r != nil {
		s.fixed.Relay, s.fixed.Health.Probe = relayConfig(a), r.engine.Private().Check
		s.fixed.Drain = &admin.DrainConfig{
			Drain: r.drain.Drain, Undrain: r.drain.Undrain, State: r.drain.DrainState, Defaults: r.drain.defaults,
		}
	}
	if a.frontEnd != nil {
		s.fixed.Fleet = a.frontEnd.operator()
	}
	if a.opts.Level != nil {
		s.fixed.Settings = &admin.SettingsConfig{
			Values: a.settings.values, Reload: a.settings.Reload, Level: a.opts.Level, Upgrade: a.handover.Upgrade,
		}
	}
	return s.handle(&a.opts.Config)
}

// relayConfig returns the sources of the pages about the relay, for its operator and for the API processes of
// its fleet. The bans may not exist yet.
func relayConfig(a *App) *admin.RelayConfig {
	r := &admin.RelayConfig{
		Title: "ferry " + a.opts.Version, Engine: relayPages{a.relay.engine, a.usage}, History: a.history, Timeline: a.history.Timeline(),
		Capture: captureOf(a.relay, a.settings), Since: a.life.began, UsageSince: a.usage.since, Logger: a.opts.Logger,
		Affected: func(ctx context.Context, b operator.Ban) (operator.Affected, error) { return a.bans.affected(ctx, &b) },
	}
	if a.relay.fastPath != nil {
		r.FastPath = a.relay.fastPath
	}
	return r
}

func captureOf(r *localRelay, s *settings) admin.CaptureFunc {
	return func(ctx context.Context, match proto.AllocationID, each func(*privateapi.Captured) error) (lost uint64, err error) {
		if now := s.current(); !now.Capture {
			return 0, admin.ErrCaptureOff
		}
		return r.engine.Private().Capture(ctx, match, each)
	}
}

var errOIDCToken = errors.New("admin_oidc_issuer needs admin_token_file: its token signs the sessions of the console")

func adminOIDC(c *config.Config) (*admin.OIDC, error) {
	o := &admin.OIDC{Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, Operators: c.OIDCOperators, Viewers: c.OIDCViewers}
	switch {
	case o.Issuer == "" && o.ClientID+c.OIDCSecret == "" && len(o.Operators)+len(o.Viewers) == 0:
		return nil, nil
	case c.AdminToken == "":
		return nil, errOIDCToken
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	if c.OIDCSecret != "" {
		secret, err := config.ReadSecret(c.OIDCSecret)
		if err != nil {
			return nil, fmt.Errorf("admin_oidc_secret_file: %w", err)
		}
		o.ClientSecret = string(secret)
	}
	return o, nil
}

func adminToken(c *config.Config) (string, error) {
	if c.AdminToken == "" {
		return "", nil
	}
	token, err := config.ReadSecret(c.AdminToken)
	if err == nil {
		err = admin.CheckToken(string(token))
	}
	if err != nil {
		return "", fmt.Errorf("admin_token_file: %w", err)
	}
	return string(token), nil
}

// swapHandler is a handler that can be replaced while it serves. Current requests continue
// with the handler that began them.
type swapHandler struct{ current atomic.Pointer[http.Handler] }

func (s *swapHandler) serve(h http.Handler) { s.current.Store(&h) }

func (s *swapHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.current.Load()).ServeHTTP(w, r)
}
