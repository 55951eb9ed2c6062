package fleet

import (
	"fmt"
	"net/netip"
	"slices"
)

// Hint says that clients of a network are best served in a region. Of several
// that hold an address the longest prefix counts. IPv6 addresses of clients are
// known to 56 bits, so a longer prefix never matches.
type Hint struct {
	Prefix netip.Prefix
	Region string
}

// hints finds the region of an address. It does not change.
type hints struct {
	regions map[netip.Prefix]string
	lengths []int // of the prefixes, the longest first
}

func newHints(all []Hint) (hints, error) {
	h := hints{regions: make(map[netip.Prefix]string, len(all))}
	for _, hint := range all {
		p := hint.Prefix.Masked()
		if !p.IsValid() || p.Addr().Is4In6() || hint.Region == "" {
			return hints{}, fmt.Errorf("%w: Hints has %v for region %q", ErrConfig, hint.Prefix, hint.Region)
		}
		h.regions[p] = hint.Region
		if !slices.Contains(h.lengths, p.Bits()) {
			h.lengths = append(h.lengths, p.Bits())
		}
	}
	slices.Sort(h.lengths)
	slices.Reverse(h.lengths)
	return h, nil
}

// region returns the region of an address, empty if no hint is about it.
func (h *hints) region(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	for _, bits := range h.lengths {
		if p, err := addr.Prefix(bits); err == nil {
			if region, ok := h.regions[p]; ok {
				return region
			}
		}
	}
	return ""
}
