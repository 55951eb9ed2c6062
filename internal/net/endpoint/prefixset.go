package endpoint

import (
	"net/netip"
	"slices"
)

// PrefixSet is a set of prefixes. It does not change. Its lookup costs one hash per length of
// prefix in the set, and allocates nothing. A nil set is empty.
type PrefixSet struct {
	prefixes     map[netip.Prefix]struct{}
	bits4, bits6 []int // lengths in the set
}

// NewPrefixSet returns the set of these prefixes; IPv4-mapped ones count as IPv4. Invalid ones
// are left out.
func NewPrefixSet(all []netip.Prefix) *PrefixSet {
	s := &PrefixSet{prefixes: make(map[netip.Prefix]struct{}, len(all))}
	for _, p := range all {
		if p = UnmapPrefix(p); !p.IsValid() {
			continue
		}
		s.prefixes[p] = struct{}{}
		bits := &s.bits6
		if p.Addr().Is4() {
			bits = &s.bits4
		}
		if !slices.Contains(*bits, p.Bits()) {
			*bits = append(*bits, p.Bits())
		}
	}
	return s
}

// Contains reports whether a prefix of the set contains ip.
func (s *PrefixSet) Contains(ip netip.Addr) bool {
	if s == nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	bits := s.bits6
	if ip.Is4() {
		bits = s.bits4
	}
	for _, n := range bits {
		p, _ := ip.Prefix(n) // The length fits the family.
		if _, ok := s.prefixes[p]; ok {
			return true
		}
	}
	return false
}

// UnmapPrefix returns the masked prefix, as one of IPv4 if it is IPv4-mapped.
func UnmapPrefix(p netip.Prefix) netip.Prefix {
	if ip := p.Addr(); ip.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(ip.Unmap(), p.Bits()-96)
	}
	return p.Masked()
}
