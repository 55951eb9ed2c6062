package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientAddress returns what an anonymous caller is counted under: its IPv4
// address, or the /64 of its IPv6 address, which is what one household has.
func clientAddress(r *http.Request, trusted []netip.Prefix) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "unknown"
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
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked().String()
	}
	return addr.String()
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
