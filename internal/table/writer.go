package table

import (
	"errors"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// writer is the part of the table that only the control goroutine touches.
type writer struct {
	max  int
	next uint32   // first slot that was never used
	free []uint32 // slots that may be used again

	// Counts for anybody to read.
	live, bound, links atomic.Int64
}

// ErrFull is returned when the table holds as many allocations as it may.
var ErrFull = errors.New("table: full")

// Spec is what an allocation starts with.
type Spec struct {
	ID             proto.AllocationID
	Role           Role
	Match          proto.AllocationID
	Player         [16]byte
	Tenant         uint64
	Epoch          uint16
	MaxConnections uint16
	// Tally is a number of the caller's: under which it counts what the
	// allocation relays. See [Table.Tally].
	CounterIndex uint32
}

// Counts returns how many allocations the table holds, how many of them have
// an endpoint, and how many links are open. Any goroutine may call it.
func (t *Table) Counts() (allocations, bound, links int) {
	return int(t.w.live.Load()), int(t.w.bound.Load()), int(t.w.links.Load())
}

// Account returns control's record of the live allocation h.
func (t *Table) Account(h Handle) *Account {
	slot := h.slot()
	return &t.chunks[slot/chunkSlots].Load().accounts[slot%chunkSlots]
}

// AccountAt returns control's record of a slot, for lists that link slots.
func (t *Table) AccountAt(slot uint32) *Account { return t.Account(makeHandle(slot, 0)) }

// HandleAt returns the handle of the allocation in slot.
func (t *Table) HandleAt(slot uint32) Handle {
	return makeHandle(slot, uint32(t.identity(slot).meta.Load()))
}

// Slots returns how many slots were ever used: HandleAt and At, for each slot
// below, meet every allocation there is.
func (t *Table) Slots() uint32 { return t.w.next }

// Slot returns the slot of h, for lists that link slots.
func (h Handle) Slot() uint32 { return h.slot() }

// Reserve adds an allocation that is not bound yet. It returns ErrFull when
// the table holds as many as it may, or all slots wait to be recycled.
func (t *Table) Reserve(s Spec, now Tick) (Handle, error) {
	slot, ok := t.takeSlot()
	if !ok {
		return 0, ErrFull
	}
	r := t.identity(slot)
	generation := uint32(r.meta.Load()) + 1
	if generation == 0 {
		generation = 1
	}
	h := makeHandle(slot, generation)
	*t.Account(h) = Account{
		Match: s.Match, Player: s.Player, Tenant: s.Tenant, ReservedAt: now,
		Epoch: s.Epoch, MaxConnections: s.MaxConnections,
	}
	t.Activity(h).reset(now, s.CounterIndex)
	t.LargeMessages(h).reset()
	hash := t.hashID(s.ID)
	t.byID.shard(hash).insert(hash, slot, t.rehashID)
	r.write(func(r *identity) {
		r.setMeta(generation, s.Role)
		r.setID(s.ID)
		r.setEndpoint(endpoint.Endpoint{})
		r.link.Store(0)
	})
	t.w.live.Add(1)
	return h, nil
}

func (t *Table) takeSlot() (uint32, bool) {
	if n := len(t.w.free); n > 0 {
		slot := t.w.free[n-1]
		t.w.free = t.w.free[:n-1]
		return slot, true
	}
	if int(t.w.next) >= t.w.max {
		return 0, false
	}
	slot := t.w.next
	t.w.next++
	if c := &t.chunks[slot/chunkSlots]; c.Load() == nil {
		c.Store(new(chunk))
	}
	return slot, true
}

func (a *Activity) reset(now Tick, tally uint32) {
	a.heard.Store(uint32(now))
	a.active.Store(uint32(now))
	a.fromHost.Store(0)
	a.fromJoiner.Store(0)
	a.mismatch.Store(0)
	a.meter.Store(0)
	a.unproven.Store(proven)
	a.tally.Store(tally)
	for i := range a.strangers {
		a.strangers[i].Store(0)
	}
}

func (l *LargeMessages) reset() {
	l.dropped.Store(0)
	l.reported.Store(false)
}

// Bind moves h to ep and returns the allocation that had ep before, if it was
// another one: that one keeps its links and has no endpoint from here on. The
// caller lets every worker pass before it tells anybody.
func (t *Table) Bind(h Handle, ep endpoint.Endpoint) (displaced Handle) {
	var owner Entry
	if t.FindByEndpoint(ep, &owner) {
		if owner.Handle == h {
			return 0
		}
		displaced = owner.Handle
		t.setEndpoint(displaced, ep, endpoint.Endpoint{})
	}
	old, _ := t.At(h)
	t.setEndpoint(h, old.Endpoint, ep)
	return displaced
}

// Admit notes the nonce of a BIND that was accepted.
func (t *Table) RecordBind(h Handle, nonce uint16) {
	e, _ := t.At(h)
	t.setBinding(h, e.Flags|EverBound, nonce)
}

// Mark sets flags of h.
func (t *Table) SetFlags(h Handle, f Flags) {
	if e, ok := t.At(h); ok && !e.Is(f) {
		t.setBinding(h, e.Flags|f, e.Nonce)
	}
}

// Unmark clears flags of h.
func (t *Table) ClearFlags(h Handle, f Flags) {
	if e, ok := t.At(h); ok && e.Flags&f != 0 {
		t.setBinding(h, e.Flags&^f, e.Nonce)
	}
}

func (t *Table) setBinding(h Handle, flags Flags, nonce uint16) {
	t.identity(h.slot()).write(func(r *identity) { r.setBinding(flags, nonce) })
}

// setEndpoint moves h from old to ep; either may be none. The index learns of
// the new endpoint before, and forgets the old one after, the record changes.
func (t *Table) setEndpoint(h Handle, old, ep endpoint.Endpoint) {
	slot := h.slot()
	if !ep.IsZero() {
		hash := t.hashEndpoint(ep)
		t.byEndpoint.shard(hash).insert(hash, slot, t.rehashEndpoint)
		t.w.bound.Add(1)
	}
	t.identity(slot).write(func(r *identity) { r.setEndpoint(ep) })
	if !old.IsZero() {
		hash := t.hashEndpoint(old)
		t.byEndpoint.shard(hash).remove(hash, slot)
		t.w.bound.Add(-1)
	}
}

// Link opens the link between a joiner and a host, in both directions at once.
// The caller has seen that there is none.
func (t *Table) Link(joiner, host Handle) {
	t.identity(joiner.slot()).write(func(r *identity) { r.link.Store(uint64(host)) })
	t.Account(host).Links++
	t.w.links.Add(1)
}

// Unlink closes the link of a joiner, in both directions at once. It reports
// false when there was none, or its host has ended.
func (t *Table) Unlink(joiner Handle) bool {
	e, ok := t.At(joiner)
	if !ok || e.Link == 0 {
		return false
	}
	t.identity(joiner.slot()).write(func(r *identity) { r.link.Store(0) })
	if _, alive := t.At(e.Link); !alive {
		return false
	}
	t.Account(e.Link).Links--
	t.w.links.Add(-1)
	return true
}

// End removes h and closes its links: a host's by its generation, which every
// joiner's link names. The slot is not used again before [Table.Recycle].
func (t *Table) End(h Handle) (Entry, bool) {
	e, ok := t.At(h)
	if !ok {
		return Entry{}, false
	}
	t.Unlink(h)
	t.w.links.Add(-int64(t.Account(h).Links))
	t.identity(h.slot()).write(func(r *identity) {
		r.setMeta(h.generation(), RoleNone)
		r.setID(proto.AllocationID{})
		r.setEndpoint(endpoint.Endpoint{})
		r.link.Store(0)
	})
	hash := t.hashID(e.ID)
	t.byID.shard(hash).remove(hash, h.slot())
	if !e.Endpoint.IsZero() {
		hash = t.hashEndpoint(e.Endpoint)
		t.byEndpoint.shard(hash).remove(hash, h.slot())
		t.w.bound.Add(-1)
	}
	t.w.live.Add(-1)
	return e, true
}

// Recycle lets the slot of h, which has ended, be used again. The caller has
// let every worker pass since the end.
func (t *Table) Recycle(h Handle) { t.w.free = append(t.w.free, h.slot()) }

// rehashID and rehashEndpoint serve an index that grows: each slot in it still
// has the key it was inserted under.
func (t *Table) rehashID(slot uint32) uint64 {
	var e Entry
	t.identity(slot).snapshot(slot, &e)
	return t.hashID(e.ID)
}

func (t *Table) rehashEndpoint(slot uint32) uint64 {
	var e Entry
	t.identity(slot).snapshot(slot, &e)
	return t.hashEndpoint(e.Endpoint)
}
