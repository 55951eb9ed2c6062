// Package connlimit bounds the connections of a TCP listener, and decides which one is closed at a limit.
package connlimit

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/net/evict"
	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

// The defaults of [Limits].
const (
	DefaultTotal = 4096
	// A school or a mobile network may have hundreds of players behind one address.
	DefaultPerAddress = 256
)

// newcomerShare is the part of the connections that the protected ones leave to others, so
// that a newcomer has the time to bring its token.
const newcomerShare = 16

// Rejection is the limit of a [Listener], and whether the connection was new, and closed unread, or an
// older one in whose place a new one came.
type Rejection string

// The reasons to close a connection.
const (
	RejectedTotal    Rejection = "total"             // Limits.Total
	EvictedTotal     Rejection = "evicted_total"     // Limits.Total
	EvictedAddress   Rejection = "evicted_address"   // Limits.PerAddress
	EvictedProtected Rejection = "evicted_protected" // either; the connection was protected
)

// Limits are those of httpapi.ConnLimits.
type Limits struct {
	Total, PerAddress int
	TrustedProxies    []netip.Prefix
	IdleTimeout       time.Duration
	OnReject          func(Rejection)
}

// Listener accepts connections within limits. At a limit, another connection is closed for the new one:
// one that is not protected, from the network with most of these, the longest without progress. A
// protected one is closed only while the others have at most a sixteenth of the limit. A new connection
// is closed if no other may be, and always if Total is negative.
type Listener struct {
	net.Listener
	conns connTable
}

// Listen returns a listener that accepts connections of l.
func Listen(l net.Listener, limits Limits) *Listener {
	limits.Total = cmp.Or(limits.Total, DefaultTotal)
	limits.PerAddress = cmp.Or(limits.PerAddress, DefaultPerAddress)
	return &Listener{Listener: l, conns: connTable{limits: limits, protectors: make(map[string][]*limitedConn)}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &limitedConn{Conn: conn, table: &l.conns}
		if l.conns.closeFor(l.conns.add(c, addressOf(conn))) {
			return c, nil
		}
		resetConn(conn)
	}
}

// Len returns how many connections count.
func (l *Listener) Len() int {
	l.conns.mu.Lock()
	defer l.conns.mu.Unlock()
	return l.conns.total
}

func addressOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr()
}

// connTable decides which connection is closed at a limit. It has the connections that the
// server reads requests from.
type connTable struct {
	limits Limits

	mu        sync.Mutex // guards what follows, and the fields of connections that say so
	total     int
	open      evict.Networks[*limitedConn] // neither protected nor of a trusted proxy
	protected evict.Networks[*limitedConn]
	// protectors are the protected connections by the name that protects them, those of the
	// last call last.
	protectors map[string][]*limitedConn
}

// At a limit, add returns the connection to close, which may be the new one, and the
// reason.
func (t *connTable) add(c *limitedConn, from netip.Addr) (victim *limitedConn, why Rejection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.setAddress(from)
	victim, why = t.makeRoom(c, t.total >= t.limits.Total)
	if victim != c {
		t.total++
		t.link(c)
	}
	return victim, why
}

// setClient sets the client of a connection from a proxy. It returns what add returns.
func (t *connTable) setClient(c *limitedConn, client netip.Addr) (victim *limitedConn, why Rejection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.gone.Load() || !c.proxy.Load() {
		return nil, ""
	}
	c.setAddress(client)
	victim, why = t.makeRoom(c, false)
	if victim == c {
		c.gone.Store(true)
		t.total--
		return victim, why
	}
	t.link(c)
	return victim, why
}

// makeRoom returns c itself if no other may be closed for it, and nil if c is within the
// limits. The caller holds mu, as for all that follow.
func (t *connTable) makeRoom(c *limitedConn, full bool) (*limitedConn, Rejection) {
	evicted := EvictedTotal
	var it *evict.Conn[*limitedConn]
	switch {
	case !c.proxy.Load() && t.open.Count(c.address)+t.protected.Count(c.address) >= t.limits.PerAddress:
		evicted = EvictedAddress
		it = first(t.open.FirstOf(c.address), t.protected.FirstOf(c.address), t.open.Count(c.address), t.limits.PerAddress)
	case full:
		it = first(t.open.First(), t.protected.First(), t.open.Len(), t.limits.Total)
	default:
		return nil, ""
	}
	if it == nil {
		return c, RejectedTotal
	}
	victim := it.Value
	if victim.protector != "" {
		evicted = EvictedProtected
	}
	t.remove(victim)
	return victim, evicted
}

// There are count open connections; either argument may be nil.
func first(open, protected *evict.Conn[*limitedConn], count, limit int) *evict.Conn[*limitedConn] {
	if protected == nil || count > limit/newcomerShare {
		return open
	}
	return protected
}

func (t *connTable) link(c *limitedConn) {
	switch {
	case c.proxy.Load():
	case c.protector != "":
		c.item = t.protected.Add(c.address, c)
	default:
		c.item = t.open.Add(c.address, c)
	}
}

func (t *connTable) unlink(c *limitedConn) {
	switch {
	case c.item == nil:
	case c.protector != "":
		t.protected.Remove(c.item)
	default:
		t.open.Remove(c.item)
	}
	c.item = nil
}

func (t *connTable) remove(c *limitedConn) {
	if c.gone.Swap(true) {
		return
	}
	t.total--
	t.unprotect(c)
	t.unlink(c)
}

func (t *connTable) unprotect(c *limitedConn) {
	if c.protector == "" {
		return
	}
	t.unlink(c)
	all := t.protectors[c.protector]
	i := slices.Index(all, c)
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(t.protectors, c.protector)
	} else {
		t.protectors[c.protector] = all
	}
	c.protector = ""
	t.link(c)
}

// protect protects a connection, and no longer the one whose last call is the longest ago if
// the name protects more than most.
func (t *connTable) protect(c *limitedConn, name string, most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.gone.Load() || c.proxy.Load() {
		return
	}
	all := t.protectors[name]
	if c.protector == name {
		i := slices.Index(all, c)
		copy(all[i:], all[i+1:])
		all[len(all)-1] = c
		t.protected.Touch(c.item)
		return
	}
	t.unprotect(c)
	t.unlink(c)
	c.protector = name
	t.link(c)
	all = append(all, c)
	t.protectors[name] = all
	if len(all) > most {
		t.unprotect(all[0])
	}
}

func (t *connTable) noteProgress(c *limitedConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case c.item == nil:
	case c.protector != "":
		t.protected.Touch(c.item)
	default:
		t.open.Touch(c.item)
	}
}

func (t *connTable) release(c *limitedConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(c)
}

// closeFor closes the connection that add or setClient returned, and reports whether the
// new one stays, which its caller closes.
func (t *connTable) closeFor(victim *limitedConn, why Rejection) (stays bool) {
	if why == "" {
		return true
	}
	if t.limits.OnReject != nil {
		// Before the close, so that the client's view never precedes the count.
		t.limits.OnReject(why)
	}
	if why == RejectedTotal {
		return false
	}
	resetConn(victim.Conn)
	return true
}

// resetConn closes a connection with a reset, so that the kernel keeps no state of it.
func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// limitedConn is a connection in a connTable, whose lock guards what has no other owner.
type limitedConn struct {
	net.Conn
	table *connTable
	gone  atomic.Bool // from the table
	proxy atomic.Bool // of a trusted proxy, or without an address

	address   netip.Prefix
	item      *evict.Conn[*limitedConn] // nil: it is not closed for others
	protector string                    // empty: none
}

// The caller holds the table's lock.
func (c *limitedConn) setAddress(from netip.Addr) {
	c.proxy.Store(!from.IsValid() || forwarded.Contains(c.table.limits.TrustedProxies, from))
	c.address = forwarded.Prefix(from)
}

// NetConn returns the wrapped connection, as tls.Conn does.
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.gone.Load() && !c.proxy.Load() {
		c.table.noteProgress(c)
	}
	return n, err
}

// SetReadDeadline sets a deadline not later than the idle timeout.
func (c *limitedConn) SetReadDeadline(deadline time.Time) error {
	if idle := c.table.limits.IdleTimeout; idle > 0 && !deadline.IsZero() && !c.gone.Load() && !c.proxy.Load() {
		if latest := time.Now().Add(idle); deadline.After(latest) {
			deadline = latest
		}
	}
	return c.Conn.SetReadDeadline(deadline)
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.table.release(c)
	return err
}

func limitedConnOf(conn net.Conn) *limitedConn {
	for conn != nil {
		if c, ok := conn.(*limitedConn); ok {
			return c
		}
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = outer.NetConn()
	}
	return nil
}

// Protect protects a connection of a [Listener], or one that wraps it, since its client
// has authenticated. One name protects the given number of connections: those for which
// Protect was called last. Protect does nothing to other connections.
func Protect(conn net.Conn, name string, most int) {
	if c := limitedConnOf(conn); c != nil {
		c.table.protect(c, name, most)
	}
}

// SetClient makes a connection of a trusted proxy one of the client that the proxy named, in
// a PROXY header. It does nothing to other connections.
func SetClient(conn net.Conn, client netip.Addr) {
	c := limitedConnOf(conn)
	if c == nil {
		return
	}
	if !c.table.closeFor(c.table.setClient(c, client)) {
		resetConn(c.Conn)
	}
}

// Release makes a connection count no more, such as one of a WebSocket. It does nothing to other
// connections.
func Release(conn net.Conn) {
	if c := limitedConnOf(conn); c != nil {
		c.table.release(c)
	}
}
