package link

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

// ownAddrs are the addresses under which this side of direct paths may be reached.
type ownAddrs struct {
	relay   []netip.AddrPort // the relay's own addresses, if known, which are no player's
	local   netip.AddrPort   // of the socket
	extra   []netip.AddrPort // of the caller
	offered [maxOffered]netip.AddrPort
	count   int
	at      time.Time // when the interfaces were asked
}

// localPeriod is how long the addresses of the interfaces are remembered.
const localPeriod = 10 * time.Second

// refresh looks which addresses this side has, if that is long ago.
func (o *ownAddrs) refresh(now time.Time) {
	if !o.at.IsZero() && now.Sub(o.at) < localPeriod {
		return
	}
	o.count, o.at = 0, now
	for _, ap := range o.extra {
		o.add(ap)
	}
	if !o.local.Addr().IsUnspecified() {
		o.add(o.local)
		return
	}
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return // The other side may still be reachable.
	}
	for _, n := range nets {
		prefix, err := netip.ParsePrefix(n.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() && prefix.Addr().Is4() == o.local.Addr().Is4() {
			o.add(netip.AddrPortFrom(prefix.Addr(), o.local.Port()))
		}
	}
}

func (o *ownAddrs) add(ap netip.AddrPort) {
	ap = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	if ap.IsValid() && ap.Port() != 0 && o.count < maxOffered {
		o.offered[o.count] = ap
		o.count++
	}
}

// permits reports whether an address of the other side may be challenged.
func (o *ownAddrs) permits(ap netip.AddrPort) bool {
	ip := ap.Addr()
	switch {
	case !ip.IsValid(), ap.Port() == 0, slices.Contains(o.relay, ap), ip.IsUnspecified(), ip.IsMulticast(),
		ip.IsLinkLocalUnicast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return false
	}
	return !ip.IsLoopback() || o.local.Addr().IsLoopback()
}
