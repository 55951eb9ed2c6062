package engine

import (
	"cmp"
	"slices"
)

const (
	mPlayerHosts          = 2
	mPlayerJoiners        = 4
	mPlayerJoinersPerHost = 3
	mPlayerSeats          = 6
)

// replaced returns the player's own allocations that end for its next one, and false if it
// may not have that.
func (m *model) replaced(c *mReservation) (old []*mAlloc, ok bool) {
	if !c.individual || !m.limits {
		return nil, true
	}
	var own []*mAlloc
	for _, a := range m.allocs {
		if a.individual && a.player == c.player && a.tenant == c.tenant && a.role == c.role {
			own = append(own, a)
		}
	}
	atHost := func(a *mAlloc) bool { return a.match == c.match }
	tooManyAtHost := func(own []*mAlloc) bool {
		n := 1
		for _, a := range own {
			if atHost(a) {
				n++
			}
		}
		return c.role == "joiner" && n > mPlayerJoinersPerHost
	}
	tooMany := func(own []*mAlloc) bool {
		seats := 1 + c.max
		for _, a := range own {
			seats += 1 + a.max
		}
		if c.role == "host" {
			return len(own)+1 > mPlayerHosts || seats > mPlayerSeats
		}
		return len(own)+1 > mPlayerJoiners
	}
	since := func(a *mAlloc) int64 {
		if m.closed[a.at] {
			return 0
		}
		return a.received / 250
	}
	slices.SortFunc(own, func(a, b *mAlloc) int {
		return cmp.Or(cmp.Compare(since(a), since(b)), cmp.Compare(a.number, b.number))
	})
	isSilent := func(a *mAlloc) bool { return !a.bound || m.closed[a.at] || m.isOver(a.received, 10_000) }
	for tooManyAtHost(own) {
		i := slices.IndexFunc(own, func(a *mAlloc) bool { return atHost(a) && isSilent(a) })
		if i < 0 {
			m.cover("player: too many of its own at the host, all in use")
			return nil, false
		}
		m.cover("player: its own silent one at the host ends for the next one")
		old, own = append(old, own[i]), slices.Delete(own, i, i+1)
	}
	for tooMany(own) {
		i := slices.IndexFunc(own, isSilent)
		if i < 0 {
			m.cover("player: too many of its own, all in use")
			return nil, false
		}
		old, own = append(old, own[i]), slices.Delete(own, i, i+1)
	}
	if len(old) > 0 {
		m.cover("player: its own silent " + c.role + " ends for the next one")
	}
	return old, true
}
