package httpapi

import (
	"net"
	"net/netip"
	"sync"
)

// The connections that [LimitListener] lets in where the configuration does
// not say (reliability-security.md 7.3).
const (
	DefaultConnections        = 4096
	DefaultAddressConnections = 64
)

// Refusal says which limit a connection met.
type Refusal string

// The reasons of a refusal.
const (
	RefusedTotal   Refusal = "total"   // ConnLimits.Total
	RefusedAddress Refusal = "address" // ConnLimits.PerAddress
)

// ConnLimits are the limits of a [LimitListener].
type ConnLimits struct {
	// Total is how many connections may be open at once. Zero: 4096.
	Total int
	// PerAddress is how many of them may come from one address, which is the
	// /56 for IPv6. Zero: 64.
	PerAddress int
	// TrustedProxies are networks whose connections count for Total only,
	// since each carries many callers. Nil: none.
	TrustedProxies []netip.Prefix
	// OnRefuse hears of every connection that was closed unread. It must not
	// block, and is called from where Accept is. Nil: nobody.
	OnRefuse func(Refusal)
}

// LimitListener returns a listener that lets connections of l in as long as
// they are within the limits, and closes others at once. Negative limits let
// nobody in.
func LimitListener(l net.Listener, c ConnLimits) net.Listener {
	if c.Total == 0 {
		c.Total = DefaultConnections
	}
	if c.PerAddress == 0 {
		c.PerAddress = DefaultAddressConnections
	}
	return &limitListener{Listener: l, limits: c, open: make(map[netip.Prefix]int)}
}

// limitListener counts the connections that it let in and that were not closed
// yet. There are at most limits.Total addresses among them.
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
		why := l.enter(address, counted)
		if why == "" {
			return &limitedConn{Conn: conn, leave: func() { l.leave(address, counted) }}, nil
		}
		if l.limits.OnRefuse != nil {
			l.limits.OnRefuse(why) // First, so that who sees the end can see the count.
		}
		refuse(conn)
	}
}

// addressOf returns what a connection counts under. A connection that has no
// IP address, as one of a Unix socket, counts for the total only.
func (l *limitListener) addressOf(conn net.Conn) (netip.Prefix, bool) {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, false
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	return networkOf(addr), !contains(l.limits.TrustedProxies, addr)
}

// enter counts a connection, or says why it must not come in.
func (l *limitListener) enter(address netip.Prefix, counted bool) Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.total >= l.limits.Total:
		return RefusedTotal
	case counted && l.open[address] >= l.limits.PerAddress:
		return RefusedAddress
	}
	l.total++
	if counted {
		l.open[address]++
	}
	return ""
}

func (l *limitListener) leave(address netip.Prefix, counted bool) {
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

// refuse closes a connection with a reset, so that the kernel keeps nothing of
// it either.
func refuse(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// limitedConn is a connection that leaves when it is closed for the first time.
type limitedConn struct {
	net.Conn
	once  sync.Once
	leave func()
}

// NetConn returns the connection below, as tls.Conn does, so that its options can
// be set.
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.leave)
	return err
}
