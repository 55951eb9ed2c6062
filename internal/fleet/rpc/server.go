package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

const (
	// maxConns and maxAddressConns bound the connections of all callers, and those
	// of one address, where there may be 8 API processes.
	maxConns        = 1024
	maxAddressConns = 8 * maxRelayConns
	// readTimeout bounds a handshake, and the reading of a call.
	readTimeout  = 5 * time.Second
	writeTimeout = maxDeadline + 5*time.Second
	// idleTimeout is longer than that of the dialer, which therefore closes idle
	// connections first.
	idleTimeout    = 2 * relayConnIdle
	maxHeaderBytes = 4 << 10
	// connAge is the age after which a connection is closed with its next answer, so
	// that changed files take effect.
	connAge       = 5 * time.Minute
	stopTimeout   = 3 * time.Second
	sweepInterval = time.Second
)

// Config configures a [Server]. All fields but the last are required.
type Config struct {
	// Addr is the address of the listener; port 0 is any.
	Addr     netip.AddrPort
	Relay    placement.Relay
	Operator Operator
	// ID is the id of the relay, which its certificate must have.
	ID    alloc.RelayID
	Files Files
	// Logger gets the commands of operators, reservations that could not be ended,
	// changes of the files, and refused callers, at most one per second. Nil: no log.
	Logger *slog.Logger
}

// Server is the cluster listener of a relay. Its fields are immutable unless they say
// otherwise.
type Server struct {
	reservations *reservations
	operators    *operatorCalls
	routes       []route
	creds        *credentials
	logger       *slog.Logger
	listener     net.Listener
	http         *http.Server
	counts       serverCounts

	conns sync.WaitGroup // open connections
}

// NewServer reads the certificate files and opens the listener. It starts no goroutine
// before Run; a server that never runs must be closed. Errors wrap ErrFiles, or are those
// of the system.
func NewServer(cfg Config) (*Server, error) {
	logger := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{
		reservations: newReservations(cfg.Relay, logger), operators: &operatorCalls{operator: cfg.Operator, logger: logger},
		logger: logger,
	}
	s.routes = newRoutes(cfg.Relay, s.reservations, s.operators)
	var err error
	if s.creds, err = newCredentials(cfg.Files, RoleRelay, cfg.ID, s.logger); err != nil {
		return nil, err
	}
	network := "tcp"
	if cfg.Addr.Addr().Is4() {
		network = "tcp4" // package net would turn 0.0.0.0 into [::]
	}
	l, err := net.Listen(network, cfg.Addr.String())
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	s.listener = connlimit.Listen(sock.NewRetryListener(l.(*net.TCPListener), sock.RetryConfig{OnError: func(err error) {
		s.http.ErrorLog.Print(err) // It limits its rate.
	}}), connlimit.Limits{
		Total: maxConns, PerAddress: maxAddressConns,
		OnReject: func(connlimit.Rejection) { s.counts.connsRefused.Add(1) },
	})
	s.http = s.newHTTP()
	return s, nil
}

// newHTTP returns the HTTP server. HTTP/2 is off: see docs/research/experiments.md.
func (s *Server) newHTTP() *http.Server {
	h := &http.Server{
		Handler:           s,
		TLSConfig:         s.creds.server(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         s.track,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connSince{}, time.Now())
		},
		ErrorLog:  newRateLimitedLog(s.logger, &s.counts.serverErrors),
		Protocols: new(http.Protocols),
	}
	h.Protocols.SetHTTP1(true)
	return h
}

type connSince struct{}

// track counts connections until their goroutines end, and protects those whose certificate
// was accepted, before a request, from others.
func (s *Server) track(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateActive:
		connlimit.Protect(conn, "fleet", maxConns)
	case http.StateClosed:
		s.conns.Done()
	}
}

// Addr returns the address of the listener.
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// Run serves until ctx is done. It returns nil when all goroutines of the server have
// ended, or the error of the listener. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var loops sync.WaitGroup
	loops.Go(func() { s.creds.run(ctx) })
	loops.Go(func() { periodic.Run(ctx, sweepInterval, s.reservations.table.sweep) })
	loops.Go(func() { <-ctx.Done(); s.stop() })
	err := s.http.ServeTLS(s.listener, "", "")
	cancel()
	loops.Wait()
	s.conns.Wait()
	s.reservations.stop()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("cluster: %w", err)
}

func (s *Server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		s.reservations.kill()
		_ = s.http.Close()
	}
}

// Close closes the listener and all connections, of a server that never runs or to end
// Run at once. It may be repeated.
func (s *Server) Close() error {
	s.reservations.kill()
	err := errors.Join(s.http.Close(), s.listener.Close())
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

type ServerStats struct {
	// Answered counts calls that succeeded, Refused those that did not, by the name of
	// the error.
	Answered uint64
	Refused  map[string]uint64
	// Reserved counts reservations of the relay, Repeated calls that got the outcome
	// of an earlier call with the same key.
	Reserved, Repeated uint64
	// Cancelled counts cancelled keys, Ended reservations that were ended because they
	// were cancelled or late.
	Cancelled, Ended uint64
	OperatorCalls    uint64
	// Running is the number of reservations in progress, Remembered that of retained
	// outcomes (at most 32,768). Forgotten counts outcomes that were dropped early.
	Running, Remembered int
	Forgotten           uint64
	// ServerErrors counts errors of the HTTP server, most of them failed handshakes,
	// ConnsRefused connections beyond the limits.
	ServerErrors, ConnsRefused uint64
	NotAfter                   time.Time
}

type serverCounts struct {
	answered, serverErrors, connsRefused atomic.Uint64

	mu     sync.Mutex // guards byName, by the names of errorCodes
	byName map[string]uint64
}

func (c *serverCounts) refused(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName == nil {
		c.byName = make(map[string]uint64)
	}
	c.byName[name]++
}

// Stats returns the counts. It may be called at any time.
func (s *Server) Stats() ServerStats {
	r := s.reservations
	st := ServerStats{
		Answered: s.counts.answered.Load(), Refused: make(map[string]uint64),
		Reserved: r.made.Load(), Repeated: r.repeated.Load(), Cancelled: r.cancelled.Load(), Ended: r.ended.Load(),
		OperatorCalls: s.operators.executed.Load(), ServerErrors: s.counts.serverErrors.Load(), ConnsRefused: s.counts.connsRefused.Load(),
		NotAfter: s.creds.notAfter(),
	}
	st.Running, st.Remembered, st.Forgotten = r.table.sizes()
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	maps.Copy(st.Refused, s.counts.byName)
	return st
}

// logInterval is the least time between two log lines about refused callers, so that
// unauthenticated callers cannot fill the disk.
const logInterval = time.Second

type rateLimitedLog struct {
	logger *slog.Logger
	count  *atomic.Uint64

	mu   sync.Mutex // guards last
	last time.Time
}

func newRateLimitedLog(logger *slog.Logger, count *atomic.Uint64) *log.Logger {
	return log.New(&rateLimitedLog{logger: logger, count: count}, "", 0)
}

func (c *rateLimitedLog) Write(p []byte) (int, error) {
	all := c.count.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.last) >= logInterval {
		c.last = now
		c.logger.Warn("the cluster listener refused a caller", "error", strings.TrimSpace(string(p)), "errors", all)
	}
	return len(p), nil
}
