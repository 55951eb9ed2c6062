package evict

import (
	"net/netip"
	"time"
)

// Rates limits the rate of events by the networks that they come from: an address, which is
// an IPv4 address or an IPv6 /56, has PerSecond and Burst, its /24 or /48 four times as much,
// its /16 or /32 sixteen times. An operation costs O(1), with the removal of old networks.
// The caller locks it.
type Rates struct {
	PerSecond, Burst int

	full  map[networkKey]time.Time // when the network has its burst again, if that is not now
	sweep int                      // the number of networks at which old ones are removed
}

// minSweep is the least number of networks at which old ones are removed.
const minSweep = 1024

// Take counts an event of an address, or returns how long it has to wait.
func (r *Rates) Take(address netip.Prefix, now time.Time) (wait time.Duration) {
	for level := range levels {
		cost := r.cost(level)
		full := r.fullAt(networkKey{containing(address, level), level}, now)
		wait = max(wait, full.Sub(now)+cost-r.window())
	}
	if wait > 0 {
		return wait
	}
	for level := range levels {
		key := networkKey{containing(address, level), level}
		if r.full == nil {
			r.full = make(map[networkKey]time.Time)
		}
		r.full[key] = r.fullAt(key, now).Add(r.cost(level))
	}
	r.removeOld(now)
	return 0
}

// Return takes an event of an address back.
func (r *Rates) Return(address netip.Prefix, now time.Time) {
	for level := range levels {
		key := networkKey{containing(address, level), level}
		full, ok := r.full[key]
		switch full = full.Add(-r.cost(level)); {
		case !ok:
		case full.After(now):
			r.full[key] = full
		default:
			delete(r.full, key)
		}
	}
}

// fullAt returns when a network has its burst again.
func (r *Rates) fullAt(key networkKey, now time.Time) time.Time {
	if full := r.full[key]; full.After(now) {
		return full
	}
	return now
}

// cost is the time in which a network of a level gets one event.
func (r *Rates) cost(level int) time.Duration {
	last := len(levels) - 1
	return time.Second * time.Duration(levels[level].weight) / time.Duration(levels[last].weight*r.PerSecond)
}

// window is the time in which a network gets its burst.
func (r *Rates) window() time.Duration {
	return time.Second * time.Duration(r.Burst) / time.Duration(r.PerSecond)
}

// removeOld removes networks that have their burst, when there are twice as many networks as
// after the last time.
func (r *Rates) removeOld(now time.Time) {
	if len(r.full) < max(r.sweep, minSweep) {
		return
	}
	for key, full := range r.full {
		if !full.After(now) {
			delete(r.full, key)
		}
	}
	r.sweep = 2 * len(r.full)
}
