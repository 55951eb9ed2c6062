package address

import (
	"net/netip"

	"github.com/ferryrelay/ferry/proto"
)

// Addr is the address of a peer: a UDP address and port, or an allocation of a
// relay. It is comparable and does not allocate. The zero Addr is no address.
type Addr struct {
	host       netip.Addr // of UDP, unmapped; or the 16 bytes of an allocation id
	port       uint16
	allocation bool
}

// FromUDP returns the Addr of a UDP address and port. An IPv4-mapped IPv6 address
// equals its IPv4 address; an invalid ap gives the zero Addr.
func FromUDP(ap netip.AddrPort) Addr {
	if !ap.IsValid() {
		return Addr{}
	}
	return Addr{host: ap.Addr().Unmap(), port: ap.Port()}
}

// FromAllocation returns the Addr of an allocation.
func FromAllocation(id proto.AllocationID) Addr {
	return Addr{host: netip.AddrFrom16(id), allocation: true}
}

// UDP returns the address and port. ok is false for an allocation and for the zero Addr.
func (a Addr) UDP() (ap netip.AddrPort, ok bool) {
	if a.allocation || !a.host.IsValid() {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.host, a.port), true
}

// Allocation returns the id. ok is false for a UDP address and for the zero Addr.
func (a Addr) Allocation() (id proto.AllocationID, ok bool) {
	if !a.allocation {
		return proto.AllocationID{}, false
	}
	return a.host.As16(), true
}

// IsValid reports whether a is not the zero Addr.
func (a Addr) IsValid() bool { return a.host.IsValid() }

// Reachable reports whether a datagram can be sent to a: it is valid, and its
// UDP port, if it has one, is not 0.
func (a Addr) Reachable() bool { return a.allocation || a.host.IsValid() && a.port != 0 }

// Is6 reports whether a is an address of UDP over IPv6.
func (a Addr) Is6() bool { return !a.allocation && a.host.Is6() }

// SameKind reports whether a and b are both addresses of UDP over IPv4, both of UDP over
// IPv6, or both allocations: others cannot reach each other.
func (a Addr) SameKind(b Addr) bool {
	return a.allocation == b.allocation && a.host.BitLen() == b.host.BitLen()
}

// SameSource reports whether a and b may belong to one sender: it ignores the port
// and the lower 64 bits of an IPv6 address, since one network has a /64.
func (a Addr) SameSource(b Addr) bool {
	if !a.SameKind(b) {
		return false
	}
	if a.allocation || a.host.Is4() || !a.host.IsValid() {
		return a.host == b.host
	}
	left, right := a.host.As16(), b.host.As16()
	return [8]byte(left[:8]) == [8]byte(right[:8])
}

// AppendTo appends a.String() to b.
func (a Addr) AppendTo(b []byte) []byte {
	switch id, ok := a.Allocation(); {
	case ok:
		return append(b, id.String()...)
	case !a.IsValid():
		return append(b, "nowhere"...)
	}
	return netip.AddrPortFrom(a.host, a.port).AppendTo(b)
}

// String returns the address and port, the id as the text of a UUID, or
// "nowhere".
func (a Addr) String() string { return string(a.AppendTo(nil)) }
