package netcode

import (
	"net/netip"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// AutoConnect lets a game find its server without a menu, as its developers
// want it.
type AutoConnect struct {
	// Port is the server's UDP port. 0 turns it off.
	Port uint16
	// ListenAddress is where the server listens. Zero means 0.0.0.0.
	ListenAddress netip.Addr
	// ConnectAddress is where the client connects to. Zero means 127.0.0.1, and
	// 0.0.0.0 means that it does not.
	ConnectAddress netip.Addr
	// Local says that the server is in the same program: a ConnectAddress that
	// is not loopback becomes 127.0.0.1, with the same port.
	Local bool
}

func (a AutoConnect) withDefaults() AutoConnect {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if !a.ListenAddress.IsValid() {
		a.ListenAddress = netip.IPv4Unspecified()
	}
	if !a.ConnectAddress.IsValid() {
		a.ConnectAddress = loopback
	}
	wanted := a.ConnectAddress != netip.IPv4Unspecified()
	if a.Local && wanted && !a.ConnectAddress.IsLoopback() {
		a.ConnectAddress = loopback
	}
	return a
}

// Listen returns where a server listens, and false if it does not.
func (a AutoConnect) Listen() (address.Addr, bool) {
	a = a.withDefaults()
	return address.FromUDP(netip.AddrPortFrom(a.ListenAddress, a.Port)), a.Port != 0
}

// Connect returns where a client connects to, and false if it does not.
func (a AutoConnect) Connect() (address.Addr, bool) {
	a = a.withDefaults()
	on := a.Port != 0 && a.ConnectAddress != netip.IPv4Unspecified()
	return address.FromUDP(netip.AddrPortFrom(a.ConnectAddress, a.Port)), on
}

// auto makes the requests of Config.Auto.
func (d *Driver) auto() {
	if at, on := d.cfg.Auto.Listen(); d.server && on {
		d.autoListen = d.RequestListen(at)
	}
	if to, on := d.cfg.Auto.Connect(); !d.server && on {
		d.autoConnect = d.RequestConnect(to)
	}
}

// autoFailed returns, once, why the first Update could not do what Config.Auto
// asks for.
func (d *Driver) autoFailed() error {
	var err error
	if d.autoListen != nil {
		err = d.autoListen.Err()
	}
	if d.autoConnect != nil {
		err = d.autoConnect.Err()
	}
	d.autoListen, d.autoConnect = nil, nil
	return err
}
