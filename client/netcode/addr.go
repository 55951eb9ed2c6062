package netcode

import (
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// The transport does not import the links, so that each has the same type for
// itself.

func toTransport(a link.Addr) utp.Addr {
	if id, ok := a.Allocation(); ok {
		return utp.AddrFromAllocation(id)
	}
	if ap, ok := a.UDP(); ok {
		return utp.AddrFromUDP(ap)
	}
	return utp.Addr{}
}

func toLink(a utp.Addr) link.Addr {
	if id, ok := a.Allocation(); ok {
		return link.AddrFromAllocation(id)
	}
	if ap, ok := a.UDP(); ok {
		return link.AddrFromUDP(ap)
	}
	return link.Addr{}
}
