package bench

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/pion/dtls/v3"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// lyingServer is a relay over sockets that does known things to messages. A message begins with
// the number of the endpoint that it goes to and of that which sends it; greeting stands for the
// first in a message that binds the second, and comes back.
type lyingServer struct {
	transport string
	addr      netip.AddrPort
	tls       *tls.Config

	forget func(n int) bool // message n of the load is lost; nil: none
	stop   func(n int) bool // from message n on no connection is read
	down   func(n int) bool // with message n all connections end, and stay away for downFor
	whole  func()           // is called when all endpoints have bound again, and messages arrived after that

	mu        sync.Mutex // guards everything below
	conns     map[uint32]*lyingConn
	open      map[*lyingConn]bool
	load      int // messages
	lost      int
	forwarded int
	stopped   bool
	ended     time.Time // all connections; zero: they were not
	endpoints int
	after     int // messages forwarded since all endpoints have bound again
}

type lyingConn struct {
	read  func() ([]byte, error)
	write func([]byte) error
	close func()
}

const (
	greeting   = 0xFFFFFFFF
	lyingLen   = 8 // of the header of a message
	downFor    = 500 * time.Millisecond
	lyingKey   = "the key of all endpoints"
	serverWait = 30 * time.Second
	// lostWait is how long a run waits for what will not arrive.
	lostWait = 5 * time.Second
)

var (
	_       benchrig.Connector = (*lyingServer)(nil)
	errDown                    = errors.New("the relay is down")
)

func (l *lyingServer) listen(t *testing.T) {
	t.Helper()
	l.conns, l.open = map[uint32]*lyingConn{}, map[*lyingConn]bool{}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	t.Cleanup(func() { cancel(); l.endAll(); serving.Wait() })
	if l.transport == benchrig.TransportDTLS {
		listener, err := dtls.ListenWithOptions("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)},
			dtls.WithPSK(func([]byte) ([]byte, error) { return []byte(lyingKey), nil }),
			dtls.WithCipherSuites(dtls.TLS_PSK_WITH_AES_128_GCM_SHA256))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		l.addr = netip.MustParseAddrPort(listener.Addr().String())
		serving.Go(func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				serving.Go(func() {
					buf := make([]byte, 2048)
					l.serve(&lyingConn{
						read:  func() ([]byte, error) { n, err := c.Read(buf); return buf[:n], err },
						write: func(b []byte) error { _, err := c.Write(b); return err },
						close: func() { _ = c.Close() },
					})
				})
			}
		})
		return
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		serving.Add(1)
		defer serving.Done()
		l.serve(&lyingConn{
			read:  func() ([]byte, error) { _, b, err := c.Read(ctx); return b, err },
			write: func(b []byte) error { return c.Write(ctx, websocket.MessageBinary, b) },
			close: func() { _ = c.CloseNow() },
		})
	}))
	if l.transport == benchrig.TransportWSS {
		server.StartTLS()
		l.tls = server.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	l.addr = netip.MustParseAddrPort(server.Listener.Addr().String())
}

func (l *lyingServer) endAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		c.close()
	}
}

func (l *lyingServer) serve(c *lyingConn) {
	l.mu.Lock()
	l.open[c] = true
	l.mu.Unlock()
	defer func() {
		c.close()
		l.mu.Lock()
		delete(l.open, c)
		l.mu.Unlock()
	}()
	for {
		msg, err := c.read()
		if err != nil || l.take(c, msg) != nil {
			return
		}
	}
}

func (l *lyingServer) take(c *lyingConn, msg []byte) error {
	to, from := binary.BigEndian.Uint32(msg), binary.BigEndian.Uint32(msg[4:])
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended.IsZero() && time.Since(l.ended) < downFor {
		return errDown
	}
	if to == greeting {
		l.conns[from] = c
		return c.write(msg)
	}
	l.load++
	switch {
	case l.stopped || l.stop != nil && l.stop(l.load):
		l.stopped = true
		l.mu.Unlock()
		<-l.whenClosed(c)
		l.mu.Lock()
		return errDown
	case l.down != nil && l.down(l.load):
		l.ended = time.Now()
		clear(l.conns)
		for open := range l.open {
			go open.close()
		}
		return errDown
	case l.forget != nil && l.forget(l.load):
		l.lost++
		return nil
	}
	if other := l.conns[to]; other != nil && other.write(msg) == nil {
		l.forwarded++
		if !l.ended.IsZero() && len(l.conns) == l.endpoints {
			if l.after++; l.after == 10*l.endpoints && l.whole != nil {
				l.whole()
			}
		}
	} else {
		l.lost++
	}
	return nil
}

func (l *lyingServer) whenClosed(c *lyingConn) <-chan struct{} {
	closed := make(chan struct{})
	var once sync.Once
	l.mu.Lock()
	defer l.mu.Unlock()
	end := c.close
	c.close = func() { once.Do(func() { close(closed) }); end() }
	return closed
}

func (l *lyingServer) Name() string { return "lying" }

func (l *lyingServer) Carries(t string) bool { return t == l.transport }

func (l *lyingServer) Open(ctx context.Context, p benchrig.Plan) (*benchrig.Rig, error) {
	r, err := benchrig.NewRig(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	bound := map[int]bool{}
	l.mu.Lock()
	l.endpoints = p.Len()
	l.mu.Unlock()
	for ep := range r.Endpoints {
		server := &benchrig.Server{Addr: l.addr, TLS: l.tls, DTLS: benchrig.PSK([]byte("endpoint"), []byte(lyingKey))}
		if _, err := r.Dialer.Connect(ctx, ep, *server); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		hello := binary.BigEndian.AppendUint32(nil, greeting)
		hello = binary.BigEndian.AppendUint32(hello, uint32(ep))
		e := &r.Endpoints[ep]
		e.Relay, e.Keepalive, e.Rebind, e.Server, e.Renew = l.addr, hello, hello, server, func() []byte { return hello }
	}
	err = r.Await(ctx, func() bool { return len(bound) == p.Len() }, func(time.Time) (err error) {
		r.Dialer.Advance(func(ep int, failed error) {
			if err = errors.Join(err, failed); err == nil {
				err = r.SendTo(ep, l.addr, r.Endpoints[ep].Rebind)
			}
		})
		return err
	}, func(ep int, _ netip.AddrPort, _ []byte) { bound[ep] = true })
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	for ep := range r.Endpoints {
		r.Endpoints[ep].Offset = lyingLen
	}
	for _, link := range p.Flows {
		prefix := binary.BigEndian.AppendUint32(nil, uint32(link.To))
		r.Flows = append(r.Flows, benchrig.Flow{
			From: link.From, To: link.To, Dst: l.addr, Prefix: binary.BigEndian.AppendUint32(prefix, uint32(link.From)),
		})
	}
	r.Explain = func(_ int, pkt []byte) string {
		if len(pkt) == lyingLen {
			return benchrig.Answer
		}
		return benchrig.Foreign
	}
	return r, nil
}

func runLying(t *testing.T, l *lyingServer, cfg Config) Result {
	t.Helper()
	l.listen(t)
	cfg.Transport, cfg.Warmup, cfg.Drain = l.transport, -1, cmp.Or(cfg.Drain, lostWait)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.whole = cancel
	r, err := Run(ctx, cfg, Dialect{l})
	if err != nil && (l.down == nil || ctx.Err() == nil) {
		t.Fatal(err)
	}
	if r.Sent+r.SendFailed+r.Unsent+r.Blocked != r.Offered {
		t.Errorf("%d offered: sent %d, failed %d, not sent %d, blocked %d", r.Offered, r.Sent, r.SendFailed, r.Unsent, r.Blocked)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down == nil {
		within2(t, "delivered", r.Delivered, uint64(l.forwarded))
	} else if r.Delivered > uint64(l.forwarded) { // What a connection had not delivered when it ended is lost.
		t.Errorf("%d delivered of %d forwarded", r.Delivered, l.forwarded)
	}
	return r
}

var connected = []string{benchrig.TransportDTLS, benchrig.TransportWS, benchrig.TransportWSS}

// TestLossByTransport: what the relay loses is counted, and is the server's.
func TestLossByTransport(t *testing.T) {
	t.Parallel()
	for _, transport := range connected {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			l := &lyingServer{transport: transport, forget: func(n int) bool { return n%4 == 0 }}
			r := runLying(t, l, Config{Load: Load{Matches: 3, Rate: 300, Duration: time.Second}})
			// On a busy machine a datagram may be lost before it comes to the server, too.
			within2(t, "lost", r.Lost, r.Sent-uint64(l.forwarded))
			if r.Lost < uint64(l.lost) || l.lost < int(r.Sent)/10 {
				t.Errorf("lost: %d of %d, the server lost %d", r.Lost, r.Sent, l.lost)
			}
			within2(t, "in the latency", r.Latency.Lost, r.Offered-r.Delivered)
			if r.Latency.P90 != figures.Lost || !r.CausedBy(limitServer) || r.Duplicated+r.Corrupt+r.Misdelivered != 0 {
				t.Errorf("p90 %v, causes %+v, result %+v", r.Latency.P90, r.Causes, r)
			}
		})
	}
}

// TestBlockedByTransport: a relay that does not read is no lag of the generator. What waits and
// what is not sent is the server's.
func TestBlockedByTransport(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{benchrig.TransportWS, benchrig.TransportWSS} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			const read = 100
			l := &lyingServer{transport: transport, stop: func(n int) bool { return n > read }}
			r := runLying(t, l, Config{
				Load: Load{Matches: 1, Rate: 6000, Payload: 1400, Direction: directionUp, Duration: 6 * time.Second, Drain: time.Second},
			})
			c := r.Connections
			if r.Blocked == 0 || c.Waited == 0 || c.WindowClosed < 100*time.Millisecond || c.Backlogged != 0 && r.Valid || r.SendFailed != 0 {
				t.Errorf("blocked %d, failed %d, connections %+v", r.Blocked, r.SendFailed, c)
			}
			if r.Delivered != read || !r.CausedBy(limitServer) {
				t.Errorf("%d delivered, causes %+v", r.Delivered, r.Causes)
			}
			if lag := r.Generator.Lag.Max; lag > 5*time.Second { // One that waited would have nearly the whole run.
				t.Errorf("lag %v", lag)
			}
		})
	}
}

// TestRestartByTransport: when the relay ends all connections, endpoints connect and bind again,
// and the gap is the time without them.
func TestRestartByTransport(t *testing.T) {
	t.Parallel()
	for _, transport := range connected {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			const endpoints = 6
			restarted := false
			l := &lyingServer{transport: transport, down: func(n int) bool {
				again := restarted
				restarted = restarted || n == 200
				return n == 200 && !again
			}}
			// The run ends when all is well again. Over DTLS three keep-alives without an answer say that it is not.
			r := runLying(t, l, Config{
				Load: Load{Matches: 3, Rate: 300, Duration: time.Minute, Drain: time.Second, Keepalive: time.Second},
			})
			v := r.Recovery
			if v == nil || v.Endpoints != endpoints || v.Bound != endpoints || v.Latency.Samples < endpoints {
				t.Fatalf("recovery %+v, errors %v", v, r.Errors)
			}
			if c := r.Connections; transport != benchrig.TransportDTLS && (c.Ended < endpoints || c.Opened < endpoints) {
				t.Errorf("connections %+v", c)
			}
			// A gap begins with the first datagram after the last arrival, which may be late.
			least := downFor/2 - r.Generator.Lag.Max
			if r.Gaps.Longest < least || r.Gaps.Endpoint < least || !r.CausedBy(limitServer) {
				t.Errorf("gaps %+v, want %v, causes %+v", r.Gaps, least, r.Causes)
			}
		})
	}
}
