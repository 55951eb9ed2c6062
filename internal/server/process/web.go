package process

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/proto"
)

// web is an HTTP server and its listener. Its fields are fixed by newWeb.
type web struct {
	listener net.Listener
	tcp      *net.TCPListener // that of listener, which may limit its connections
	server   *http.Server
	tls      bool
	served   chan struct{}  // closed when run has returned
	conns    sync.WaitGroup // connections whose goroutine has not ended
}

// newWeb serves a listener, with plain HTTP if secure is nil. The handler may be set later,
// before run.
//
// HTTP/2 is off: its handlers outlive their connection, so the
// shutdown could not wait for them, and calls this small gain nothing from it.
func newWeb(listener *net.TCPListener, h http.Handler, secure *tls.Config, log *slog.Logger, accept sock.RetryConfig) *web {
	w := &web{
		listener: sock.NewRetryListener(listener, accept), tcp: listener, server: httpapi.NewServer(h), tls: secure != nil,
		served: make(chan struct{}),
	}
	w.server.TLSConfig = secure
	w.server.Protocols = new(http.Protocols)
	w.server.Protocols.SetHTTP1(true)
	leave := w.server.ConnState
	w.server.ConnState = func(conn net.Conn, s http.ConnState) {
		leave(conn, s)
		w.track(s)
	}
	// The server logs only clients that fail the TLS handshake.
	w.server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return w
}

// track counts connections from before their goroutine starts until it ends, or
// until it serves a WebSocket, for which the relay waits.
func (w *web) track(s http.ConnState) {
	switch s {
	case http.StateNew:
		w.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		w.conns.Done()
	}
}

func (w *web) addr() netip.AddrPort {
	return w.listener.Addr().(*net.TCPAddr).AddrPort()
}

// serve serves until ctx ends, waits for the current calls, and returns when no goroutine
// of the server is left.
func (w *web) serve(ctx context.Context) error {
	var stopping sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-ctx.Done():
		case <-w.served:
		}
		w.stop(answerWithin)
	})
	err := w.run()
	stopping.Wait()
	return err
}

// run serves until stop is called, and then returns nil.
func (w *web) run() error {
	defer close(w.served)
	if w.tls {
		return ignoreClosed(w.server.ServeTLS(w.listener, "", ""))
	}
	return ignoreClosed(w.server.Serve(w.listener))
}

// stop closes the listener, waits at most the given time for the current calls, and
// returns when no goroutine of the server is left. Run must have been called.
func (w *web) stop(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		w.server.Close()
	}
	<-w.served
	w.conns.Wait()
}

// addTransports creates the transports besides UDP and adds them to the configuration.
func (a *App) addTransports(to *engine.Config, sealer *alloc.Sealer) (err error) {
	c := &a.opts.Config
	if c.DTLS {
		cfg := dtlsConfig(c, sealer)
		a.addSessionFile()
		if a.opts.Parent == nil { // The process before this one has the file open.
			cfg.Sessions = a.openSessionFile(0)
		}
		if a.dtls, err = dtls.New(cfg); err != nil {
			return err
		}
		to.Records = a.dtls
	}
	if c.WebSocket {
		if a.websocket, err = websocket.New(websocketConfig(c, a.opts.Mode)); err != nil {
			return err
		}
		to.Transports = append(to.Transports, a.websocket)
	}
	return nil
}

// dtlsConfig returns the configuration of DTLS. The key of each id is derived, and only its
// owner has it. Records asks the relay whether the allocation can still be bound.
func dtlsConfig(c *config.Config, sealer *alloc.Sealer) dtls.Config {
	derivers := sync.Pool{New: func() any { return sealer.NewDeriver() }}
	return dtls.Config{
		PSK: func(id proto.AllocationID) (key proto.Key, ok bool) {
			d := derivers.Get().(*alloc.Deriver)
			defer derivers.Put(d)
			d.Key(id, &key)
			return key, true
		},
		MaxSessions: c.MaxDTLSSessions,
		MaxMessage:  c.DTLSMaxMessage,
		Idle:        idleTimeout(c, 60*time.Second),
	}
}

// websocketConfig returns the configuration of WebSocket. Its limits per address are those
// of connections to the API: none in dev.
func websocketConfig(c *config.Config, mode Mode) websocket.Config {
	w := websocket.Config{
		MaxConns: c.MaxWebSockets, MaxConnsPerAddress: c.MaxAddressWebSockets,
		TrustedProxies: trustedProxies(c), AllowOrigins: origins(c),
		IdleTimeout:   idleTimeout(c, websocket.DefaultIdleTimeout),
		PingInterval:  min(c.IdleTimeout/3, maxPingInterval),
		QueueMessages: c.WebSocketQueue, MaxOutgoing: c.WebSocketMaxMessage,
		QueueBytes: queueBytes(c),
	}
	if mode == Dev {
		w.MaxConnsPerAddress = -1
	}
	return w
}

// maxPingInterval is how often a silent WebSocket is pinged at least, whatever the idle
// time-out, so that NAT and proxies keep its connection.
const maxPingInterval = 20 * time.Second

// queuedBytes is the average room of a queued message, as in the defaults of package
// websocket.
const queuedBytes = websocket.DefaultQueueBytes / websocket.DefaultQueueMessages

// queueBytes returns the limit of the queue of one WebSocket in bytes.
func queueBytes(c *config.Config) int {
	return max(c.WebSocketQueue*queuedBytes, websocket.MaxMessage+2)
}

// idleTimeout returns how long a session may be silent: not shorter than the idle
// time-outs of the relay.
func idleTimeout(c *config.Config, least time.Duration) time.Duration {
	longest := max(c.IdleTimeout, c.HostAloneTimeout, c.HearTimeout)
	return min(max(least, longest+time.Second), 24*time.Hour)
}

// origins returns the origins of web pages that may call, nil for all.
func origins(c *config.Config) []string {
	if len(c.AllowOrigins) == 0 {
		return nil
	}
	return c.AllowOrigins
}

// withWebSocket adds the WebSocket at / to the API's handler, if there is one.
func (a *App) withWebSocket(api http.Handler) http.Handler {
	if a.websocket == nil {
		return api
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpapi.RoutePath(r) == "/" {
			a.websocket.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// Listener is one listen address of the process, with its real port.
type Listener struct {
	Kind string // "udp", "http", "https", "cluster" or "admin"
	Addr netip.AddrPort
}

// Listeners returns all listeners, the relay's first.
func (a *App) Listeners() []Listener {
	var all []Listener
	for _, addr := range a.udp() {
		all = append(all, Listener{"udp", addr})
	}
	if a.api != nil {
		all = append(all, Listener{a.scheme(), a.api.addr()})
	}
	if a.member != nil {
		all = append(all, Listener{"cluster", a.member.cluster.Addr()})
	}
	return append(all, Listener{"admin", a.admin.addr()})
}

// udp returns the listen addresses of the relay, none if there is no relay.
func (a *App) udp() []netip.AddrPort {
	if a.relay == nil {
		return nil
	}
	return a.relay.Addrs()
}

// apiAddr returns the address of the API's port, invalid if there is none.
func (a *App) apiAddr() netip.AddrPort {
	if a.api == nil {
		return netip.AddrPort{}
	}
	return a.api.addr()
}

func (a *App) scheme() string {
	if a.api.tls {
		return "https"
	}
	return "http"
}

// URL returns the address of the API's port with its scheme, empty if there is
// none.
func (a *App) URL() string {
	if a.api == nil {
		return ""
	}
	return a.scheme() + "://" + a.api.addr().String()
}

// AdminURL returns the address of the admin pages.
func (a *App) AdminURL() string {
	scheme := "http"
	if a.admin.tls {
		scheme = "https"
	}
	return scheme + "://" + a.admin.addr().String()
}

// Summary names all addresses in one line: udp=…,… http=… cluster=… admin=…, as
// far as they exist.
func (a *App) Summary() string {
	var all, udp []string
	for _, addr := range a.udp() {
		udp = append(udp, addr.String())
	}
	if len(udp) > 0 {
		all = append(all, "udp="+strings.Join(udp, ","))
	}
	if a.api != nil {
		all = append(all, "http="+a.URL())
	}
	if a.member != nil {
		all = append(all, "cluster="+a.member.cluster.Addr().String())
	}
	return strings.Join(append(all, "admin="+a.AdminURL()), " ")
}

// Stats returns the counters of the relay, zero if there is no relay.
func (a *App) Stats() engine.Stats {
	if a.relay == nil {
		return engine.Stats{}
	}
	return a.relay.Stats()
}
