package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/httpapi"
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
