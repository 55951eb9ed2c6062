//go:build !linux || !amd64 || sockportable

package fastpath

import (
	"net/netip"

	"github.com/ferryrelay/ferry/internal/privateapi"
)

func (*path) Check([]netip.AddrPort) []privateapi.Finding {
	return []privateapi.Finding{finding("fast path", "off", "", "it is for Linux on amd64")}
}
