package benchrig

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/pion/dtls/v3"
)

// The transports between an endpoint and the relay, as the Allocations API names them.
const (
	TransportUDP  = "udp"
	TransportDTLS = "dtls"
	TransportWS   = "ws"
	TransportWSS  = "wss"
)

// IsTCP reports whether each endpoint has a TCP connection of its own.
func IsTCP(transport string) bool { return transport == TransportWS || transport == TransportWSS }

// The families of addresses.
const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return FamilyIPv4
	}
	return FamilyIPv6
}

// Connector is a Dialect whose endpoints can use transports other than UDP.
type Connector interface {
	Dialect
	// Carries reports whether the dialect has a meaning over a transport.
	Carries(t string) bool
}

// Server is the address to which an endpoint connects, and what that takes.
type Server struct {
	Addr netip.AddrPort
	// Host is the name for TLS and HTTP; empty: the address.
	Host string
	TLS  *tls.Config         // of wss; nil: the system's authorities are trusted
	DTLS []dtls.ClientOption // of dtls
}

func (s *Server) hostPort() string {
	if s.Host == "" {
		return s.Addr.String()
	}
	return net.JoinHostPort(s.Host, strconv.Itoa(int(s.Addr.Port())))
}

func (s *Server) tlsConfig() *tls.Config {
	cfg := &tls.Config{}
	if s.TLS != nil {
		cfg = s.TLS.Clone()
	}
	cfg.NextProtos = []string{"http/1.1"}
	cfg.DynamicRecordSizingDisabled = true // a message is a record
	if cfg.ServerName == "" {
		if cfg.ServerName = s.Host; s.Host == "" {
			cfg.ServerName = s.Addr.Addr().String()
		}
	}
	return cfg
}

const (
	// connectTimeout is how long a connection or handshake may take.
	connectTimeout = 10 * time.Second
	// maxConnecting bounds those that are made at a time.
	maxConnecting = 64
)

// connecting is a connection that is being made. The goroutine that uses the rig owns it,
// another one sends the result.
type connecting struct {
	server Server
	result chan connected
	dtls   *dtlsHandshake // of TransportDTLS
}

type connected struct {
	records *records
	stream  *stream
	err     error
}

// Dialer makes the connections of the endpoints of a rig, over transports that have some. The
// goroutine that uses the rig uses it.
type Dialer struct {
	rig        *Rig
	connecting map[int]*connecting // by endpoint
	running    sync.WaitGroup
	slots      chan struct{} // one for each connection over TCP that is being made
	ctx        context.Context
	cancel     context.CancelFunc
}

func newDialer(r *Rig) *Dialer {
	d := &Dialer{rig: r, connecting: map[int]*connecting{}, slots: make(chan struct{}, maxConnecting)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

func (d *Dialer) close() {
	d.cancel()
	d.running.Wait()
	for ep, c := range d.connecting {
		delete(d.connecting, ep)
		if got := <-c.result; got.stream != nil {
			_ = got.stream.close()
		}
	}
}

// Connect begins to connect an endpoint by the transport of the plan, or to connect it again;
// [Dialer.Advance] ends it. Over UDP there is nothing to do, and it returns true.
func (d *Dialer) Connect(ctx context.Context, ep int, server Server) (done bool, err error) {
	transport := d.rig.Plan.Transport
	if transport == "" || transport == TransportUDP {
		return true, nil
	}
	if err := d.rig.permit(server.Addr); err != nil {
		return false, err
	}
	c := &connecting{server: server, result: make(chan connected, 1)}
	var run func(context.Context) connected
	if IsTCP(transport) {
		local := d.rig.Plan.Addr(ep)
		run = func(ctx context.Context) connected {
			s, err := dialWebSocket(ctx, local, server, transport == TransportWSS)
			return connected{stream: s, err: err}
		}
	} else {
		h, handshake, err := startDTLS(server)
		if err != nil {
			return false, err
		}
		c.dtls = h
		run = func(ctx context.Context) connected {
			records, err := handshake(ctx)
			return connected{records: records, err: err}
		}
	}
	d.connecting[ep] = c
	d.running.Go(func() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)()
		if IsTCP(transport) { // A handshake of DTLS waits for the rig's goroutine, too.
			select {
			case d.slots <- struct{}{}:
				defer func() { <-d.slots }()
			case <-ctx.Done():
			}
		}
		ctx, cancelTimeout := context.WithTimeout(ctx, connectTimeout)
		defer cancelTimeout()
		c.result <- run(ctx)
	})
	return false, nil
}

// Advance carries the handshakes on, and calls done for each that has ended.
func (d *Dialer) Advance(done func(ep int, err error)) {
	for ep, c := range d.connecting {
		if c.dtls != nil {
			d.sendHandshake(ep, c)
		}
		select {
		case got := <-c.result:
			delete(d.connecting, ep)
			err := got.err
			if err == nil {
				err = d.install(ep, c.server, got)
			}
			if err != nil {
				err = fmt.Errorf("bench: %s from %v to %v: %w", d.rig.Plan.Transport, d.rig.Endpoints[ep].Addr.Addr(), c.server.Addr, err)
			}
			done(ep, err)
		default:
		}
	}
}

func (d *Dialer) sendHandshake(ep int, c *connecting) {
	for {
		select {
		case pkt := <-c.dtls.up:
			_ = d.rig.send(ep, c.server.Addr, pkt) // as if lost: pion repeats it
		default:
			return
		}
	}
}

func (d *Dialer) install(ep int, server Server, c connected) error {
	e := &d.rig.Endpoints[ep]
	if c.records != nil {
		if old, again := e.Cipher.(*records); again {
			*old = *c.records // Flows have it too.
			return nil
		}
		e.Cipher = c.records
		return nil
	}
	s := d.rig.Sockets[e.Socket].Conn.(*streams)
	if old := s.conns[e.Local]; old != nil {
		_ = old.close()
	}
	if e.Addr.Port() != 0 {
		s.counts.Opened++ // again
	}
	e.Addr = c.stream.local
	return s.attach(e.Local, c.stream, server.Addr)
}

// Divert takes a datagram that belongs to the handshake of an endpoint.
func (d *Dialer) Divert(ep int, pkt []byte) bool {
	if len(d.connecting) == 0 {
		return false
	}
	c := d.connecting[ep]
	if c == nil || c.dtls == nil {
		return false
	}
	c.dtls.receive(pkt)
	return true
}

// IsConnecting reports whether the connection of an endpoint is being made.
func (d *Dialer) IsConnecting(ep int) bool { return d.connecting[ep] != nil }

// TakeEnded calls ended for each endpoint whose connection has ended since the last call.
func (r *Rig) TakeEnded(ended func(ep int)) {
	for _, s := range r.Sockets {
		if c, ok := s.Conn.(*streams); ok {
			for _, n := range c.ended {
				if ep := s.Owner(uint16(n)); ep >= 0 {
					ended(int(ep))
				}
			}
			c.ended = c.ended[:0]
		}
	}
}

// Connections returns the counts of all connections; nil if the transport has none.
func (r *Rig) Connections() *Connections {
	if !IsTCP(r.Plan.Transport) {
		return nil
	}
	all := *r.Sockets[0].Conn.(*streams).counts
	for _, s := range r.Sockets {
		for _, c := range s.Conn.(*streams).conns {
			if c != nil {
				all.addInfo(c)
			}
		}
	}
	return &all
}
