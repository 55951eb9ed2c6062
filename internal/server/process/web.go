package process

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
)

// web is an HTTP server and its listener. Its fields are fixed before run.
type web struct {
	listener net.Listener
	tcp      *net.TCPListener // that of listener, which may limit its connections
	server   *http.Server
	tls      bool
	linger   time.Duration // how long it serves when it stops, until each connection has brought a last call
	stopping atomic.Bool   // each answer closes its connection
	served   chan struct{} // closed when run has returned
	conns    conns
}

var settingOf = map[string]string{apiFile: "http", adminFile: "admin"}

func openPort(parent *upgrade.Parent, name string, addr netip.AddrPort) (*net.TCPListener, error) {
	if parent != nil {
		l, err := parent.Listener(name, addr.String())
		if err != nil {
			return nil, err
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

// ports are the TCP listeners of a process, by the names of the files with which another one takes them
// over.
type ports map[string]*net.TCPListener

// openPorts opens the ports of the mode. A relay of a fleet has that of the API for WebSockets alone.
func openPorts(o *Options) (ports, error) {
	addrs := map[string]netip.AddrPort{adminFile: o.Config.Admin.AddrPort}
	if o.Mode.hasAPI() || o.Config.WebSocket {
		addrs[apiFile] = o.Config.HTTP.AddrPort
	}
	open := make(ports)
	for _, name := range slices.Sorted(maps.Keys(addrs)) {
		l, err := openPort(o.Parent, name, addrs[name])
		if err != nil {
			return open, err
		}
		open[name] = l
	}
	return open, nil
}

// close closes what no server has closed.
func (p ports) close() {
	for _, l := range p {
		_ = l.Close()
	}
}

// addr returns the address of a port, invalid if there is no such port.
func (p ports) addr(name string) netip.AddrPort {
	if p[name] == nil {
		return netip.AddrPort{}
	}
	return p[name].Addr().(*net.TCPAddr).AddrPort()
}

// url returns the address of a port, empty if there is no such port.
func (p ports) url(name string, secure bool) string {
	if p[name] == nil {
		return ""
	}
	return urlOf(secure, p.addr(name))
}

// newWeb serves a listener, with plain HTTP if secure is nil.
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
	w.server.ConnState = func(c net.Conn, s http.ConnState) {
		leave(c, s)
		w.conns.set(c, s, w.stopping.Load())
	}
	// The server logs only clients that fail the TLS handshake.
	w.server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return w
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

func (w *web) url() string { return urlOf(w.tls, w.addr()) }

func urlOf(secure bool, addr netip.AddrPort) string {
	if secure {
		return "https://" + addr.String()
	}
	return "http://" + addr.String()
}

func (w *web) part(name string) part {
	return part{name: name, run: w.serve, free: func() error { return w.listener.Close() }}
}

// serve serves until ctx ends, waits for the current calls and for a last one of each connection that is
// kept open, and returns when no goroutine of the server is left.
func (w *web) serve(ctx context.Context) error {
	next := w.server.Handler
	w.server.Handler = http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		if w.stopping.Load() {
			answer.Header().Set("Connection", "close")
		}
		next.ServeHTTP(answer, r)
	})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-ctx.Done():
		case <-w.served:
		}
		w.stop()
	})
	err := w.run()
	stopping.Wait()
	return err
}

// run serves until stop is called, and then returns nil.
func (w *web) run() (err error) {
	defer close(w.served)
	if w.tls {
		err = w.server.ServeTLS(w.listener, "", "")
	} else {
		err = w.server.Serve(w.listener)
	}
	if w.stopping.Load() {
		return nil
	}
	return err
}

// stop lets each connection bring a last call within w.linger, closes the listener, waits at most answerWithin for the
// current calls, and returns when no goroutine of the server is left. A proxy or client cannot know that the connection
// on which it sends a call is being closed. [http.Server.Shutdown] closes idle ones at once, and leaves calls unanswered
// that arrive meanwhile.
func (w *web) stop() {
	w.stopping.Store(true)
	w.conns.await(time.After(w.linger), func(c conn) bool { return !c.last })
	_ = w.listener.Close()
	w.conns.await(time.After(answerWithin), func(c conn) bool { return c.state != http.StateIdle })
	_ = w.server.Close()
	<-w.served
	w.conns.await(nil, func(conn) bool { return true })
}

// conn is a connection of a server.
type conn struct {
	state http.ConnState
	last  bool // it was opened when the server stopped, so that it brings one call
}

// conns are the connections of a server, each until its goroutine ends, or serves a WebSocket, for which the relay waits.
type conns struct {
	mu      sync.Mutex // guards what follows
	open    map[net.Conn]conn
	changed chan struct{} // closed at the next change, if it is not nil
}

func (t *conns) set(c net.Conn, s http.ConnState, stopping bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[net.Conn]conn)
	}
	switch s {
	case http.StateNew:
		t.open[c] = conn{s, stopping}
	case http.StateClosed, http.StateHijacked:
		delete(t.open, c)
	default:
		t.open[c] = conn{s, t.open[c].last}
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// await returns when there is no such connection, or at end.
func (t *conns) await(end <-chan time.Time, such func(conn) bool) {
	for {
		changed := t.some(such)
		if changed == nil {
			return
		}
		select {
		case <-changed:
		case <-end:
			return
		}
	}
}

// some returns a channel that is closed at the next change if there is such a connection, else nil.
func (t *conns) some(such func(conn) bool) (changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.open {
		if such(c) {
			if t.changed == nil {
				t.changed = make(chan struct{})
			}
			return t.changed
		}
	}
	return nil
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
	return append(all, Listener{"admin", a.operator.port.web.addr()})
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
func (a *App) AdminURL() string { return a.operator.port.web.url() }

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
