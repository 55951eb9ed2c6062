package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/admin"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
	"github.com/ferryrelay/ferry/engine"
)

// The operator's connections at once, in all and from one address, where the
// listener is public: scrapers and a few people.
const (
	adminConnections        = 256
	adminAddressConnections = 64
)

// buildAdmin opens the operator's port: plain HTTP on loopback, and with the
// API's certificate elsewhere, if there is a token to protect.
func (a *App) buildAdmin() error {
	c := &a.opts.Config
	pages, err := a.pages(c)
	if err != nil {
		return err
	}
	a.inside.serve(pages)
	var secure *tls.Config
	loopback := c.Admin.Addr().Unmap().IsLoopback()
	if c.AdminToken != "" && !loopback {
		secure = a.secure()
	}
	if a.admin, err = newWeb(c.Admin.AddrPort, &a.inside, secure, a.opts.Logger); err != nil {
		return err
	}
	if !loopback {
		a.admin.listener = httpapi.LimitListener(a.admin.listener, httpapi.ConnLimits{
			Total: adminConnections, PerAddress: adminAddressConnections,
		})
	}
	return nil
}

// pages returns what answers the operator by these settings.
func (a *App) pages(c *config.Config) (http.Handler, error) {
	token, err := adminToken(c)
	if err != nil {
		return nil, err
	}
	cfg := admin.Config{
		Title:   "ferry " + a.opts.Version,
		Metrics: a.metrics.Write,
		Probe:   a.relay.Probe,
		Workers: func() []engine.WorkerStats { return a.relay.Stats().Workers },
		Ready:   a.whyNotReady,
		AnyHost: c.AdminPublic || !c.Admin.Addr().Unmap().IsLoopback(),

		Drain: a.Drain, Undrain: a.Undrain, Draining: a.DrainState,
		DrainDefaults: a.drainDefaults(),

		Relay: a.relay, Nodes: a.nodes, Token: token, Since: a.since, Logger: a.opts.Logger,
	}
	if a.opts.Level != nil {
		cfg.Settings, cfg.Reload, cfg.Level = a.settings, a.Reload, a.opts.Level
	}
	return admin.New(cfg), nil
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

// nodes returns this process, which is alone.
func (a *App) nodes(context.Context) ([]admin.Node, error) {
	st, state := a.relay.Stats(), "ready"
	switch a.whyNotReady() {
	case errNotReady:
		state = "not ready"
	case errDraining:
		state = "draining"
	}
	n := admin.Node{
		ID: a.opts.Identity.Relay.String(), Role: a.opts.Mode.String(), Region: a.opts.Config.Region,
		Version: a.opts.Version, State: state, API: a.URL(), Since: a.since,
		Allocations: st.Allocations, Bound: st.Bound, Links: st.Links, Seats: st.Seats,
		MaxSeats: a.inForce().MaxSeats,
	}
	for _, addr := range a.relay.Addrs() {
		n.UDP = append(n.UDP, addr.String())
	}
	return []admin.Node{n}, nil
}

// String returns the name of the command that runs in this mode.
func (m Mode) String() string {
	if m == Dev {
		return "dev"
	}
	return "serve"
}

// swapped is a handler that another one takes the place of while it serves.
// Requests under way go on with the one that has them.
type swapped struct{ current atomic.Pointer[http.Handler] }

func (s *swapped) serve(h http.Handler) { s.current.Store(&h) }

func (s *swapped) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.current.Load()).ServeHTTP(w, r)
}
