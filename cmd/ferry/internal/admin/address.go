package admin

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrPublic is wrapped by what AddrAllowed returns.
var ErrPublic = errors.New("admin: refused on an address that others can reach, since it has no authentication")

// AddrAllowed reports whether the admin pages may be served at addr: on
// loopback, or anywhere if the operator said so.
func AddrAllowed(addr netip.AddrPort, public bool) error {
	if public || addr.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrPublic, addr)
}
