package httpapi

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrPlainHTTP is returned for an address on which answers, which carry keys,
// would travel unprotected.
var ErrPlainHTTP = errors.New("httpapi: plain HTTP is refused on an address that others can reach: use TLS, or declare a reverse proxy")

// PlainHTTPAllowed reports whether the API may be served at addr without TLS:
// on loopback, or anywhere when a reverse proxy that ends TLS stands in front.
// A wildcard address counts as public, and so does a private network.
func PlainHTTPAllowed(addr netip.AddrPort, behindProxy bool) error {
	if behindProxy || addr.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrPlainHTTP, addr)
}
