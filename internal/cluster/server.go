package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

// The limits of the listener.
const (
	// maxConns and maxAddressConns bound the connections of all callers, and those
	// of one address, where there may be 8 API processes.
	maxConns        = 1024
	maxAddressConns = 8 * maxRelayConns
	// readTimeout bounds the time for a handshake, and that for a call of 4 KiB.
	readTimeout = 5 * time.Second
	// writeTimeout bounds a call in all.
	writeTimeout = maxDeadline + 5*time.Second
	// idleTimeout is longer than that of the other side, which so closes first
	// and never sends into a connection that is being closed.
	idleTimeout    = 2 * lineConnIdle
	maxHeaderBytes = 4 << 10
	// connAge is after which time a connection is closed with its next answer, so
	// that no side is believed for longer because of files that have changed.
	connAge = 5 * time.Minute
	// stopWithin bounds the wait for the calls under way when Run ends.
	stopWithin = 3 * time.Second
	// sweepEvery is the time between two looks for outcomes that are over.
	sweepEvery = time.Second
)

// Errors of [NewServer] and [NewDialer], and of a second Run.
var (
	ErrConfig     = errors.New("cluster: bad configuration")
	ErrAlreadyRun = errors.New("cluster: Run was called before")
)

// Relay is what a server asks: a relay of the fleet that can take a reservation
// back. Its methods may be called from several goroutines.
type Relay interface {
	fleet.Remote
	// End ends an allocation. Errors: alloc.ErrNotFound, alloc.ErrUnavailable.
	End(ctx context.Context, id proto.AllocationID) error
}

// Config is what a [Server] is made of. It is not modified after NewServer.
type Config struct {
	// Addr is where to listen; port 0 is any.
	Addr netip.AddrPort
	// Relay answers. Required.
	Relay Relay
	// Operator does what operators ask of that relay. Required.
	Operator Operator
	// ID is the relay's own, which its certificate has to name. Required.
	ID alloc.RelayID
	// Files are the relay's certificate and whom it believes. Required.
	Files Files
	// Logger hears of what operators had the relay do, of reservations that could
	// not be ended, of files that have
	// changed, and of callers that were refused, at most once a second. Nil: no log.
	Logger *slog.Logger
}

// Server is the cluster listener of a relay. Its fields are fixed by NewServer,
// but for those that say otherwise.
type Server struct {
	relay        Relay
	operator     Operator
	creds        *credentials
	attemptTable *attemptTable
	logger       *slog.Logger
	listener     net.Listener
	http         *http.Server
	start        time.Time
	counts       serverCounts

	conns    sync.WaitGroup // connections whose goroutine has not ended
	attempts sync.WaitGroup // reservations under way
	life     context.Context
	kill     context.CancelFunc // ends what attempts wait for
	ran      atomic.Bool
}

// NewServer reads the files and opens the listener. Nothing runs before Run; a
// server that is never run has to be closed. Errors wrap ErrConfig, ErrFiles or
// are the system's.
func NewServer(cfg Config) (*Server, error) {
	switch {
	case cfg.Relay == nil:
		return nil, fmt.Errorf("%w: Relay is nil", ErrConfig)
	case cfg.Operator == nil:
		return nil, fmt.Errorf("%w: Operator is nil", ErrConfig)
	case cfg.ID.IsZero():
		return nil, fmt.Errorf("%w: ID is zero", ErrConfig)
	case !cfg.Addr.IsValid():
		return nil, fmt.Errorf("%w: Addr is no address", ErrConfig)
	}
	s := &Server{
		relay: cfg.Relay, operator: cfg.Operator, attemptTable: newAttemptTable(maxRemembered),
		logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), start: time.Now(),
	}
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
	s.listener = httpapi.LimitListener(l, httpapi.ConnLimits{
		Total: maxConns, PerAddress: maxAddressConns,
		OnReject: func(httpapi.Rejection) { s.counts.connsRefused.Add(1) },
	})
	s.life, s.kill = context.WithCancel(context.Background())
	s.http = s.newHTTP()
	return s, nil
}

// newHTTP makes the HTTP server. HTTP/2 is off: see the figures in doc.go.
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

// connSince is under what a connection's context has the time it began.
type connSince struct{}

// track counts connections from before their goroutine starts until it ends.
func (s *Server) track(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateClosed:
		s.conns.Done()
	}
}

// Addr returns where the server listens.
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// Run serves until ctx ends, and then returns nil once nothing of the server
// runs any more; or the error of the listener. A second call returns
// ErrAlreadyRun.
func (s *Server) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return ErrAlreadyRun
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var loops sync.WaitGroup
	loops.Go(func() { s.creds.run(ctx) })
	loops.Go(func() { s.sweep(ctx) })
	loops.Go(func() { <-ctx.Done(); s.stop() })
	err := s.http.ServeTLS(s.listener, "", "")
	cancel()
	loops.Wait()
	s.conns.Wait()
	s.kill()
	s.attempts.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("cluster: %w", err)
}

// stop takes no more calls and lets those under way finish.
func (s *Server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		s.kill() // what is reserved now is ended
		_ = s.http.Close()
	}
}

// sweep removes expired outcomes when there are no calls.
func (s *Server) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.attemptTable.sweep(s.elapsed())
		}
	}
}

// Close closes the listener and all connections: for a server that is never
// run, or to end Run at once. Closing again does no harm.
func (s *Server) Close() error {
	s.kill()
	err := errors.Join(s.http.Close(), s.listener.Close())
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// elapsed returns the time since the server was created. It does not depend on changes
// of the wall clock.
func (s *Server) elapsed() time.Duration { return time.Since(s.start) }

// ServerStats are counts since the server was made, and gauges of now.
type ServerStats struct {
	// Answered counts calls that were served, Refused those that were not, by the
	// name of the error code.
	Answered uint64
	Refused  map[string]uint64
	// Reserved counts the reservations that the relay made, Repeated the calls
	// that were served from another with the same key.
	Reserved, Repeated uint64
	// Cancelled counts the keys that were cancelled, Ended the reservations that
	// were ended for it, or because they came too late.
	Cancelled, Ended uint64
	// OperatorCalls counts what operators had the relay do.
	OperatorCalls uint64
	// Running and Remembered are the reservations under way, and the outcomes
	// that are remembered. Forgotten counts those forgotten before their time
	// (at most 32,768 are remembered).
	Running, Remembered int
	Forgotten           uint64
	// ServerErrors counts what the HTTP server had to say, most of it failed
	// handshakes; ConnsRefused the connections beyond the limits.
	ServerErrors, ConnsRefused uint64
	// NotAfter is when the certificate in force ends.
	NotAfter time.Time
}

// serverCounts may be changed by any goroutine.
type serverCounts struct {
	answered, reserved, repeated, cancelled, ended, operatorCalls atomic.Uint64
	serverErrors, connsRefused                                    atomic.Uint64

	mu        sync.Mutex // guards byVerdict, whose names are those of verdict.go
	byVerdict map[string]uint64
}

func (c *serverCounts) refused(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byVerdict == nil {
		c.byVerdict = make(map[string]uint64)
	}
	c.byVerdict[name]++
}

// Stats returns the counts. It may be called at any time.
func (s *Server) Stats() ServerStats {
	st := ServerStats{
		Answered: s.counts.answered.Load(), Refused: make(map[string]uint64),
		Reserved: s.counts.reserved.Load(), Repeated: s.counts.repeated.Load(),
		Cancelled: s.counts.cancelled.Load(), Ended: s.counts.ended.Load(),
		OperatorCalls: s.counts.operatorCalls.Load(), ServerErrors: s.counts.serverErrors.Load(), ConnsRefused: s.counts.connsRefused.Load(),
		NotAfter: s.creds.notAfter(),
	}
	st.Running, st.Remembered, st.Forgotten = s.attemptTable.sizes()
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	for name, n := range s.counts.byVerdict {
		st.Refused[name] = n
	}
	return st
}

// logInterval is the least time between two log lines about refused callers, so that
// unauthenticated callers cannot fill the disk.
const logInterval = time.Second

// rateLimitedLog passes on the error log of package net/http, at most one line per
// logInterval.
type rateLimitedLog struct {
	logger *slog.Logger
	count  *atomic.Uint64

	mu   sync.Mutex // guards last
	last time.Time
}

func newRateLimitedLog(logger *slog.Logger, count *atomic.Uint64) *log.Logger {
	return log.New(&rateLimitedLog{logger: logger, count: count}, "", 0)
}

// Write takes one line.
func (c *rateLimitedLog) Write(p []byte) (int, error) {
	all := c.count.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.last) >= logInterval {
		c.last = now
		c.logger.Warn("the cluster listener refused a caller", "why", strings.TrimSpace(string(p)), "errors", all)
	}
	return len(p), nil
}
