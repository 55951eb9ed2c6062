package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/base/urlpath"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/net/proxyproto"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/web"
)

// apiServer serves the port of the API: its calls, and WebSockets at the root. Its fields are fixed by
// newAPIServer, except for last.
type apiServer struct {
	web       *web.Server
	mode      Mode
	service   *alloc.Service // nil: WebSockets alone
	players   *players
	admission *admission
	fixed     httpapi.Config   // of the handler of calls, what no setting changes
	last      *httpapi.Handler // the one that was made last; guarded by settings.asking
	calls     swapHandler      // by the settings in force
	rejected  rejections
}

// apiConfig is what the API uses of the process.
type apiConfig struct {
	listener  *net.TCPListener
	secure    *tls.Config // nil: plain HTTP
	accepting *accepting
	admission *admission
	// limiter is that of httpapi.Config; nil: this process limits calls alone.
	limiter   func(ctx context.Context, key string, perMinute int) (ok bool, retryAfter time.Duration, err error)
	websocket *websocket.Transport // nil: there is none
}

// newAPIServer serves the calls of a service, nil for WebSockets alone.
func newAPIServer(o *Options, cfg apiConfig, service *alloc.Service, stream *events.Stream) (*apiServer, error) {
	c := &o.Config
	s := &apiServer{
		mode: o.Mode, service: service, players: cfg.admission.players, admission: cfg.admission,
		fixed: httpapi.Config{
			Service: service, Logger: o.Logger, OnRequest: stream.Call.Publish, SharedLimiter: cfg.limiter,
		},
	}
	calls, err := s.handler(c)
	if err != nil {
		return nil, err
	}
	s.calls.serve(calls)
	handler := http.Handler(&s.calls)
	if cfg.websocket != nil {
		handler = withWebSocket(handler, cfg.websocket)
	}
	s.web = web.New(sock.NewRetryListener(cfg.listener, cfg.accepting.config(o.Logger)), handler, cfg.secure, o.Logger)
	if o.Mode != Dev {
		s.web.Listener = connlimit.Listen(s.web.Listener, connLimits(c, &s.rejected, o.Logger))
		s.web.HTTP.IdleTimeout, s.web.Linger = proxyIdleTimeout, lingerFor
	}
	if c.ProxyProtocol {
		s.web.Listener = proxyproto.Listen(s.web.Listener, proxyConfig(c, &s.rejected))
	}
	return s, nil
}

// handler returns the handler of calls for these settings, with the policy that the players have
// planned. It continues the counters of its predecessor.
func (s *apiServer) handler(c *config.Config) (http.Handler, error) {
	if s.service == nil {
		return http.NotFoundHandler(), nil
	}
	h := s.fixed
	h.Authenticate = s.players.planned.authenticate()
	calls, err := newAPI(c, s.mode, h, s.last)
	if err != nil {
		return nil, err
	}
	s.last = calls
	return calls, nil
}

// prepare is a [prepare] for the API. The players have prepared before.
func (s *apiServer) prepare(next *config.Config, changed []string) (_ apply, err error) {
	var calls http.Handler
	if slices.ContainsFunc(changed, func(key string) bool { return slices.Contains(reloadsAPI, key) }) {
		if calls, err = s.handler(next); err != nil {
			return nil, err
		}
	}
	return func(context.Context, *operator.ReloadResult) error {
		if calls != nil {
			s.calls.serve(calls)
		}
		if s.service != nil {
			s.service.SetMaxOutstanding(maxOutstanding(next))
		}
		return nil
	}, nil
}

func (s *apiServer) addMetrics(p *metrics.Process) {
	r := &s.rejected
	p.RefusedTotal, p.RefusedHeader, p.EvictedTotal = r.total.Load(), r.header.Load(), r.evictedTotal.Load()
	p.EvictedAddress, p.EvictedProtected = r.evictedAddress.Load(), r.evictedProtected.Load()
}

// maxOutstanding is how many allocations of a player may be reserved and not bound: 20 by default. ferry
// api does not learn of binds and counts each for bind_timeout, so it follows the rate of calls.
func maxOutstanding(c *config.Config) int { return min(max(c.PlayerPerMinute/3, 1), 1<<16) }

func newAPI(c *config.Config, mode Mode, h httpapi.Config, last *httpapi.Handler) (*httpapi.Handler, error) {
	h.Anonymous = mode == Dev
	h.PlayerPerMinute, h.ServerPerMinute = c.PlayerPerMinute, c.ServerPerMinute
	h.ServerFailedJoinsPerMinute = max(c.ServerPerMinute/10, 1) // of hosts that have just ended; more is guessing
	h.TrustedProxies, h.AllowOrigins = trustedProxies(c), origins(c)
	for i, t := range c.Tokens {
		token, err := apiToken(&t)
		if err = errors.Join(err, checkRegionNames(c, t.Regions)); err != nil {
			return nil, fmt.Errorf("tokens[%d]: %w", i, err)
		}
		h.Tokens = append(h.Tokens, token)
	}
	return httpapi.New(h, last)
}

func apiToken(t *config.Token) (httpapi.Token, error) {
	if t.Kind != "player" && t.Kind != "server" {
		return httpapi.Token{}, fmt.Errorf("%w: the kind %q is neither player nor server", httpapi.ErrConfig, t.Kind)
	}
	return httpapi.Token{
		Secret: string(t.Secret), Project: t.Project, Environment: t.Environment, Player: t.Player, Server: t.Kind == "server",
		Regions: t.Regions,
	}, nil
}

func withWebSocket(api http.Handler, at *websocket.Transport) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if urlpath.Of(r) == "/" {
			at.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// rejections count connections to the API that were closed: above the limit, for a newer one,
// and of a proxy without a PROXY header.
type rejections struct {
	total                                          atomic.Uint64 // unread
	evictedTotal, evictedAddress, evictedProtected atomic.Uint64
	header                                         atomic.Uint64

	mu     sync.Mutex // guards what follows
	logged time.Time
	closed int // for a limit, since the log said so
}

// note counts a connection that a limit closed, and writes a line a minute at most.
func (r *rejections) note(log *slog.Logger, why connlimit.Rejection, now time.Time) {
	switch why {
	case connlimit.RejectedTotal:
		r.total.Add(1)
	case connlimit.EvictedTotal:
		r.evictedTotal.Add(1)
	case connlimit.EvictedAddress:
		r.evictedAddress.Add(1)
	case connlimit.EvictedProtected:
		r.evictedProtected.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
	if !r.logged.IsZero() && now.Sub(r.logged) < rejectionLogEvery {
		return
	}
	log.Warn("connections to the API are closed for a limit; those without a valid token go first",
		"reason", string(why), "limits", "max_http_connections", "closed_since_last_line", r.closed)
	r.logged, r.closed = now, 0
}

const rejectionLogEvery = time.Minute

const (
	// httpIdleTimeout is after how long without a call a connection to the API is closed.
	httpIdleTimeout = 30 * time.Second
	// proxyIdleTimeout is that of a connection of trusted_proxies. It is longer than the 600 s for which
	// balancers keep idle connections, since a call on a connection that Ferry closes at that moment is
	// answered with status 502.
	proxyIdleTimeout = 620 * time.Second
)

// perAddress is the share of one address in connections: many players may be behind a NAT, and
// sixteen addresses are needed to hold all.
func perAddress(total int) int { return max(total/16, 1) }

func connLimits(c *config.Config, r *rejections, log *slog.Logger) connlimit.Limits {
	return connlimit.Limits{
		Total: c.MaxHTTPConnections, PerAddress: perAddress(c.MaxHTTPConnections),
		TrustedProxies: trustedProxies(c), IdleTimeout: httpIdleTimeout,
		OnReject: func(why connlimit.Rejection) { r.note(log, why, time.Now()) },
	}
}

// proxyConfig configures the PROXY protocol of trusted proxies. A connection counts as one of
// its client once the header has arrived.
func proxyConfig(c *config.Config, r *rejections) proxyproto.Config {
	return proxyproto.Config{
		Proxies:  trustedProxies(c),
		OnClient: connlimit.SetClient,
		OnRefuse: func(netip.Addr, error) { r.header.Add(1) },
	}
}

func trustedProxies(c *config.Config) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range c.TrustedProxies {
		all = append(all, n.Prefix)
	}
	return all
}
