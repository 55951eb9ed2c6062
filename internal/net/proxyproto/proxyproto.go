// Package proxyproto reads the PROXY protocol, versions 1 and 2, of connections of trusted proxies.
package proxyproto

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

const defaultProxyTimeout = 5 * time.Second

// Config says whose connections have a header.
type Config struct {
	// Proxies are the networks of the proxies, each of whose connections must
	// begin with a PROXY header. All other connections are passed on unchanged.
	Proxies []netip.Prefix
	// Timeout is the time within which the whole header must arrive. Default 5 s.
	Timeout time.Duration
	// OnClient is called with a connection of a proxy, as the listener accepted it, and the
	// address of its client, once it is known and before bytes after the header are read. It
	// must not block. Several goroutines may call it at once. Default: not called.
	OnClient func(conn net.Conn, client netip.Addr)
	// OnRefuse is called for each connection of a proxy that is closed because it
	// has no valid header. It must not block. Several goroutines may call it at
	// once. Default: not called.
	OnRefuse func(proxy netip.Addr, err error)
}

// Listen returns a listener whose connections have, as remote address, the
// client's address from the header of the PROXY protocol, version 1 or 2. The
// header is required from a proxy, since a client could write its own where it is
// optional. The remote address is the proxy's if the header has no address.
//
// Accept does not wait for a header; the first Read or RemoteAddr of a connection
// does. A listener that calls RemoteAddr in its accept loop, such as one with a
// limit per address, must therefore be below this listener, and TLS above it.
func Listen(l net.Listener, c Config) net.Listener {
	c.Timeout = cmp.Or(c.Timeout, defaultProxyTimeout)
	return &proxyListener{Listener: l, cfg: c}
}

type proxyListener struct {
	net.Listener
	cfg Config
}

// Accept returns the next connection.
func (l *proxyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !forwarded.Contains(l.cfg.Proxies, tcp.AddrPort().Addr()) {
		return conn, nil
	}
	return &proxyConn{Conn: conn, cfg: &l.cfg, remote: tcp}, nil
}

type proxyConn struct {
	net.Conn
	cfg *Config

	header sync.Once // sets what follows
	remote net.Addr
	rest   []byte // bytes after the header; owned by the reader
	err    error

	mu             sync.Mutex // guards what follows
	readDeadline   time.Time  // set by the caller
	headerDeadline time.Time  // zero when the header is not being read
}

// NetConn returns the wrapped connection, whose bytes begin with the header.
func (c *proxyConn) NetConn() net.Conn { return c.Conn }

// RemoteAddr returns the client's address. It waits for the header.
func (c *proxyConn) RemoteAddr() net.Addr {
	c.header.Do(c.readHeader)
	return c.remote
}

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

// readHeader closes the connection if there is no header.
func (c *proxyConn) readHeader() {
	c.setHeaderDeadline(time.Now().Add(c.cfg.Timeout))
	client, rest, err := c.receiveHeader()
	c.setHeaderDeadline(time.Time{})
	if err == nil {
		c.rest = rest
		if client.IsValid() {
			c.remote = net.TCPAddrFromAddrPort(client)
			if c.cfg.OnClient != nil {
				c.cfg.OnClient(c.Conn, client.Addr())
			}
		}
		return
	}
	c.err = err
	if c.cfg.OnRefuse != nil {
		c.cfg.OnRefuse(c.remote.(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone(""), err)
	}
	_ = c.Conn.Close()
}

func (c *proxyConn) receiveHeader() (client netip.AddrPort, rest []byte, err error) {
	buf := make([]byte, proxyMax)
	for n := 0; n < len(buf); {
		m, readErr := c.Conn.Read(buf[n:])
		n += m
		client, size, err := parseProxyHeader(buf[:n])
		if err == nil {
			return client, buf[size:n], nil
		}
		if err != errPartialHeader {
			return client, nil, err
		}
		if readErr != nil {
			return client, nil, readErr
		}
	}
	return client, nil, ErrHeader
}

func (c *proxyConn) setHeaderDeadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headerDeadline = t
	c.applyReadDeadline()
}

func (c *proxyConn) applyReadDeadline() error {
	t := c.readDeadline
	if t.IsZero() || !c.headerDeadline.IsZero() && c.headerDeadline.Before(t) {
		t = c.headerDeadline
	}
	return c.Conn.SetReadDeadline(t)
}

// SetReadDeadline sets the deadline of reads, including those of the header.
func (c *proxyConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readDeadline = t
	return c.applyReadDeadline()
}

// SetDeadline sets the deadline of reads and writes.
func (c *proxyConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(t)
}

// The errors of a PROXY header. Read returns ErrHeader for a connection of a
// proxy without a valid header.
var (
	ErrHeader        = errors.New("proxyproto: the proxy's connection does not begin with a PROXY header")
	errPartialHeader = errors.New("proxyproto: incomplete PROXY header")
)

// The layouts are those of HAProxy's proxy-protocol.txt, versions 1 and 2.
const (
	proxyV1Start = "PROXY "
	proxyV1Max   = 107 // bytes, with CRLF
	proxyV2Start = "\r\n\r\n\x00\r\nQUIT\n"
	proxyV2Len   = 16 // bytes before the addresses
	// proxyMax is the largest accepted header in bytes. The protocol requires a
	// receiver to accept 536; some proxies add the name of a host and of a
	// certificate.
	proxyMax = 2048
)

// parseProxyHeader returns an invalid client if the header has none, and the header's size. It
// fails with errPartialHeader for the beginning of a header, otherwise with ErrHeader.
func parseProxyHeader(b []byte) (client netip.AddrPort, n int, err error) {
	switch {
	case matchesPrefix(b, proxyV2Start):
		return parseProxyV2(b)
	case matchesPrefix(b, proxyV1Start):
		return parseProxyV1(b)
	}
	return netip.AddrPort{}, 0, ErrHeader
}

func matchesPrefix(b []byte, start string) bool {
	n := min(len(b), len(start))
	return string(b[:n]) == start[:n]
}

func parseProxyV1(b []byte) (client netip.AddrPort, n int, err error) {
	end := bytes.Index(b[:min(len(b), proxyV1Max)], []byte("\r\n"))
	if end < 0 {
		if len(b) >= proxyV1Max {
			return client, 0, ErrHeader
		}
		return client, 0, errPartialHeader
	}
	if end < len(proxyV1Start) {
		return client, 0, ErrHeader
	}
	fields := strings.Split(string(b[len(proxyV1Start):end]), " ")
	if fields[0] == "UNKNOWN" {
		return client, end + 2, nil
	}
	if len(fields) != 5 {
		return client, 0, ErrHeader
	}
	from, ok := parseAddrPort(fields[0], fields[1], fields[3])
	_, ok2 := parseAddrPort(fields[0], fields[2], fields[4])
	if !ok || !ok2 {
		return client, 0, ErrHeader
	}
	return from, end + 2, nil
}

func parseAddrPort(family, host, port string) (netip.AddrPort, bool) {
	addr, err := netip.ParseAddr(host)
	number, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || addr.Zone() != "" || family != "TCP4" && family != "TCP6" {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), addr.Is4() == (family == "TCP4")
}

// The values of a version 2 header: version and command, family and protocol.
const (
	proxyV2Local = 0x20 // a connection of the proxy itself, as for a health check
	proxyV2Proxy = 0x21
	proxyV2TCP4  = 0x11
	proxyV2TCP6  = 0x21
	proxyV2Last  = 0x32 // the largest assigned family and protocol
)

func parseProxyV2(b []byte) (client netip.AddrPort, n int, err error) {
	if len(b) < proxyV2Len {
		return client, 0, errPartialHeader
	}
	command, family := b[12], b[13]
	n = proxyV2Len + int(binary.BigEndian.Uint16(b[14:]))
	if n > proxyMax || command != proxyV2Local && command != proxyV2Proxy || family > proxyV2Last || family&15 > 2 {
		return client, 0, ErrHeader
	}
	if len(b) < n {
		return client, 0, errPartialHeader
	}
	if command == proxyV2Local {
		return client, n, nil
	}
	var size int // of one address
	switch family {
	case proxyV2TCP4:
		size = 4
	case proxyV2TCP6:
		size = 16
	default:
		return client, n, nil // Not TCP, so the address is of no use.
	}
	addresses := b[proxyV2Len:n]
	if len(addresses) < 2*size+4 {
		return client, 0, ErrHeader
	}
	addr, _ := netip.AddrFromSlice(addresses[:size])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(addresses[2*size:])), n, nil
}
