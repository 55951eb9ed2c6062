package netcode

import (
	"net/netip"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Request is a Listen or Connect that the next Update makes. It belongs to the goroutine of
// its driver.
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

// RequestListen makes the next Update call Listen. Of several requests in one tick it serves
// the first.
func (d *Driver) RequestListen(at address.Addr) *Request { return d.request(at, false) }

// RequestConnect makes the next Update call Connect. Of several requests in one tick it
// serves the first.
func (d *Driver) RequestConnect(to address.Addr) *Request { return d.request(to, true) }

func (d *Driver) request(at address.Addr, connect bool) *Request {
	r := &Request{at: at, connect: connect, err: ErrPending}
	d.requests = append(d.requests, r)
	return r
}

func (d *Driver) serveRequests() {
	var served [2]bool // a Listen, a Connect
	for i, r := range d.requests {
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
		d.requests[i] = nil
	}
	d.requests = d.requests[:0]
}

// AutoConnect makes a server listen and a client connect in the first Update.
type AutoConnect struct {
	// Port is the server's UDP port. 0 turns it off.
	Port uint16
	// ListenAddress is where the server listens. Zero means 0.0.0.0.
	ListenAddress netip.Addr
	// ConnectAddress is where the client connects to. Zero means 127.0.0.1, and
	// 0.0.0.0 means that it does not.
	ConnectAddress netip.Addr
}

// listen returns where a server listens, the zero address if it does not.
func (a AutoConnect) listen() address.Addr {
	return a.at(a.ListenAddress, netip.IPv4Unspecified())
}

// connect returns where a client connects to, the zero address if it does not.
func (a AutoConnect) connect() address.Addr {
	if a.ConnectAddress == netip.IPv4Unspecified() {
		return address.Addr{}
	}
	return a.at(a.ConnectAddress, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

func (a AutoConnect) at(ip, def netip.Addr) address.Addr {
	if a.Port == 0 {
		return address.Addr{}
	}
	if !ip.IsValid() {
		ip = def
	}
	return address.FromUDP(netip.AddrPortFrom(ip, a.Port))
}

// requestAuto makes the request of Config.Auto.
func (d *Driver) requestAuto() {
	if at := d.cfg.Auto.listen(); d.server && at.IsValid() {
		d.auto = d.RequestListen(at)
	}
	if to := d.cfg.Auto.connect(); !d.server && to.IsValid() {
		d.auto = d.RequestConnect(to)
	}
}

// autoFailed returns, once, why the first Update could not do what Config.Auto
// asks for.
func (d *Driver) autoFailed() error {
	if d.auto == nil {
		return nil
	}
	err := d.auto.err
	d.auto = nil
	return err
}
