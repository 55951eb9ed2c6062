package cluster

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
	"github.com/ferryrelay/ferry/internal/fleet"
)

// The limits of the calling side.
const (
	// maxRelays bounds the relays that are reached at once; one without calls for
	// connIdleTimeout is removed. Beyond it a call fails.
	maxRelays       = 4096
	connIdleTimeout = 5 * time.Minute
	// lineEvery is the time between two looks for those.
	lineEvery = 30 * time.Second
	// maxRelayConns bounds the calls to one relay at a time, and so the
	// connections. Further calls wait for half of their time, see slot. It is small
	// on purpose: a call that runs out of time takes its connection with it, and
	// the handshakes of a large pool would hold up whatever comes after a relay
	// that stood still.
	maxRelayConns = 16
	// lineConnIdle is how long a connection stays open that is not used.
	lineConnIdle = 30 * time.Second
	// dialWithin bounds connecting, the handshake included, which goes on when the
	// call that wanted it has given up: the next one has use for it.
	dialWithin = 3 * time.Second
	// defaultDeadline is that of a call whose context has none.
	defaultDeadline = 2 * time.Second
)

// ErrNotRunning is wrapped, next to alloc.ErrUnavailable, by the error of a call
// of a dialer that does not run.
var ErrNotRunning = errors.New("cluster: the dialer does not run")

// errBusy is why a call has not begun.
var errBusy = fmt.Errorf("%d calls are under way already", maxRelayConns)

// DialerConfig is what a [Dialer] is made of.
type DialerConfig struct {
	// Files are the API's certificate and whom it believes. Required.
	Files Files
	// Logger hears of files that have changed, and of cancellations that were
	// given up. Nil: no log.
	Logger *slog.Logger
}

// Dialer reaches the relays of a fleet. Its methods may be called from several
// goroutines.
type Dialer struct {
	creds  *credentials
	logger *slog.Logger
	counts dialerCounts

	mu      sync.Mutex // guards the following fields; held for no call
	conns   map[relayKey]*relayConn
	running bool
	ran     bool
	closed  bool            // after Run
	life    context.Context // from Run on; what ends with it
	work    sync.WaitGroup  // calls and cancellations; begins while running
	dials   sync.WaitGroup  // begins until closed
}

var _ fleet.Dialer = (*Dialer)(nil)

// NewDialer reads the files. Nothing runs before Run, and calls before it fail.
// Errors wrap ErrFiles.
func NewDialer(cfg DialerConfig) (*Dialer, error) {
	d := &Dialer{logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), conns: make(map[relayKey]*relayConn)}
	var err error
	if d.creds, err = newCredentials(cfg.Files, RoleAPI, alloc.RelayID{}, d.logger); err != nil {
		return nil, err
	}
	d.creds.changed = d.closeIdle
	return d, nil
}

// Relay returns the relay with that control address and that id. It does not
// connect: calls do, and keep what they have opened.
func (d *Dialer) Relay(n fleet.Node) fleet.Remote {
	return remote{dialer: d, name: relayKey{relay: n.Relay, control: n.Control}}
}

// Run keeps connections and certificates fresh and cancels what was given up,
// until ctx ends. Then it takes no more calls, gives those under way and the
// cancellations a second, and returns nil when nothing of the dialer runs any
// more. A second call returns ErrAlreadyRun.
func (d *Dialer) Run(ctx context.Context) error {
	life, cut := context.WithCancel(context.Background())
	defer cut()
	d.mu.Lock()
	if d.ran {
		d.mu.Unlock()
		return ErrAlreadyRun
	}
	d.ran, d.running, d.life = true, true, life
	d.mu.Unlock()

	var loops sync.WaitGroup
	loops.Go(func() { d.creds.run(ctx) })
	d.sweep(ctx)
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

// finishCancellations lets what is in progress finish for a while, cuts it off, and returns
// when nothing is.
func (d *Dialer) finishCancellations(cut context.CancelFunc) {
	done := make(chan struct{})
	go func() {
		d.work.Wait()
		close(done)
	}()
	timer := time.NewTimer(finishTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	cut()
	<-done
}

// sweep removes relays without recent calls, until ctx ends.
func (d *Dialer) sweep(ctx context.Context) {
	ticker := time.NewTicker(lineEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			d.forget(now.Add(-connIdleTimeout))
		}
	}
}

// forget removes the relays that were not used since then.
func (d *Dialer) forget(since time.Time) {
	d.mu.Lock()
	var idle []*relayConn
	for name, l := range d.conns {
		if l.calls == 0 && !l.used.After(since) {
			idle = append(idle, l)
			delete(d.conns, name)
		}
	}
	d.mu.Unlock()
	for _, l := range idle {
		l.transport.CloseIdleConnections()
	}
}

// closeIdle makes the next calls connect anew, with the certificate of now.
func (d *Dialer) closeIdle() {
	d.mu.Lock()
	var all []*relayConn
	for _, l := range d.conns {
		all = append(all, l)
	}
	d.mu.Unlock()
	for _, l := range all {
		l.transport.CloseIdleConnections()
	}
}

// acquire returns the connection to a relay for one call or cancellation, which has to
// call leave.
func (d *Dialer) acquire(name relayKey) (*relayConn, context.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running {
		return nil, nil, fmt.Errorf("%w: %w", alloc.ErrUnavailable, ErrNotRunning)
	}
	l, ok := d.conns[name]
	if !ok {
		if err := name.check(); err != nil {
			return nil, nil, err
		}
		if len(d.conns) >= maxRelays {
			return nil, nil, fmt.Errorf("%w: cluster: %d relays are in use already", alloc.ErrUnavailable, len(d.conns))
		}
		l = newRelayConn(name, d.newTransport(name.relay))
		d.conns[name] = l
	}
	l.calls++
	d.work.Add(1)
	return l, d.life, nil
}

func (d *Dialer) release(l *relayConn) {
	d.mu.Lock()
	l.calls--
	l.used = time.Now()
	d.mu.Unlock()
	d.work.Done()
}

// relayKey identifies a relay and its address.
type relayKey struct {
	relay   alloc.RelayID
	control string // host:port
}

// check returns an error for a key that does not identify a relay.
func (n relayKey) check() error {
	if _, _, err := net.SplitHostPort(n.control); err != nil || n.relay.IsZero() {
		return fmt.Errorf("%w: cluster: relay %v announces the control address %q", alloc.ErrUnavailable, n.relay, n.control)
	}
	return nil
}

// relayConn is the connection to one relay: a transport and its limits.
type relayConn struct {
	name      relayKey
	transport *http.Transport

	calls int       // under way; guarded by Dialer.mu
	used  time.Time // when the last one ended; guarded by Dialer.mu

	slots   chan struct{} // holds one for each call that may begin
	pending cancelQueue
}

func newRelayConn(name relayKey, t *http.Transport) *relayConn {
	l := &relayConn{name: name, transport: t, slots: make(chan struct{}, maxRelayConns)}
	for range maxRelayConns {
		l.slots <- struct{}{}
	}
	return l
}

// acquireSlot waits until the call may begin, or half of what is left of its time is
// over. Who waited for longer would have too little left: the calls that a relay
// which stood still has held up would begin one after another, run out of time,
// and hold up the next ones, for as long as callers keep coming.
func (l *relayConn) acquireSlot(ctx context.Context) (giveBack func(), err error) {
	select {
	case <-l.slots:
	default:
		until, _ := ctx.Deadline()
		timer := time.NewTimer(time.Until(until) / 2)
		defer timer.Stop()
		select {
		case <-l.slots:
		case <-timer.C:
			return nil, l.name.lost(errBusy)
		case <-ctx.Done():
			return nil, l.name.lost(ctx.Err())
		}
	}
	return func() { l.slots <- struct{}{} }, nil
}

// newTransport returns the connections to one relay: a bounded pool of HTTP/1.1,
// see the figures in doc.go. No proxy of the environment comes between.
func (d *Dialer) newTransport(relay alloc.RelayID) *http.Transport {
	t := &http.Transport{
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.dial(ctx, relay, network, addr)
		},
		MaxConnsPerHost: maxRelayConns, MaxIdleConnsPerHost: maxRelayConns,
		IdleConnTimeout: lineConnIdle, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// dial connects to a relay and makes sure that it is the one. It ends with the
// dialer, if not before.
func (d *Dialer) dial(ctx context.Context, relay alloc.RelayID, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	life, closed := d.life, d.closed
	if !closed {
		d.dials.Add(1)
	}
	d.mu.Unlock()
	if closed {
		return nil, ErrNotRunning
	}
	defer d.dials.Done()
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
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

// DialerStats are counts since the dialer was made, and gauges of now.
type DialerStats struct {
	// Relays are the relays that are reached.
	Relays int
	// Dialed counts connections that were opened.
	Dialed uint64
	// Lost counts reservations whose answer did not come, Cancelled those that a
	// relay has taken back since. The others lapse by themselves: Overflowed
	// counts those that there was no room to remember (4,096 of one relay),
	// GivenUp those that did not reach their relay within 10 s.
	Lost, Cancelled, Overflowed, GivenUp uint64
	// NotAfter is when the certificate in force ends.
	NotAfter time.Time
}

// dialerCounts may be changed by any goroutine.
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
