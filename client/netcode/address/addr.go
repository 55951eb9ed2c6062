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

// String returns the address and port, the id as the text of a UUID, or
// "nowhere".
func (a Addr) String() string {
	switch id, ok := a.Allocation(); {
	case ok:
		return id.String()
	case !a.IsValid():
		return "nowhere"
	}
	return netip.AddrPortFrom(a.host, a.port).String()
}
