package websocket

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// householdBits is what one household is given of IPv6, all its /64 together.
const householdBits = 56

// household returns the prefix under which an address is counted.
func household(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = householdBits
	}
	p, _ := addr.Prefix(bits) // The zero prefix for no address.
	return p
}

// plain returns an address in the form in which addresses are compared.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

func trusts(proxies []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// caller returns the prefix under which a request is counted; false if a proxy
// sent it and does not say for whom. Every proxy appends to X-Forwarded-For the
// address that it saw, so the entries are read from the end for as long as they
// were written by somebody who is trusted.
func caller(r *http.Request, proxies []netip.Prefix) (netip.Prefix, bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr := plain(peer.Addr())
	rest := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	for trusts(proxies, addr) {
		cut := strings.LastIndexByte(rest, ',')
		next, err := netip.ParseAddr(strings.TrimSpace(rest[cut+1:]))
		if err != nil {
			return netip.Prefix{}, false
		}
		addr, rest = plain(next), rest[:max(cut, 0)]
	}
	return household(addr), true
}
