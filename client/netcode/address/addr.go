package address

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

// FromUDP returns the place of an address and port. An IPv4 address mapped into
// IPv6 is the same place as the IPv4 address.
func FromUDP(ap netip.AddrPort) Addr {
	if !ap.IsValid() {
		return Addr{}
	}
	return Addr{host: ap.Addr().Unmap(), port: ap.Port()}
}

// FromAllocation returns the place of an allocation.
func FromAllocation(id proto.AllocationID) Addr {
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

// Reachable reports whether a datagram can be sent to a: it is somewhere, and
// its port is not 0.
func (a Addr) Reachable() bool { return a.allocation || a.host.IsValid() && a.port != 0 }

// SameSource reports whether one sender could own both places: ports do not
// count, and neither does the lower half of an IPv6 address, since a household
// has 2^64 of those.
func (a Addr) SameSource(b Addr) bool {
	if a.allocation != b.allocation || a.host.BitLen() != b.host.BitLen() {
		return false
	}
	if a.allocation || a.host.Is4() || !a.host.IsValid() {
		return a.host == b.host
	}
	left, right := a.host.As16(), b.host.As16()
	return [8]byte(left[:8]) == [8]byte(right[:8])
}

// Compare orders places: nowhere, then UDP by address and port, then
// allocations by their bytes. It returns -1, 0 or 1.
func (a Addr) Compare(b Addr) int {
	if a.allocation != b.allocation {
		if b.allocation {
			return -1
		}
		return 1
	}
	return netip.AddrPortFrom(a.host, a.port).Compare(netip.AddrPortFrom(b.host, b.port))
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
