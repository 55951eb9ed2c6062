package netcode

import "github.com/ferryrelay/ferry/client/netcode/address"

// Version returns what a peer must have, too.
func (d *Driver) Version() ProtocolVersion { return d.version }

// Listening reports whether clients are accepted.
func (d *Driver) Listening() bool { return d.listening() }

// Addrs returns where a server listens and a client connects to, the zero Addr if it does not.
func (a AutoConnect) Addrs() (listen, connect address.Addr) {
	if at, on := a.listen(); on {
		listen = at
	}
	if to, on := a.connect(); on {
		connect = to
	}
	return listen, connect
}

// Partial returns the length and the capacity of what is kept of a large RPC.
func (c Conn) Partial() (length, capacity int) {
	s := c.d.session(c.id)
	return len(s.partial.buf), cap(s.partial.buf)
}
