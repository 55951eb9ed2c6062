package sock

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Group is a set of sockets on one address and port, over which the kernel
// spreads the peers: one peer always comes to the same socket. Its fields are
// immutable after Listen; all methods may be called from any goroutine.
type Group struct {
	cfg    Config // with defaults and the resolved port
	locals *locals
	conns  []*Conn
	caps   Capabilities
}

// Listen binds n sockets, 1 <= n <= MaxSockets, to cfg.Addr. Where the
// platform cannot spread peers over several sockets the group has one.
//
// The first socket is bound without SO_REUSEPORT and opened to the others
// afterwards: so a port that any other socket holds is refused, even one of
// another group of this process, and port 0 never lands on such a port.
func Listen(cfg Config, n int) (*Group, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if n < 1 || n > MaxSockets {
		return nil, fmt.Errorf("%w: %d sockets", ErrConfig, n)
	}
	if !canShare {
		n = 1
	}
	g := &Group{cfg: cfg, locals: newLocals()}
	for i := range n {
		if err := g.open(i > 0, n > 1); err != nil {
			err = fmt.Errorf("sock: socket %d of %d on %v: %w", i+1, n, cfg.Addr, err)
			return nil, errors.Join(err, g.Close())
		}
	}
	g.caps.ReusePort = n > 1
	return g, nil
}

// open adds one socket. join says that the group has sockets already.
func (g *Group) open(join, share bool) error {
	s, err := openSocket(&g.cfg, join)
	if err != nil {
		return err
	}
	c := &Conn{group: g, sock: s, kernel: s, sleep: time.Sleep, done: make(chan struct{})}
	if s.caps.GSO {
		c.segments.Store(maxRunBytes)
	}
	g.conns = append(g.conns, c)
	if join {
		return nil
	}
	g.caps = s.caps
	g.cfg.Addr, err = s.addr()
	if err == nil && share {
		err = s.share()
	}
	return err
}

// Addr returns the address and port the sockets are bound to.
func (g *Group) Addr() netip.AddrPort { return g.cfg.Addr }

// Conns returns the sockets. The slice is the caller's.
func (g *Group) Conns() []*Conn { return append([]*Conn(nil), g.conns...) }

// Capabilities returns what the kernel granted.
func (g *Group) Capabilities() Capabilities { return g.caps }

// LocalAddr returns the local address behind endpoint.Endpoint.Local, and false for 0
// and for numbers this group never gave.
func (g *Group) LocalAddr(local uint16) (netip.Addr, bool) {
	a, ok := g.locals.at(local)
	if !ok {
		return netip.Addr{}, false
	}
	return localIP(a, g.cfg.Addr.Addr().Is4()), true
}

// Wake ends receiving on every socket; see [Conn.Wake].
func (g *Group) StopReceiving() {
	for _, c := range g.conns {
		c.StopReceiving()
	}
}

// Close closes every socket and waits as [Conn.Close] does. It may be called
// several times.
func (g *Group) Close() error {
	var errs []error
	for _, c := range g.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// wildcard reports whether the sockets hear every local address.
func (g *Group) wildcard() bool { return g.cfg.Addr.Addr().IsUnspecified() }
