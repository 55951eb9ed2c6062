package process

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

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
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

var settingOf = map[string]string{apiFile: "http", adminFile: "admin"}

func openPort(parent *upgrade.Parent, name string, addr netip.AddrPort) (*net.TCPListener, error) {
	if parent != nil {
		l, err := parent.Listener(name, addr.String())
		if err != nil {
			return nil, fmt.Errorf("app: %w", err)
		}
		if l, ok := l.(*net.TCPListener); ok {
			return l, nil
		}
	}
	network := "tcp"
	if addr.Addr().Is4() {
		network = "tcp4" // package net would turn 0.0.0.0 into [::]
	}
	l, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, bindError(settingOf[name], "tcp", addr, err)
	}
	return l, nil
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

func (w *web) scheme() string {
	if w.tls {
		return "https"
	}
	return "http"
}

func (w *web) url() string { return w.scheme() + "://" + w.addr().String() }

func (w *web) part(name string) part {
	return part{name: name, run: w.serve, free: func() error { return w.listener.Close() }}
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

// origins returns the origins of web pages that may call, nil for all.
func origins(c *config.Config) []string {
	if len(c.AllowOrigins) == 0 {
		return nil
	}
	return c.AllowOrigins
}

// Listener is one listen address of the process, with its real port.
type Listener struct {
	Kind string // "udp", "http", "https", "cluster" or "admin"
	Addr netip.AddrPort
}

// Listeners returns all listeners, the relay's first.
func (a *App) Listeners() []Listener {
	var all []Listener
	for _, addr := range a.relay.addrs() {
		all = append(all, Listener{"udp", addr})
	}
	if a.api != nil {
		all = append(all, Listener{a.api.web.scheme(), a.api.addr()})
	}
	if a.member != nil {
		all = append(all, Listener{"cluster", a.member.cluster.Addr()})
	}
	return append(all, Listener{"admin", a.operator.web.addr()})
}

// URL returns the address of the API's port with its scheme, empty if there is
// none.
func (a *App) URL() string {
	if a.api == nil {
		return ""
	}
	return a.api.web.url()
}

// AdminURL returns the address of the admin pages.
func (a *App) AdminURL() string { return a.operator.web.url() }

// Summary names all addresses in one line: udp=…,… http=… cluster=… admin=…, as
// far as they exist.
func (a *App) Summary() string {
	var all, udp []string
	for _, addr := range a.relay.addrs() {
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
