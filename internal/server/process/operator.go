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
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/console"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
	"github.com/ferryrelay/ferry/internal/server/web"
	"github.com/ferryrelay/ferry/proto"
)

// Limits of connections to a public admin listener, in total and from one address: for
// scrapers and a few people.
const (
	adminConnections        = 256
	adminAddressConnections = 64
)

// adminPort is the operator's port. It serves pages, which a reload replaces.
type adminPort struct {
	web   *web.Server
	pages swapHandler // by the settings in force
}

// operatorServer has the admin pages with the console, and the record of what operators do. Its fields
// are fixed by newOperatorServer.
type operatorServer struct {
	status   *status
	port     *adminPort
	fixed    admin.Config // of the pages, what no setting changes
	audit    *audit
	flight   admin.Flight
	canaries admin.Canaries
}

// hasAdminTLS reports whether the operator's port speaks TLS, with the API's certificate.
func hasAdminTLS(c *config.Config) bool {
	return hasTLS(c) && c.AdminToken != "" && !c.Admin.Addr().Unmap().IsLoopback()
}

// newAdminPort serves plain HTTP on loopback, and with the API's certificate elsewhere, if there is a token
// to protect.
func newAdminPort(o *Options, l *net.TCPListener, certificates *certificates, a *accepting) *adminPort {
	c := &o.Config
	var secure *tls.Config
	if hasAdminTLS(c) {
		secure = certificates.tls()
	}
	accept := a.config(o.Logger)
	accept.Reserve = true
	p := new(adminPort)
	p.web = web.New(sock.NewRetryListener(l, accept), closeReserved(&p.pages), secure, o.Logger)
	p.web.HTTP.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, reservedKey{}, sock.IsReserved(conn))
	}
	if !c.Admin.Addr().Unmap().IsLoopback() {
		p.web.Listener = connlimit.Listen(p.web.Listener, connlimit.Limits{
			Total: adminConnections, PerAddress: adminAddressConnections,
		})
	}
	return p
}

func (p *adminPort) viewer(r *http.Request) (name string, ok bool) {
	pages, ok := (*p.pages.current.Load()).(*admin.Pages)
	if !ok {
		return "", false
	}
	return pages.Viewer(r)
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

func (s *operatorServer) prepare(next *config.Config, _ []string) (apply, error) {
	pages, err := s.handler(next)
	if err != nil {
		return nil, err
	}
	return func(context.Context, *operator.ReloadResult) error {
		s.port.pages.serve(pages)
		return nil
	}, nil
}

func newConsole(s *status, port *adminPort, audit *audit) (*console.Console, error) {
	o := s.self.opts
	lines, _ := o.Logger.Handler().(*console.Log) // see New
	cfg := console.Config{
		Title: "ferry " + o.Version, Mode: o.Mode.String(), Since: s.self.since, Host: hostname(),
		Nodes: s.nodes, Conditions: s.conditions, Log: lines, Audit: audit.lines, Viewer: port.viewer,
	}
	if r := s.relay; r != nil {
		cfg.Relay, cfg.Region, cfg.Matches = o.Identity.Relay.String(), o.Config.Region, r.countMatches
		cfg.Stats, cfg.Probe = r.engine.Stats, r.engine.Private().Check
		cfg.Refusals = func() []timeline.Event { return s.history.Timeline().Refusals(consoleRefusals) }
	}
	if s.frontEnd != nil {
		cfg.Summaries = s.frontEnd.operator().summaries
	}
	return console.New(cfg, o.Logger)
}

// newOperatorServer serves the pages of the settings.
func newOperatorServer(p *adminPort, audit *audit, now *status, page *console.Console, m *metrics.Metrics,
	h *handover) (*operatorServer, error) {
	o := now.self.opts
	s := &operatorServer{status: now, port: p, audit: audit}
	s.fixed = admin.Config{
		Title:   "ferry " + o.Version,
		Metrics: m.Write,
		Health: admin.Health{
			Probe:   func(context.Context) error { return nil },
			Workers: func() []privateapi.WorkerStats { return now.relay.stats().Private.Workers },
			Ready:   now.self.ready.check,
		},
		Access: admin.Access{Sessions: admin.NewSessions(o.Files.SignOuts, o.Logger), Audit: slog.New(audit.lines)},
		Nodes:  func(ctx context.Context) (operator.Nodes, error) { return now.nodes(ctx, page.Summary().Load) },
		Logger: o.Logger, Console: page, Docs: docs.Handler("/docs/"),
		Flight: &s.flight, Canaries: &s.canaries,
		Bans: now.bans, Timeline: now.history.Timeline(),
	}
	if r := now.relay; r != nil {
		s.fixed.Relay, s.fixed.Health.Probe = now.relayConfig(), r.engine.Private().Check
		s.fixed.Drain = &admin.DrainConfig{
			Drain: r.drain.Drain, Undrain: r.drain.Undrain, State: r.drain.DrainState, Defaults: r.drain.defaults,
		}
	}
	if now.frontEnd != nil {
		s.fixed.Fleet = now.frontEnd.operator()
	}
	if o.Level != nil {
		s.fixed.Settings = &admin.SettingsConfig{
			Values: now.settings.values, Reload: now.settings.Reload, Level: o.Level, Upgrade: h.Upgrade,
		}
	}
	pages, err := s.handler(&o.Config)
	if err != nil {
		return nil, err
	}
	p.pages.serve(pages)
	return s, nil
}

// relayConfig returns the sources of the pages about the relay, for its operator and for the API processes of
// its fleet.
func (s *status) relayConfig() *admin.RelayConfig {
	r, o := s.relay, s.self.opts
	return &admin.RelayConfig{
		Title: "ferry " + o.Version, Engine: relayPages{r.engine.Server, r.usage}, History: s.history, Timeline: s.history.Timeline(),
		Capture: captureOf(r, s.settings), FastPath: r.fastPath, Since: s.self.since, UsageSince: r.usage.since, Logger: o.Logger,
		Affected: func(ctx context.Context, b operator.Ban) (operator.Affected, error) { return s.bans.Affected(ctx, &b) },
	}
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
