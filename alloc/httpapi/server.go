package httpapi

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/forwarded"
)

// The limits of [NewServer]: a client that sends or reads slowly must not hold a
// connection for long.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 10 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 8 << 10
)

// NewServer returns an HTTP server for h with the timeouts and the header limit that a
// public server needs. The caller sets up listener, TLS and error log.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}

// The defaults of [ConnLimits].
const (
	DefaultConnections = 4096
	// A school or a mobile network may have hundreds of players behind one address.
	DefaultAddressConnections = 256
)

// Rejection is the limit for which a connection was closed.
type Rejection string

// The limits of a [LimitListener].
const (
	RejectedTotal   Rejection = "total"   // ConnLimits.Total
	RejectedAddress Rejection = "address" // ConnLimits.PerAddress
)

// ConnLimits are the limits of a [LimitListener].
type ConnLimits struct {
	// Total limits the open connections. Zero: 4096.
	Total int
	// PerAddress limits the open connections from one address, or from the /56 of an
	// IPv6 address. Zero: 64.
	PerAddress int
	// TrustedProxies are networks whose connections count for Total only, because each
	// serves many callers. Nil: none.
	TrustedProxies []netip.Prefix
	// OnReject is called for each connection that was closed unread, by the goroutine
	// that called Accept. It must not block. Nil is allowed.
	OnReject func(Rejection)
}

// LimitListener returns a listener that accepts connections of l within the limits and
// closes others at once. Negative limits reject all connections.
func LimitListener(l net.Listener, c ConnLimits) net.Listener {
	c.Total = cmp.Or(c.Total, DefaultConnections)
	c.PerAddress = cmp.Or(c.PerAddress, DefaultAddressConnections)
	return &limitListener{Listener: l, limits: c, open: make(map[netip.Prefix]int)}
}

// limitListener counts the open connections. They have at most limits.Total addresses.
type limitListener struct {
	net.Listener
	limits ConnLimits

	mu    sync.Mutex // guards the following fields
	total int
	open  map[netip.Prefix]int // by address, without those of trusted proxies
}

// Accept returns the next connection that is within the limits.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, counted := l.addressOf(conn)
		why := l.acquire(address, counted)
		if why == "" {
			return &limitedConn{Conn: conn, release: func() { l.release(address, counted) }}, nil
		}
		if l.limits.OnReject != nil {
			l.limits.OnReject(why) // before the close, so that the client's view never precedes the count
		}
		resetConn(conn)
	}
}

// addressOf returns the key of a connection and whether PerAddress applies. A connection
// without an IP address, such as one of a Unix socket, counts for Total only.
func (l *limitListener) addressOf(conn net.Conn) (netip.Prefix, bool) {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, false
	}
	addr := tcp.AddrPort().Addr()
	return forwarded.Prefix(addr), !forwarded.Contains(l.limits.TrustedProxies, addr)
}

// acquire counts a connection, or returns the limit that it exceeds.
func (l *limitListener) acquire(address netip.Prefix, counted bool) Rejection {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.total >= l.limits.Total:
		return RejectedTotal
	case counted && l.open[address] >= l.limits.PerAddress:
		return RejectedAddress
	}
	l.total++
	if counted {
		l.open[address]++
	}
	return ""
}

func (l *limitListener) release(address netip.Prefix, counted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if !counted {
		return
	}
	if l.open[address]--; l.open[address] == 0 {
		delete(l.open, address)
	}
}

// resetConn closes a connection with a reset, so that the kernel keeps no state of it.
func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// limitedConn is a connection that calls release when it is first closed.
type limitedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

// NetConn returns the wrapped connection, as tls.Conn does, so that its options can be
// set.
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}
