package quota

import "sync/atomic"

// Refusal is the limit for which a reservation was refused.
type Refusal uint8

// The limits, as [Limits] has them.
const (
	RefusedInactive Refusal = iota
	RefusedAllocations
	RefusedPlayers
	RefusedBandwidth
	NumRefusals
)

// String names the limit as in a metric.
func (r Refusal) String() string {
	switch r {
	case RefusedInactive:
		return "inactive"
	case RefusedAllocations:
		return "allocations"
	case RefusedPlayers:
		return "players"
	case RefusedBandwidth:
		return "bandwidth"
	}
	return "unknown"
}

// Stats are counts since the first guard, from which the others were made.
type Stats struct {
	// Refused counts reservations by the first limit that they met.
	Refused [NumRefusals]uint64
	// Unknown counts those that were let in since nobody could say.
	Unknown uint64
}

// counts are those of [Stats].
type counts struct {
	refused [NumRefusals]atomic.Uint64
	unknown atomic.Uint64
}

// Stats returns the counts.
func (g *Guard) Stats() (st Stats) {
	for r := range st.Refused {
		st.Refused[r] = g.counts.refused[r].Load()
	}
	st.Unknown = g.counts.unknown.Load()
	return st
}
