package app

import (
	"context"
	"crypto/tls"
	"fmt"
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
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/proto"
)

// web is an HTTP server and its listener. Its fields are fixed by newWeb.
type web struct {
	listener net.Listener
	server   *http.Server
	tls      bool
	served   chan struct{}  // closed when run has returned
	conns    sync.WaitGroup // connections whose goroutine has not ended
}

// newWeb opens a listener. Without settings of TLS it is for plain HTTP. The
// handler may be set later, before run.
//
// HTTP/2 is off: its handlers outlive their connection, so that they could not
// be waited for, and calls this small gain nothing from it.
func newWeb(addr netip.AddrPort, h http.Handler, secure *tls.Config, log *slog.Logger) (*web, error) {
	network := "tcp"
	if addr.Addr().Is4() {
		network = "tcp4" // package net would turn 0.0.0.0 into [::]
	}
	listener, err := net.Listen(network, addr.String())
	if err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	w := &web{
		listener: listener, server: httpapi.NewServer(h), tls: secure != nil, served: make(chan struct{}),
	}
	w.server.TLSConfig = secure
	w.server.Protocols = new(http.Protocols)
	w.server.Protocols.SetHTTP1(true)
	w.server.ConnState = w.track
	// What the server has to say is about strangers who speak no TLS.
	w.server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return w, nil
}

// track counts connections from before their goroutine starts until it ends, or
// until it serves a WebSocket, for which the relay waits.
func (w *web) track(_ net.Conn, s http.ConnState) {
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

// serve serves until ctx ends, lets the calls under way finish, and returns when
// nothing of the server runs any more.
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

// stop takes no more connections, lets the calls under way finish within the
// given time, and waits until nothing of the server runs. Run must have been
// called.
func (w *web) stop(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		w.server.Close()
	}
	<-w.served
	w.conns.Wait()
}

// addTransports makes the ways in besides plain UDP and tells the relay of them.
func (a *App) addTransports(to *engine.Config, sealer *alloc.Sealer) (err error) {
	c := &a.opts.Config
	if c.DTLS {
		cfg := dtlsConfig(c, sealer)
		cfg.Sessions = a.openSessions(cfg.MaxSessions)
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

// dtlsConfig returns the settings of DTLS. Every id has a key, which nobody but
// its owner was told; whether the allocation lives, or may come back after a
// restart, is for the BIND inside to find out. Who knows the key of one that has
// ended can hold a few sessions until they are idle, and reaches nothing.
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

// websocketConfig returns the settings of WebSocket. The limits of addresses are
// those of connections to the API: none in dev, and none behind a proxy of which
// only that is known.
func websocketConfig(c *config.Config, mode Mode) websocket.Config {
	w := websocket.Config{
		MaxConns: c.MaxWebSockets, MaxConnsPerAddress: c.MaxAddressWebSockets,
		TrustedProxies: trustedProxies(c), AllowOrigins: origins(c),
		IdleTimeout:   idleTimeout(c, websocket.DefaultIdleTimeout),
		QueueMessages: c.WebSocketQueue, MaxOutgoing: c.WebSocketMaxMessage,
		QueueBytes: queueBytes(c),
	}
	if mode == Dev || c.BehindProxy && len(c.TrustedProxies) == 0 {
		w.MaxConnsPerAddress = -1
	}
	return w
}

// queuedBytes is what a queued message may take on average, as with the defaults
// of package websocket.
const queuedBytes = websocket.DefaultQueueBytes / websocket.DefaultQueueMessages

// queueBytes is what the queue of one WebSocket may take.
func queueBytes(c *config.Config) int {
	return max(c.WebSocketQueue*queuedBytes, websocket.MaxMessage+2)
}

// idleTimeout returns how long a session of a player may be silent, which must not
// be shorter than the relay waits.
func idleTimeout(c *config.Config, least time.Duration) time.Duration {
	longest := max(c.IdleTimeout, c.HostAloneTimeout, c.HearTimeout)
	return min(max(least, longest+time.Second), 24*time.Hour)
}

// origins returns the web pages that may call, nil for all.
func origins(c *config.Config) []string {
	if len(c.AllowOrigins) == 0 {
		return nil
	}
	return c.AllowOrigins
}

// withWebSocket is the API, with the WebSocket at / if there is one.
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

// Listener is one address that the process hears, with its real port.
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

// udp returns where the relay hears, nothing if there is none.
func (a *App) udp() []netip.AddrPort {
	if a.relay == nil {
		return nil
	}
	return a.relay.Addrs()
}

// apiAddr returns where the API's port is, nothing if there is none.
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

// URL returns the address of the API's port with its scheme, nothing if there is
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
// far as there are such.
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

// Stats returns the counts of the relay, none if there is none.
func (a *App) Stats() engine.Stats {
	if a.relay == nil {
		return engine.Stats{}
	}
	return a.relay.Stats()
}
