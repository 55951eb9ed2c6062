// Package web is an HTTP server that answers the calls which have arrived before it stops. It is that of a process of
// Ferry, and of package relay.
package web

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/base/parts"
)

// Server is an HTTP server and its listener. Its fields may be changed before it runs.
type Server struct {
	Listener net.Listener
	HTTP     *http.Server
	Linger   time.Duration // how long it serves when it stops, until each connection has brought a last call
	Answer   time.Duration // how long the calls that have arrived may then continue; 2 s

	tls      bool
	stopping atomic.Bool   // each answer closes its connection
	served   chan struct{} // closed when serve has returned
	conns    conns
}

// New serves a listener, with plain HTTP if secure is nil.
//
// HTTP/2 is off: its handlers outlive their connection, so the
// shutdown could not wait for them, WebSocket clients speak HTTP/1, and calls this small gain nothing from it.
func New(l net.Listener, h http.Handler, secure *tls.Config, log *slog.Logger) *Server {
	s := &Server{Listener: l, HTTP: httpapi.NewServer(h), Answer: 2 * time.Second, tls: secure != nil, served: make(chan struct{})}
	s.HTTP.TLSConfig = secure
	s.HTTP.Protocols = new(http.Protocols)
	s.HTTP.Protocols.SetHTTP1(true)
	leave := s.HTTP.ConnState
	s.HTTP.ConnState = func(c net.Conn, state http.ConnState) {
		leave(c, state)
		s.conns.set(c, state, s.stopping.Load())
	}
	// The server logs only clients that fail the TLS handshake.
	s.HTTP.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return s
}

// Part returns the part that serves.
func (s *Server) Part(name string) parts.Part {
	return parts.Part{Name: name, Run: s.run, Free: s.Listener.Close}
}

// run serves until ctx ends, waits for the current calls and for a last one of each connection that is
// kept open, and returns when no goroutine of the server is left.
func (s *Server) run(ctx context.Context) error {
	next := s.HTTP.Handler
	s.HTTP.Handler = http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		if s.stopping.Load() {
			answer.Header().Set("Connection", "close")
		}
		next.ServeHTTP(answer, r)
	})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.served:
		}
		s.stop()
	})
	err := s.serve()
	stopping.Wait()
	return err
}

// serve serves until stop is called, and then returns nil.
func (s *Server) serve() (err error) {
	defer close(s.served)
	if s.tls {
		err = s.HTTP.ServeTLS(s.Listener, "", "")
	} else {
		err = s.HTTP.Serve(s.Listener)
	}
	if s.stopping.Load() {
		return nil
	}
	return err
}

// stop lets each connection bring a last call within Linger, closes the listener, waits at most for Answer for the
// current calls, and returns when no goroutine of the server is left. A proxy or client cannot know that the connection
// on which it sends a call is being closed. [http.Server.Shutdown] closes idle ones at once, and leaves calls unanswered
// that arrive meanwhile.
func (s *Server) stop() {
	s.stopping.Store(true)
	s.conns.await(time.After(s.Linger), func(c conn) bool { return !c.last })
	_ = s.Listener.Close()
	s.conns.await(time.After(s.Answer), func(c conn) bool { return c.state != http.StateIdle })
	_ = s.HTTP.Close()
	<-s.served
	s.conns.await(nil, func(conn) bool { return true })
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
