package game

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
)

// Transport implements engine.Transport with channels, for players of the same process.
type Transport struct {
	last     atomic.Uint64
	sessions sync.Map // serial to *Conn
	intake   atomic.Pointer[engine.Intake]
}

var _ engine.Transport = (*Transport)(nil)

func (*Transport) Name() string    { return "channels" }
func (*Transport) MaxMessage() int { return 1472 }

func (t *Transport) IsOpen(serial uint64) bool {
	_, ok := t.sessions.Load(serial)
	return ok
}

func (t *Transport) Send(serial uint64, pkt []byte) bool {
	c, ok := t.sessions.Load(serial)
	if !ok || len(pkt) == 0 {
		return ok
	}
	select {
	case c.(*Conn).arrived <- append([]byte(nil), pkt...):
		return true
	default:
		return false
	}
}

func (t *Transport) Run(ctx context.Context, in engine.Intake) error {
	t.intake.Store(&in)
	<-ctx.Done()
	t.intake.Store(nil)
	return nil
}

// Dial returns a connection of one player.
func (t *Transport) Dial(server netip.AddrPort) (client.Conn, error) {
	c := &Conn{transport: t, server: server, serial: t.last.Add(1), arrived: make(chan []byte, 64), closed: make(chan struct{})}
	t.sessions.Store(c.serial, c)
	return c, nil
}

// Conn implements client.Conn.
type Conn struct {
	transport *Transport
	server    netip.AddrPort
	serial    uint64
	arrived   chan []byte
	once      sync.Once
	closed    chan struct{}
}

func (c *Conn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case pkt := <-c.arrived:
		return copy(b, pkt), c.server, nil
	case <-c.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (c *Conn) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	if in := c.transport.intake.Load(); in != nil {
		(*in).Deliver(c.serial, b)
	}
	return len(b), nil
}

func (c *Conn) LocalAddr() net.Addr { return &net.UDPAddr{} }

func (c *Conn) Close() error {
	c.once.Do(func() {
		c.transport.sessions.Delete(c.serial)
		close(c.closed)
	})
	return nil
}
