package fleet

import "sync/atomic"

// Stats are counts since the fleet was made.
type Stats struct {
	// Polls and PollsFailed count readings of the registry.
	Polls, PollsFailed uint64
	// Tries counts relays that were asked for a host, Placed hosts that were
	// placed. Full, Draining and Silent count the tries that failed: for lack of
	// room, because the relay drains, and because it did not answer.
	Tries, Placed, Full, Draining, Silent uint64
	// Refused counts requests for which no relay had room, Unavailable those
	// for which one did not answer or the registry was not known.
	Refused, Unavailable uint64
	// Homeless counts reservations that were given up because the store did not
	// take where they are. Of these Released were ended at the relay, and
	// ReleasesDropped lapse there.
	Homeless, Released, ReleasesDropped uint64
	// Relays is how many the registry has, Live how many are not dead.
	Relays, Live int
}

// counts are the counters of a fleet, each for itself.
type counts struct {
	polls, pollsFailed                    atomic.Uint64
	tries, placed, full, draining, silent atomic.Uint64
	refused, unavailable                  atomic.Uint64
	homeless, released, releasesDropped   atomic.Uint64
}

// Stats returns the counts. It may be called at any time.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	st := Stats{
		Polls: c.polls.Load(), PollsFailed: c.pollsFailed.Load(),
		Tries: c.tries.Load(), Placed: c.placed.Load(), Full: c.full.Load(),
		Draining: c.draining.Load(), Silent: c.silent.Load(),
		Refused: c.refused.Load(), Unavailable: c.unavailable.Load(),
		Homeless: c.homeless.Load(), Released: c.released.Load(), ReleasesDropped: c.releasesDropped.Load(),
	}
	for _, n := range f.Nodes() {
		st.Relays++
		if n.Age <= DeadAfter {
			st.Live++
		}
	}
	return st
}
