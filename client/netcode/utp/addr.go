package utp

import (
	"net/netip"

	"github.com/ferryrelay/ferry/proto"
)

// Addr is a place that datagrams come from and go to: an address and port of
// UDP, or an allocation of a relay. It is comparable, makes no garbage, and
// its zero is nowhere.
type Addr struct {
	host       netip.Addr // of UDP, unmapped; or the 16 bytes of an allocation id
	port       uint16
	allocation bool
}

// AddrFromUDP returns the place of an address and port. An IPv4 address mapped
// into IPv6 is the same place as the IPv4 address.
func AddrFromUDP(ap netip.AddrPort) Addr {
	return Addr{host: ap.Addr().Unmap(), port: ap.Port()}
}

// AddrFromAllocation returns the place of an allocation.
func AddrFromAllocation(id proto.AllocationID) Addr {
	return Addr{host: netip.AddrFrom16(id), allocation: true}
}

// UDP returns the address and port. It is false for an allocation and for nowhere.
func (a Addr) UDP() (netip.AddrPort, bool) {
	if a.allocation || !a.host.IsValid() {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.host, a.port), true
}

// Allocation returns the id. It is false for UDP and for nowhere.
func (a Addr) Allocation() (proto.AllocationID, bool) {
	if !a.allocation {
		return proto.AllocationID{}, false
	}
	return a.host.As16(), true
}

// IsValid reports whether a is somewhere.
func (a Addr) IsValid() bool { return a.host.IsValid() }

// String returns the address and port, or the id as the text of a UUID.
func (a Addr) String() string {
	if id, ok := a.Allocation(); ok {
		return id.String()
	}
	return netip.AddrPortFrom(a.host, a.port).String()
}

// sameSource reports whether one sender could own both places: ports do not
// count, and neither does the lower half of an IPv6 address, since a household
// has 2^64 of those.
func sameSource(a, b Addr) bool {
	if a.allocation != b.allocation || a.host.BitLen() != b.host.BitLen() {
		return false
	}
	if a.allocation || a.host.Is4() || !a.host.IsValid() {
		return a.host == b.host
	}
	left, right := a.host.As16(), b.host.As16()
	return [8]byte(left[:8]) == [8]byte(right[:8])
}
