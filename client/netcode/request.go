package netcode

import (
	"net"
	"net/netip"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Request is a Listen or Connect that the next Update makes.
type Request struct {
	at      address.Addr
	connect bool
	conn    Conn
	err     error
}

// Err returns ErrPending before the next Update, nil if the request succeeded, ErrAlready if
// another one of this tick was served, and otherwise the error of Listen or Connect.
func (r *Request) Err() error { return r.err }

// Conn returns the connection of a RequestConnect that succeeded, and otherwise the zero Conn.
func (r *Request) Conn() Conn { return r.conn }

// RequestListen makes the next Update call Listen; the first request of a tick counts.
func (d *Driver) RequestListen(at address.Addr) *Request { return d.request(at, false) }

// RequestConnect makes the next Update call Connect; the first of a tick counts.
func (d *Driver) RequestConnect(to address.Addr) *Request { return d.request(to, true) }

func (d *Driver) request(at address.Addr, connect bool) *Request {
	r := &Request{at: at, connect: connect, err: ErrPending}
	if d.closed {
		r.err = net.ErrClosed
		return r
	}
	d.requests.list = append(d.requests.list, r)
	return r
}

type requests struct {
	list []*Request
	auto *Request // of Config.AutoConnect, until its result was returned
}

func (q *requests) serve(d *Driver) {
	var served [2]bool // a Listen, a Connect
	for i, r := range q.list {
		kind := &served[0]
		if r.connect {
			kind = &served[1]
		}
		switch {
		case *kind:
			r.err = ErrAlready
		case r.connect:
			r.conn, r.err = d.Connect(r.at)
		default:
			r.err = d.Listen(r.at)
		}
		*kind = true
		q.list[i] = nil
	}
	q.list = q.list[:0]
}

func (q *requests) close() {
	for _, r := range q.list {
		r.err = net.ErrClosed
	}
	q.list = nil
}

func (c AutoConnect) listen() address.Addr { return c.addr(c.ListenAddress, netip.IPv4Unspecified()) }

func (c AutoConnect) connect() address.Addr {
	if c.ConnectAddress == netip.IPv4Unspecified() {
		return address.Addr{}
	}
	return c.addr(c.ConnectAddress, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

func (c AutoConnect) addr(ip, def netip.Addr) address.Addr {
	if c.Port == 0 {
		return address.Addr{}
	}
	if !ip.IsValid() {
		ip = def
	}
	return address.FromUDP(netip.AddrPortFrom(ip, c.Port))
}

func (d *Driver) requestAuto() {
	if at := d.cfg.AutoConnect.listen(); d.server && at.IsValid() {
		d.requests.auto = d.RequestListen(at)
	}
	if to := d.cfg.AutoConnect.connect(); !d.server && to.IsValid() {
		d.requests.auto = d.RequestConnect(to)
	}
}

func (q *requests) takeAutoError() error {
	if q.auto == nil {
		return nil
	}
	err := q.auto.err
	q.auto = nil
	return err
}
