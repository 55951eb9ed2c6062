package websocket

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// DefaultProxyTimeout is how long a proxy may take to send its header.
const DefaultProxyTimeout = 5 * time.Second

// ProxyConfig says whose connections begin with a PROXY header.
type ProxyConfig struct {
	// Proxies are the networks of the proxies that send one, with every
	// connection. All other connections are passed on untouched.
	Proxies []netip.Prefix
	// Timeout bounds the wait for the whole header. Default 5 s.
	Timeout time.Duration
	// OnRefuse hears of each connection of a proxy without a good header, which
	// is closed. It must not block, and may be called by several goroutines. Nil:
	// nobody.
	OnRefuse func(proxy netip.Addr, err error)
}

// ProxyListener returns a listener whose connections have the address that a
// proxy tells in the PROXY protocol, version 1 or 2. A proxy must send the
// header: where it may be left out, a client could write its own. A client's
// address that the header leaves out is the proxy's.
//
// Accept never waits for a header: the first Read or RemoteAddr of a connection
// does. So what calls RemoteAddr in its accept loop, such as a limit per
// address, belongs below this listener, and TLS above it.
func ProxyListener(l net.Listener, c ProxyConfig) net.Listener {
	c.Timeout = or(c.Timeout, DefaultProxyTimeout)
	return &proxyListener{Listener: l, cfg: c}
}

type proxyListener struct {
	net.Listener
	cfg ProxyConfig
}

// Accept returns the next connection.
func (l *proxyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !trusts(l.cfg.Proxies, plain(tcp.AddrPort().Addr())) {
		return conn, nil
	}
	return &proxyConn{Conn: conn, cfg: &l.cfg, remote: tcp}, nil
}

// proxyConn is a connection of a proxy.
type proxyConn struct {
	net.Conn
	cfg *ProxyConfig

	header sync.Once // fills what follows
	remote net.Addr
	rest   []byte // read with the header; the reader's afterwards
	err    error

	mu      sync.Mutex // guards what follows
	wanted  time.Time  // the caller's deadline of reads
	reading time.Time  // the header's, zero when it was read
}

// NetConn returns the connection below, whose bytes begin with the header.
func (c *proxyConn) NetConn() net.Conn { return c.Conn }

// RemoteAddr returns the client's address. It waits for the header.
func (c *proxyConn) RemoteAddr() net.Addr {
	c.header.Do(c.readHeader)
	return c.remote
}

// Read reads what follows the header.
func (c *proxyConn) Read(p []byte) (int, error) {
	c.header.Do(c.readHeader)
	if c.err != nil {
		return 0, c.err
	}
	if len(c.rest) == 0 {
		c.rest = nil
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// readHeader reads the header, or closes the connection.
func (c *proxyConn) readHeader() {
	c.setReading(time.Now().Add(c.cfg.Timeout))
	client, rest, err := c.parse()
	c.setReading(time.Time{})
	if err == nil {
		c.rest = rest
		if client.IsValid() {
			c.remote = net.TCPAddrFromAddrPort(client)
		}
		return
	}
	c.err = err
	if c.cfg.OnRefuse != nil {
		c.cfg.OnRefuse(plain(c.remote.(*net.TCPAddr).AddrPort().Addr()), err)
	}
	_ = c.Conn.Close()
}

func (c *proxyConn) parse() (client netip.AddrPort, rest []byte, err error) {
	buf := make([]byte, proxyMax)
	for n := 0; n < len(buf); {
		got, err := c.Conn.Read(buf[n:])
		n += got
		client, size, parsed := parseProxyHeader(buf[:n])
		if parsed == nil {
			return client, buf[size:n], nil
		}
		if parsed != errMoreHeader {
			return client, nil, parsed
		}
		if err != nil {
			return client, nil, err
		}
	}
	return client, nil, ErrProxyHeader
}

// setReading sets the deadline of the header.
func (c *proxyConn) setReading(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = t
	c.apply()
}

// apply sets the earlier of both deadlines.
func (c *proxyConn) apply() error {
	t := c.wanted
	if t.IsZero() || !c.reading.IsZero() && c.reading.Before(t) {
		t = c.reading
	}
	return c.Conn.SetReadDeadline(t)
}

// SetReadDeadline sets the deadline of reads, the header's included.
func (c *proxyConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = t
	return c.apply()
}

// SetDeadline sets the deadline of reads and writes.
func (c *proxyConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(t)
}
