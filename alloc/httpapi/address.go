package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// The prefixes that count as one address: an IPv4 address, and the /56 of an
// IPv6 address, which is what one household is given, with all its /64.
const (
	bitsIPv4 = 32
	bitsIPv6 = 56
)

// networkOf returns the prefix that addr counts under, the zero one for no
// address.
func networkOf(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := bitsIPv4
	if addr.Is6() {
		bits = bitsIPv6
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// clientAddress returns what a caller is counted under, and whether that is its
// own. It is not for a caller behind a trusted proxy that does not say who
// called: all of those would share the proxy's.
func clientAddress(r *http.Request, trusted []netip.Prefix) (netip.Prefix, bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}, true
	}
	addr := peer.Addr().Unmap().WithZone("")
	hops := forwarded(r.Header)
	for len(hops) > 0 && contains(trusted, addr) {
		next, err := netip.ParseAddr(hops[len(hops)-1])
		if err != nil {
			break
		}
		addr = next.Unmap().WithZone("")
		hops = hops[:len(hops)-1]
	}
	return networkOf(addr), !contains(trusted, addr)
}

// forwarded returns the hops of X-Forwarded-For. Each proxy adds the address
// that it saw at the end, so only the end can be believed.
func forwarded(h http.Header) []string {
	values := h.Values("X-Forwarded-For")
	if len(values) == 0 {
		return nil
	}
	hops := strings.Split(strings.Join(values, ","), ",")
	for i, hop := range hops {
		hops[i] = strings.TrimSpace(hop)
	}
	return hops
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
