// Package forwarded finds the client of an HTTP request behind reverse proxies, and the
// prefix by which limits per address count it.
package forwarded

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// The prefixes that count as one address: an IPv4 address, and the /56 of an IPv6
// address, which providers assign to one household.
const (
	bitsIPv4 = 32
	bitsIPv6 = 56
)

type Client struct {
	// Prefix counts for limits: that of the client, or that of a trusted proxy which
	// does not tell the client's address. It is zero without an IP address.
	Prefix netip.Prefix
	// Known: Prefix is the client's own, and Addr its address.
	Known bool
	Addr  netip.Addr
	// Malformed: a trusted proxy sent an entry of X-Forwarded-For that is no address.
	// Its clients share Prefix, the proxy's.
	Malformed bool
}

// Find returns the client of r. Each proxy appends the address of its client to
// X-Forwarded-For, so the entries are read from the end, as long as a trusted proxy wrote
// them. An entry is an IP address, with or without a port and brackets.
func Find(r *http.Request, trusted []netip.Prefix) Client {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return Client{}
	}
	addr := normalize(peer.Addr())
	values := r.Header.Values("X-Forwarded-For")
	rest, more := strings.Join(values, ","), len(values) > 0
	for Contains(trusted, addr) {
		if !more {
			return Client{Prefix: Prefix(addr)}
		}
		comma := strings.LastIndexByte(rest, ',')
		next, ok := parse(strings.TrimSpace(rest[comma+1:]))
		if !ok {
			return Client{Prefix: Prefix(addr), Malformed: true}
		}
		addr, rest, more = next, rest[:max(comma, 0)], comma >= 0
	}
	return Client{Prefix: Prefix(addr), Known: true, Addr: addr}
}

// parse returns the address of an entry: "192.0.2.1", "192.0.2.1:443", "2001:db8::1",
// "[2001:db8::1]" or "[2001:db8::1]:443". Some load balancers append the port.
func parse(entry string) (netip.Addr, bool) {
	if addr, err := netip.ParseAddr(entry); err == nil {
		return normalize(addr), true
	}
	if strings.HasPrefix(entry, "[") && strings.HasSuffix(entry, "]") {
		entry += ":0"
	}
	addr, err := netip.ParseAddrPort(entry)
	return normalize(addr.Addr()), err == nil
}

// Prefix returns the prefix of addr that limits count, the zero prefix for no address.
func Prefix(addr netip.Addr) netip.Prefix {
	addr = normalize(addr)
	bits := bitsIPv4
	if addr.Is6() {
		bits = bitsIPv6
	}
	p, _ := addr.Prefix(bits) // zero for the zero address
	return p
}

// Contains reports whether a prefix contains addr.
func Contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	addr = normalize(addr)
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func normalize(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }
