// Package endpoint defines the key of a peer: a UDP source, a DTLS session or a
// WebSocket. It imports no package of this module, since sockets, the allocation table
// and the engine share it.
package endpoint

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// Kind is the transport of a peer: a UDP source and a DTLS session behind the same
// ip:port are two different keys.
type Kind uint8

const (
	KindNone Kind = 0 // the zero Endpoint
	KindUDP4 Kind = 1 // an IPv4 address and port
	KindUDP6 Kind = 2 // an IPv6 address and port
	KindDTLS Kind = 3 // the serial of a DTLS session
	// KindSession is the serial of a session of the first transport, such as a WebSocket. The
	// kinds after it are those of the other transports.
	KindSession Kind = 4
	// Kinds is more than every kind.
	Kinds = 16
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindNone:
		return "none"
	case KindUDP4:
		return "udp4"
	case KindUDP6:
		return "udp6"
	case KindDTLS:
		return "dtls"
	}
	return "session" + strconv.Itoa(int(k-KindSession))
}

// Endpoint is the key of a peer as a socket sees it: 24 bytes without a
// pointer, comparable, usable as a map key. The zero value means none.
//
//	Hi, Lo  address words; IPv4: Hi = 0 and Lo = the 32-bit address;
//	        a serial kind: Hi = 0 and Lo = the serial
//	Tail    port | local<<16 | kind<<32 | listener<<40
//
// local is the number that a sock.Group assigned to the local address the peer sent
// to, 0 if the kernel chooses; listener is sock.Config.Listener. IPv6 zones are
// not kept: replies to a link-local address leave through the interface
// of the local address instead.
type Endpoint struct{ Hi, Lo, Tail uint64 }

const (
	LocalShift    = 16
	KindShift     = 32
	ListenerShift = 40
)

// UDP returns the Endpoint of a UDP peer. An IPv4-mapped IPv6 address is
// unmapped, a zone is dropped, an invalid address gives the zero Endpoint.
func UDP(addr netip.AddrPort, local uint16, listener uint8) Endpoint {
	ip := addr.Addr().Unmap()
	tail := uint64(addr.Port()) | uint64(local)<<LocalShift | uint64(listener)<<ListenerShift
	switch {
	case ip.Is4():
		a := ip.As4()
		return Endpoint{0, uint64(binary.BigEndian.Uint32(a[:])), tail | uint64(KindUDP4)<<KindShift}
	case ip.Is6():
		a := ip.As16()
		return Endpoint{
			binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]),
			tail | uint64(KindUDP6)<<KindShift,
		}
	}
	return Endpoint{}
}

// Serial returns the Endpoint of a session that has a serial number instead
// of an address. A serial must not be used twice in a process.
func Serial(k Kind, serial uint64) Endpoint {
	return Endpoint{0, serial, uint64(k) << KindShift}
}

// Kind returns the kind; KindNone for the zero Endpoint.
func (e Endpoint) Kind() Kind { return Kind(e.Tail >> KindShift) }

// Port returns the peer's port, 0 for a kind that has a serial.
func (e Endpoint) Port() uint16 { return uint16(e.Tail) }

// Local returns the number of the local address the peer sent to, 0 = any.
func (e Endpoint) Local() uint16 { return uint16(e.Tail >> LocalShift) }

// Listener returns sock.Config.Listener of the socket that received from the peer.
func (e Endpoint) Listener() uint8 { return uint8(e.Tail >> ListenerShift) }

// Serial returns the serial number, 0 for a UDP endpoint.
func (e Endpoint) Serial() uint64 {
	if k := e.Kind(); k == KindUDP4 || k == KindUDP6 {
		return 0
	}
	return e.Lo
}

// Network returns what a limit counts as one source: an IPv4 address, or an IPv6 /56,
// which a provider assigns to one customer, with the kind but without port, local and
// listener. A session is a network of its own.
func (e Endpoint) Network() Endpoint {
	kind := e.Tail & (0xFF << KindShift)
	if e.Kind() == KindUDP6 {
		return Endpoint{e.Hi &^ 0xFF, 0, kind}
	}
	return Endpoint{e.Hi, e.Lo, kind}
}

// RoutingPrefix returns the IPv4 /24 or IPv6 /48 of an endpoint, the longest prefixes that
// are routed globally, in the form of Network.
func (e Endpoint) RoutingPrefix() Endpoint {
	n := e.Network()
	switch e.Kind() {
	case KindUDP4:
		n.Lo &^= 0xFF
	case KindUDP6:
		n.Hi &^= 0xFFFF
	}
	return n
}

// IsZero reports whether e is the zero Endpoint.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// AddrPort returns the peer's address and port. It is the invalid AddrPort for
// kinds that have a serial.
func (e Endpoint) AddrPort() netip.AddrPort {
	switch e.Kind() {
	case KindUDP4:
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], uint32(e.Lo))
		return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(e.Tail))
	case KindUDP6:
		var a [16]byte
		binary.BigEndian.PutUint64(a[:8], e.Hi)
		binary.BigEndian.PutUint64(a[8:], e.Lo)
		return netip.AddrPortFrom(netip.AddrFrom16(a), uint16(e.Tail))
	}
	return netip.AddrPort{}
}

// String prints the address and port, or kind and serial such as "dtls#7". It
// allocates and is not for the serving path.
func (e Endpoint) String() string {
	switch k := e.Kind(); k {
	case KindNone:
		return "none"
	case KindUDP4, KindUDP6:
		return e.AddrPort().String()
	default:
		return k.String() + "#" + strconv.FormatUint(e.Lo, 10)
	}
}

// Remote returns e without the local number and the listener, which mean nothing
// to another process: the address, port and kind alone.
func (e Endpoint) Remote() Endpoint {
	const portAndKind = 0xFF_0000_FFFF
	e.Tail &= portAndKind
	return e
}

// Mix64 is a multiplicative hash of a word: the high bits are well mixed. Relays
// store values that depend on it in state files, so it never changes.
func Mix64(x uint64) uint64 {
	x *= 0x9E3779B97F4A7C15
	return (x ^ x>>29) * 0xBF58476D1CE4E5B9
}
