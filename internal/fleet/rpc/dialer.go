package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

const (
	// maxRelays bounds the relays with a connection pool. Calls to further relays fail.
	maxRelays = 4096
	// connIdleTimeout is the time after which a relay without calls is removed.
	connIdleTimeout   = 5 * time.Minute
	idleCheckInterval = 30 * time.Second
	// maxRelayConns bounds the concurrent calls to one relay, and with them the
	// connections. It is small on purpose: a call that times out closes its connection, and after a
	// stall of the relay the handshakes of a large pool would delay all later calls.
	maxRelayConns = 16
	relayConnIdle = 30 * time.Second
	// dialTimeout bounds connecting, including the handshake. A dial continues when its
	// call has given up, for use by the next call.
	dialTimeout     = 3 * time.Second
	defaultDeadline = 2 * time.Second
)

// ErrNotRunning is wrapped, next to alloc.ErrUnavailable, by errors of calls when the
// dialer does not run.
var ErrNotRunning = errors.New("cluster: the dialer does not run")

var errBusy = fmt.Errorf("%d calls are in progress", maxRelayConns)

type DialerConfig struct {
	Files  Files
	Logger *slog.Logger
}

// Dialer calls the relays of a fleet. Its methods may be called concurrently.
type Dialer struct {
	creds  *credentials
	logger *slog.Logger
	counts dialerCounts

	mu      sync.Mutex // guards the following fields; not held during calls
	conns   map[relayKey]*relayConn
	running bool
	closed  bool            // after Run
	runCtx  context.Context // set by Run; done when Run ends
	work    sync.WaitGroup  // calls and cancellations; begins while running
	dials   sync.WaitGroup  // begins until closed
}

var _ placement.Dialer = (*Dialer)(nil)

// NewDialer reads the certificate files. It starts no goroutine, and calls fail before
// Run. Errors wrap ErrFiles.
func NewDialer(cfg DialerConfig) (*Dialer, error) {
	d := &Dialer{logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), conns: make(map[relayKey]*relayConn)}
	var err error
	if d.creds, err = newCredentials(cfg.Files, RoleAPI, alloc.RelayID{}, d.logger); err != nil {
		return nil, err
	}
	d.creds.changed = d.closeIdle
	return d, nil
}

// Relay returns the relay with that control address and id. It opens no connection;
// calls do, and reuse them.
func (d *Dialer) Relay(n placement.Node) placement.Relay {
	return remote{dialer: d, key: relayKey{relay: n.Relay, control: n.Control}, lacks: n.Lacks(), version: n.Version}
}

// Run sends cancellations and reloads certificates until ctx is done. It then accepts
// no more calls, waits up to a second for calls and cancellations in progress, and
// returns nil when all goroutines of the dialer have ended. It can be called once.
func (d *Dialer) Run(ctx context.Context) error {
	runCtx, cut := context.WithCancel(context.Background())
	defer cut()
	d.mu.Lock()
	d.running, d.runCtx = true, runCtx
	d.mu.Unlock()

	var loops sync.WaitGroup
	loops.Go(func() { d.creds.run(ctx) })
	periodic.Run(ctx, idleCheckInterval, func() { d.forget(time.Now().Add(-connIdleTimeout)) })
	loops.Wait()

	d.mu.Lock()
	d.running = false
	d.mu.Unlock()
	d.finishCancellations(cut)
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.dials.Wait()
	d.forget(time.Now())
	return nil
}

// finishCancellations waits up to finishTimeout for calls in progress, then cancels the
// rest and waits for them.
func (d *Dialer) finishCancellations(cut context.CancelFunc) {
	done := make(chan struct{})
	go func() {
		d.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(finishTimeout):
	}
	cut()
	<-done
}

func (d *Dialer) forget(since time.Time) {
	d.mu.Lock()
	var idle []*relayConn
	for key, rc := range d.conns {
		if rc.calls == 0 && !rc.used.After(since) {
			idle = append(idle, rc)
			delete(d.conns, key)
		}
	}
	d.mu.Unlock()
	for _, rc := range idle {
		rc.transport.CloseIdleConnections()
	}
}

// closeIdle closes idle connections, so that further calls use the current certificate.
func (d *Dialer) closeIdle() {
	d.mu.Lock()
	var all []*relayConn
	for _, rc := range d.conns {
		all = append(all, rc)
	}
	d.mu.Unlock()
	for _, rc := range all {
		rc.transport.CloseIdleConnections()
	}
}

// acquire returns the connection to a relay for one call or cancellation, which must
// call release.
func (d *Dialer) acquire(key relayKey) (*relayConn, context.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running {
		return nil, nil, fmt.Errorf("%w: %w", alloc.ErrUnavailable, ErrNotRunning)
	}
	rc, ok := d.conns[key]
	if !ok {
		if err := key.check(); err != nil {
			return nil, nil, err
		}
		if len(d.conns) >= maxRelays {
			return nil, nil, fmt.Errorf("%w: cluster: %d relays are in use already", alloc.ErrUnavailable, len(d.conns))
		}
		rc = newRelayConn(key, d.newTransport(key.relay))
		d.conns[key] = rc
	}
	rc.calls++
	d.work.Add(1)
	return rc, d.runCtx, nil
}

func (d *Dialer) release(rc *relayConn) {
	d.mu.Lock()
	rc.calls--
	rc.used = time.Now()
	d.mu.Unlock()
	d.work.Done()
}

type relayKey struct {
	relay   alloc.RelayID
	control string // host:port
}

func (k relayKey) check() error {
	if _, _, err := net.SplitHostPort(k.control); err != nil || k.relay.IsZero() {
		return fmt.Errorf("%w: cluster: relay %v announces the control address %q", alloc.ErrUnavailable, k.relay, k.control)
	}
	return nil
}

type relayConn struct {
	key       relayKey
	transport *http.Transport

	calls int       // in progress; guarded by Dialer.mu
	used  time.Time // when the last call ended; guarded by Dialer.mu

	slots   chan struct{} // holds one value for each slot in use
	pending cancelQueue
}

func newRelayConn(key relayKey, t *http.Transport) *relayConn {
	return &relayConn{key: key, transport: t, slots: make(chan struct{}, maxRelayConns)}
}

// acquireSlot waits for a slot for up to half of the time that the call has left. After
// a longer wait too little time would be left: calls that a stalled relay has delayed
// would start one after another, time out, and delay the next ones, for as long as
// callers keep coming.
func (rc *relayConn) acquireSlot(ctx context.Context) (release func(), err error) {
	select {
	case rc.slots <- struct{}{}:
	default:
		until, _ := ctx.Deadline()
		select {
		case rc.slots <- struct{}{}:
		case <-time.After(time.Until(until) / 2):
			return nil, rc.key.wrap(errBusy)
		case <-ctx.Done():
			return nil, rc.key.wrap(ctx.Err())
		}
	}
	return func() { <-rc.slots }, nil
}

// newTransport returns a bounded pool of HTTP/1.1 connections to one relay, see
// docs/research/experiments.md. It ignores the proxy settings of the environment.
func (d *Dialer) newTransport(relay alloc.RelayID) *http.Transport {
	t := &http.Transport{
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.dial(ctx, relay, network, addr)
		},
		MaxConnsPerHost: maxRelayConns, MaxIdleConnsPerHost: maxRelayConns,
		IdleConnTimeout: relayConnIdle, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// dial connects to a relay and verifies its certificate. It ends with the dialer at the
// latest.
func (d *Dialer) dial(ctx context.Context, relay alloc.RelayID, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	runCtx, closed := d.runCtx, d.closed
	if !closed {
		d.dials.Add(1)
	}
	d.mu.Unlock()
	if closed {
		return nil, ErrNotRunning
	}
	defer d.dials.Done()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(runCtx, cancel)()
	var raw net.Dialer
	conn, err := raw.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, d.creds.client(relay))
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	d.counts.dialed.Add(1)
	return secure, nil
}

type DialerStats struct {
	Relays int
	Dialed uint64
	// Lost counts reservations whose answer did not arrive, Cancelled those of them
	// that a relay has cancelled since. The others expire unbound: Overflowed counts
	// those beyond the queue of a relay (4,096), GivenUp those whose cancellation did
	// not reach the relay within 10 s.
	Lost, Cancelled, Overflowed, GivenUp uint64
	NotAfter                             time.Time
}

type dialerCounts struct {
	dialed, lost, cancelled, overflowed, givenUp atomic.Uint64
}

// Stats returns the counts. It may be called at any time.
func (d *Dialer) Stats() DialerStats {
	d.mu.Lock()
	lines := len(d.conns)
	d.mu.Unlock()
	return DialerStats{
		Relays: lines, Dialed: d.counts.dialed.Load(), Lost: d.counts.lost.Load(),
		Cancelled: d.counts.cancelled.Load(), Overflowed: d.counts.overflowed.Load(),
		GivenUp: d.counts.givenUp.Load(), NotAfter: d.creds.notAfter(),
	}
}
