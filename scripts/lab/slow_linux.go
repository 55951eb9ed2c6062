package lab

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// slowHeader begins a request of which every second one more byte comes. Its
// header has no end.
const slowHeader = "POST /v1/allocate HTTP/1.1\r\nHost: relay.example.org\r\nX-Slow: "

// SlowCallers hold connections to an HTTP server and send a byte a second over
// each of them. Whoever is cut off calls again. The fields are fixed but for the
// counts; the goroutine of Run owns the connections.
type SlowCallers struct {
	from  Namespace
	to    netip.AddrPort
	conns []*slowConn

	open atomic.Int64 // now, as far as they know
	cut  atomic.Int64 // by the server, ever
}

// slowConn is one caller.
type slowConn struct {
	addr net.TCPAddr
	conn net.Conn // nil: cut off
	sent int      // bytes of the request
}

// NewSlowCallers returns n callers from as many addresses, in order from first,
// as it takes if each has perAddress of them. Nothing is opened before Run.
func NewSlowCallers(from Namespace, to netip.AddrPort, first netip.Addr, n, perAddress int) *SlowCallers {
	s := &SlowCallers{from: from, to: to}
	for i := range n {
		if i > 0 && i%perAddress == 0 {
			first = first.Next()
		}
		s.conns = append(s.conns, &slowConn{addr: net.TCPAddr{IP: first.AsSlice()}})
	}
	return s
}

// Open returns how many connections there are, and Cut how many the server has
// ended so far.
func (s *SlowCallers) Open() int { return int(s.open.Load()) }

// Cut returns how many connections the server has ended so far.
func (s *SlowCallers) Cut() int { return int(s.cut.Load()) }

// Run calls until ctx ends and then hangs up.
func (s *SlowCallers) Run(ctx context.Context) {
	defer s.hangUp()
	for ctx.Err() == nil {
		begin := time.Now()
		// On a thread of the namespace, since dialling does not change threads.
		_ = s.from.Do(func() error { s.round(ctx); return nil })
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(begin.Add(time.Second))):
		}
	}
}

// round lets each caller send one byte, or call again.
func (s *SlowCallers) round(ctx context.Context) {
	for _, c := range s.conns {
		if ctx.Err() != nil {
			return
		}
		if c.conn == nil {
			c.dial(ctx, s.to)
			if c.conn != nil {
				s.open.Add(1)
			}
			continue
		}
		if c.next() != nil {
			s.end(c)
			s.cut.Add(1)
		}
	}
}

// dial leaves the caller without a connection if there is none to be had.
func (c *slowConn) dial(ctx context.Context, to netip.AddrPort) {
	d := net.Dialer{LocalAddr: &c.addr, Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err == nil {
		c.conn, c.sent = conn, 0
	}
}

// next sends one more byte.
func (c *slowConn) next() error {
	b := byte('x')
	if c.sent < len(slowHeader) {
		b = slowHeader[c.sent]
	}
	c.sent++
	_, err := c.conn.Write([]byte{b})
	return err
}

func (s *SlowCallers) end(c *slowConn) {
	// What it was good for is known.
	_ = c.conn.Close()
	c.conn = nil
	s.open.Add(-1)
}

func (s *SlowCallers) hangUp() {
	for _, c := range s.conns {
		if c.conn != nil {
			s.end(c)
		}
	}
}
