//go:build !linux || !amd64 || sockportable

package fastpath

import "net/netip"

// Check says that there is no fast path on this platform.
func Check([]netip.AddrPort, Config) []Finding {
	return []Finding{{"fast path", "off", "", "it is for Linux on amd64"}}
}
