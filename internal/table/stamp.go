package table

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/proto"
)

// Heard notes at tick that the owner sent a datagram. Stamps are written only
// when they change, four times a second at the most.
func (a *Activity) RecordReceive(tick Tick) {
	if a.heard.Load() < uint32(tick) {
		a.hear(tick)
	}
}

// hear writes active first: whoever finds heard written need not look at it.
//
//go:noinline
func (a *Activity) hear(tick Tick) {
	stamp(&a.active, tick)
	stamp(&a.heard, tick)
}

// Active notes at tick that a datagram goes to the owner.
func (a *Activity) RecordActivity(tick Tick) { stamp(&a.active, tick) }

// stamp reports whether it wrote. It never goes back, as a worker may be late,
// and of two that write at once the later time stays.
func stamp(s *atomic.Uint32, tick Tick) bool {
	for old := s.Load(); old < uint32(tick); old = s.Load() {
		if s.CompareAndSwap(old, uint32(tick)) {
			return true
		}
	}
	return false
}

// Stamps returns when the owner was last heard, and when it last sent or
// received.
func (a *Activity) LastSeen() (heard, active Tick) {
	return Tick(a.heard.Load()), Tick(a.active.Load())
}

// Relayed notes at tick that a RELAY goes over the link between two allocations,
// from one with that role.
func RecordRelay(role Role, from, to *Activity, tick Tick) {
	if role == RoleHost {
		stamp(&to.fromHost, tick)
	} else {
		stamp(&from.fromJoiner, tick)
	}
}

// LinkStamps returns when the host and the joiner last relayed to each other
// over the link of a joiner, or over one that it had before.
func (a *Activity) LastRelays() (fromHost, fromJoiner Tick) {
	return Tick(a.fromHost.Load()), Tick(a.fromJoiner.Load())
}

// proven is the unproven allowance of an endpoint whose owner was heard there.
const proven = 1<<32 - 1

// Unprove lets no more than so many bytes go to the owner's endpoint until it
// is heard there. Control calls it when it binds an allocation to an endpoint,
// since the source of a BIND may be forged.
func (a *Activity) RequireValidation(allowance uint32) {
	a.unproven.Store(min(allowance, proven-1))
}

// Prove notes that the owner was heard at its endpoint with more than a BIND.
func (a *Activity) Validate() {
	if a.unproven.Load() != proven {
		a.unproven.Store(proven)
	}
}

// Proven reports whether the owner was heard at its endpoint.
func (a *Activity) IsValidated() bool { return a.unproven.Load() == proven }

// Spend reports whether size bytes may go to the owner's endpoint, and takes
// them from its allowance while it is unproven.
func (a *Activity) AllowSend(size int) bool {
	for {
		left := a.unproven.Load()
		if left == proven {
			return true
		}
		if left < uint32(size) {
			return false
		}
		if a.unproven.CompareAndSwap(left, left-uint32(size)) {
			return true
		}
	}
}

// AddDrop counts a message that was too large for the way to the owner.
func (l *LargeMessages) AddDrop() { l.dropped.Add(1) }

// Drops returns how many were counted.
func (l *LargeMessages) Drops() uint32 { return l.dropped.Load() }

// TakeReport reports whether the caller is the one to report the match of a
// host, and false until ReturnReport if another caller was.
func (l *LargeMessages) TakeReport() bool {
	return !l.reported.Load() && l.reported.CompareAndSwap(false, true)
}

// ReturnReport lets the next message be reported: this report was lost.
func (l *LargeMessages) ReturnReport() { l.reported.Store(false) }

// StrangerSlots is how many peers to whom it has no link an allocation may be
// told of within a second. Beyond that it is told nothing, so that the memory
// of what it was told stays small and is never outrun.
const NotConnectedSlots = 3

// StrangerMillis is the shortest time in milliseconds between two ERROR 5 to
// one allocation about one peer.
const NotConnectedMillis = 1000

// Stranger reports whether the owner of h may be told now, at nowMillis, that
// it has no link to peer: at once, then once a second for each peer.
func (t *Table) TakeNotConnected(h Handle, peer proto.AllocationID, nowMillis int64) bool {
	a := t.Activity(h)
	now, tag := uint32(nowMillis), uint32(t.hashID(peer))
	for {
		free, old := a.stranger(now, tag)
		if free == nil {
			return false
		}
		if free.CompareAndSwap(old, uint64(tag)<<32|uint64(now)) {
			return true
		}
	}
}

// stranger returns a place to note that the owner is told of the peer with
// that tag, and what it holds, or nil if the owner is to be told nothing.
func (a *Activity) stranger(now, tag uint32) (free *atomic.Uint64, held uint64) {
	for i := range a.strangers {
		old := a.strangers[i].Load()
		// A worker whose clock is behind may find a time that is still to come.
		recent := old != 0 && now-uint32(old)+NotConnectedMillis < 2*NotConnectedMillis
		if recent && uint32(old>>32) == tag {
			return nil, 0
		}
		if !recent && free == nil {
			free, held = &a.strangers[i], old
		}
	}
	return free, held
}

// Mismatch reports whether an ERROR 3 that names the live allocation h may be
// sent now, within rate.
func (t *Table) TakeMismatch(h Handle, rate Rate, nowMillis int64) bool {
	return rate.Take(&t.Activity(h).mismatch, nowMillis)
}

// Rate is a limit of events: one each Interval microseconds on average, and up
// to Burst at once.
type Rate struct {
	Interval int64
	Burst    int64
}

// Left reports whether Take would draw an event from the gate at nowMillis.
func (r Rate) Allows(gate *atomic.Uint64, nowMillis int64) bool {
	now := nowMillis * 1000
	return max(int64(gate.Load()), now)+r.Interval-now <= r.Burst*r.Interval
}

// Take draws one event from the gate at nowMillis and reports whether there
// was one left. The gate is a single word, the time at which it will be full
// again (generic cell rate algorithm), so several goroutines may share it.
func (r Rate) Take(gate *atomic.Uint64, nowMillis int64) bool {
	now := nowMillis * 1000
	for {
		old := gate.Load()
		full := max(int64(old), now) + r.Interval
		if full-now > r.Burst*r.Interval {
			return false
		}
		if gate.CompareAndSwap(old, uint64(full)) {
			return true
		}
	}
}
