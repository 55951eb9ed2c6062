package link

import (
	"encoding/binary"
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
	if !ap.IsValid() {
		return Addr{}
	}
	return Addr{host: ap.Addr().Unmap(), port: ap.Port()}
}

// AddrFromAllocation returns the place of an allocation.
func AddrFromAllocation(id proto.AllocationID) Addr {
	return Addr{host: netip.AddrFrom16(id), allocation: true}
}

// nodePort is the port of numbered nodes.
const nodePort = 7777

// NodeAddr returns the place of a node of a network in memory. It is a UDP
// address of the prefix that RFC 3849 keeps for documentation, in a /64 of its
// own, so that code which knows only UDP and allocations can hold it: node 7 is
// [2001:db8:0:7::]:7777.
func NodeAddr(n uint32) Addr {
	ip := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	binary.BigEndian.PutUint32(ip[4:], n)
	return Addr{host: netip.AddrFrom16(ip), port: nodePort}
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
