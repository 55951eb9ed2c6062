package client

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/base/unset"
	"github.com/ferryrelay/ferry/proto"
)

// Config configures a Session. Negative values are invalid.
type Config struct {
	// Ticket is the allocation to bind. Required.
	Ticket Ticket
	// PingPeriod is the time between PINGs; after three without an answer the
	// session binds again. 0 means 1 s; the relay ends an allocation after 10 s
	// of silence.
	PingPeriod time.Duration
	// RetryPeriod is the time between repetitions of an unanswered request, but
	// for the first two, after a quarter and after half of it. 0 means 1 s.
	RetryPeriod time.Duration
	// BindTimeout is how long the first BIND may stay without an answer before
	// the session ends with ErrBindTimeout. 0 means 10 s.
	BindTimeout time.Duration
	// ConnectTimeout is how long Connect asks. 0 means 60 s.
	ConnectTimeout time.Duration
	// MaxContent is the largest datagram in bytes that may be sent. 0 means
	// 1400, the relay's default; the limit is 1434.
	MaxContent int
	// ReceiveQueue is how many datagrams of one peer may wait to be read before
	// the newest is dropped. 0 means 256.
	ReceiveQueue int
	// MaxPeers is how many peers a host keeps at a time. When there are more,
	// the one that was silent longest makes room if that is at least 60 s;
	// otherwise the newcomer is ignored. 0 means 1024.
	MaxPeers int
	// SocketBuffer is the size in bytes asked of the system for each direction
	// of the UDP socket; the system may grant less. 0 means 1 MiB.
	SocketBuffer int
	// FirstNonce is the nonce of the first BIND. A program that takes up an
	// allocation after its own crash gives Stats.Nonce plus one.
	FirstNonce uint16
	// LocalAddr is the address that sockets are bound to. Zero means any.
	LocalAddr netip.Addr
	// Conn, if not nil, is the session's first one, which it owns and closes.
	Conn Conn
	// Listen opens a Conn to an endpoint of the relay: the first one if Conn is nil, and
	// later ones, for Ticket.Alternatives and Roam. Nil: UDP sockets.
	Listen func(server netip.AddrPort) (Conn, error)
	// Logger logs changes of state, not datagrams. Nil disables logs.
	Logger *slog.Logger
}

// Conn carries the datagrams of a [Session], unconnected; *net.UDPConn is one. Several goroutines call
// it. One that has SetReadBuffer and SetWriteBuffer is asked for Config.SocketBuffer.
type Conn interface {
	// ReadFromUDPAddrPort waits for a datagram, until Close. After an error that is not
	// net.ErrClosed, it is called again.
	ReadFromUDPAddrPort(b []byte) (n int, from netip.AddrPort, err error)
	// WriteToUDPAddrPort sends a datagram, or drops it. It does not wait for the network, and
	// does not keep b.
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	LocalAddr() net.Addr
	Close() error
}

var _ Conn = (*net.UDPConn)(nil)

func (c Config) withDefaults() Config {
	c.PingPeriod = cmp.Or(c.PingPeriod, time.Second)
	c.RetryPeriod = cmp.Or(c.RetryPeriod, time.Second)
	c.BindTimeout = cmp.Or(c.BindTimeout, 10*time.Second)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, time.Minute)
	c.MaxContent = cmp.Or(c.MaxContent, proto.DefaultMaxContent)
	c.ReceiveQueue = cmp.Or(c.ReceiveQueue, 256)
	c.MaxPeers = cmp.Or(c.MaxPeers, 1024)
	c.SocketBuffer = cmp.Or(c.SocketBuffer, 1<<20)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	if err := c.Ticket.check(); err != nil {
		return err
	}
	for _, d := range []time.Duration{c.PingPeriod, c.RetryPeriod, c.BindTimeout, c.ConnectTimeout} {
		if d < 0 {
			return fmt.Errorf("%w: a duration is %v", ErrConfig, d)
		}
	}
	if c.ReceiveQueue < 0 || c.MaxPeers < 0 || c.SocketBuffer < 0 {
		return fmt.Errorf("%w: a size is negative", ErrConfig)
	}
	if c.Conn != nil && unset.IsNil(c.Conn) {
		return fmt.Errorf("%w: Conn is a nil %T", ErrConfig, c.Conn)
	}
	if c.MaxContent < 0 || c.MaxContent > proto.MaxContent {
		return fmt.Errorf("%w: MaxContent %d is not within 0 and %d", ErrConfig, c.MaxContent, proto.MaxContent)
	}
	return nil
}

func (c Config) listen(server netip.AddrPort) (Conn, error) {
	if c.Listen != nil {
		return c.Listen(server)
	}
	network := "udp6"
	if server.Addr().Is4() {
		network = "udp4"
	}
	var local *net.UDPAddr
	switch {
	case c.LocalAddr.IsValid():
		local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.LocalAddr, 0))
	case server.Addr().IsLoopback():
		// Windows' firewall asks its user about a program that listens on all addresses.
		local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.Addr(), 0))
	}
	conn, err := net.ListenUDP(network, local)
	if err != nil {
		return nil, fmt.Errorf("client: open socket: %w", err)
	}
	return conn, nil
}

// tune ignores errors: smaller buffers only lose more in bursts.
func (c Config) tune(conn Conn) {
	_ = setReadBuffer(conn, c.SocketBuffer)
	_ = setWriteBuffer(conn, c.SocketBuffer)
}

func setReadBuffer(conn Conn, n int) error {
	if c, ok := conn.(interface{ SetReadBuffer(bytes int) error }); ok {
		return c.SetReadBuffer(n)
	}
	return errors.ErrUnsupported
}

func setWriteBuffer(conn Conn, n int) error {
	if c, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		return c.SetWriteBuffer(n)
	}
	return errors.ErrUnsupported
}
