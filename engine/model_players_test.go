package engine

import (
	"cmp"
	"slices"
)

const (
	mPlayerHosts   = 2
	mPlayerJoiners = 3
	mPlayerSeats   = 6
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
	for tooMany(own) {
		if len(own) == 0 || !m.closed[own[0].at] && !m.isOver(own[0].received, 10_000) {
			m.cover("player: too many of its own, all in use")
			return nil, false
		}
		old, own = append(old, own[0]), own[1:]
	}
	if len(old) > 0 {
		m.cover("player: its own silent " + c.role + " ends for the next one")
	}
	return old, true
}
