package table

import (
	"encoding/binary"
	"errors"
	"iter"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// writer is control's part of the table; any goroutine reads the counts.
type writer struct {
	max  int
	next uint32   // first slot that was never used
	free []uint32 // slots that may be used again
	slab func(i int) *Slab
	ids  *sharedIDs // nil: no program in the kernel reads the table

	live, bound, links atomic.Int64
}

// ErrFull is returned by [Table.Reserve] for a table that can hold no more.
var ErrFull = errors.New("table: full")

type Spec struct {
	ID             proto.AllocationID
	Role           Role
	Match          proto.AllocationID
	Player         [16]byte
	Tenant         uint64
	Epoch          uint16
	MaxConnections uint16
	// CounterIndex is for the caller, see [Activity.CounterIndex].
	CounterIndex uint32
}

// Account returns control's record of the live allocation h.
func (t *Table) Account(h Handle) *Account {
	slot := h.slot()
	return &t.cold[slot/SlabRecords].Load().accounts[slot%SlabRecords]
}

// AccountAt returns control's record of a slot, for lists that link slots.
func (t *Table) AccountAt(slot uint32) *Account { return t.Account(makeHandle(slot, 0)) }

// HandleAt returns the handle of the allocation in slot.
func (t *Table) HandleAt(slot uint32) Handle {
	return makeHandle(slot, uint32(t.identity(slot).meta.Load()))
}

// Slots returns how many slots were ever used: HandleAt and At for each find every allocation.
func (t *Table) Slots() uint32 { return t.w.next }

// Slot returns the slot of h, for lists that link slots.
func (h Handle) Slot() uint32 { return h.slot() }

// Reserve adds an allocation. It returns ErrFull also if all free slots wait for Recycle.
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
		Match: s.Match, ReservedAt: now, Epoch: s.Epoch, MaxConnections: s.MaxConnections,
	}
	o := t.owner(h)
	o.tenant.Store(s.Tenant)
	o.player[0].Store(binary.LittleEndian.Uint64(s.Player[:8]))
	o.player[1].Store(binary.LittleEndian.Uint64(s.Player[8:]))
	t.Activity(h).reset(now, s.CounterIndex)
	r.path.Store(validated)
	t.LargeMessages(h).reset()
	t.mismatchGate(h).Store(0)
	t.excessGate(h).Store(uint32(now) * TickMillis * quotaUnitsPerMilli) // see reset
	hash := t.hashID(s.ID)
	t.byID.shard(hash).insert(hash, slot, t.rehashID)
	if t.w.ids != nil {
		t.w.ids.insert(s.ID, slot)
	}
	r.writeNextHop(0, func(r *identity) {
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
	t.addSlab(slot)
	return slot, true
}

func (t *Table) addSlab(slot uint32) {
	if i := slot / SlabRecords; t.slabs[i].Load() == nil {
		t.cold[i].Store(new(coldSlab))
		t.slabs[i].Store(t.w.slab(int(i)))
	}
}

func (a *Activity) reset(now Tick, counterIndex uint32) {
	a.heard.Store(0)
	a.relayed.Store(0)
	// Zero would be a time before the wrap, and for a moment ahead of now; see takeCost.
	gate := uint32(now) * TickMillis * quotaUnitsPerMilli
	a.quotaGate.Store(uint64(gate)<<32 | uint64(gate))
	a.counterIndex.Store(counterIndex)
	a.received.Store(uint32(now))
	a.notified.Store(0)
	a.unvalidated.Store(0)
	a.sent.Store(0)
	for i := range a.notConnected {
		a.notConnected[i].Store(0)
	}
}

func (l *LargeMessages) reset() {
	l.dropped.Store(0)
	l.forwarded.Store(0)
}

type Path uint32

const ValidatedPath Path = validated

// UnvalidatedPath permits limit bytes until a message other than a BIND validates the path.
func UnvalidatedPath(limit uint32) Path { return Path(min(limit, limited-1)) }

// LimitedPath permits limit bytes, and more for each message that comes, see
// [Table.RecordMessage], besides what [Table.TakeExcess] allows.
func LimitedPath(limit uint32) Path { return Path(limited | min(limit, maxAllowance)) }

// BeginPath begins the path to an endpoint from which nothing but a BIND has come, which may be
// forged (RFC 9000, section 8). Control calls it after Bind.
func (t *Table) BeginPath(h Handle, p Path) {
	a := t.Activity(h)
	if old := t.identity(h.slot()).path.Swap(uint32(p)); old&validated != 0 {
		advance(&a.unvalidated, Tick(old&^validated))
	}
	a.heard.Store(0) // after the path: see Table.RecordMessage
}

// Bind moves h to ep and returns the allocation that had ep before, which keeps its links. The
// caller waits for a grace period before it sends anything about it.
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

// RecordBind records the nonce of a BIND that was accepted.
func (t *Table) RecordBind(h Handle, nonce uint16) {
	e, _ := t.At(h)
	t.setBinding(h, e.Flags|EverBound, nonce)
}

// SetFlags sets flags of h.
func (t *Table) SetFlags(h Handle, f Flags) {
	if e, ok := t.At(h); ok && !e.Is(f) {
		t.setBinding(h, e.Flags|f, e.Nonce)
	}
}

// ClearFlags clears flags of h.
func (t *Table) ClearFlags(h Handle, f Flags) {
	if e, ok := t.At(h); ok && e.Flags&f != 0 {
		t.setBinding(h, e.Flags&^f, e.Nonce)
	}
}

func (t *Table) setBinding(h Handle, flags Flags, nonce uint16) {
	t.identity(h.slot()).write(func(r *identity) { r.setBinding(flags, nonce) })
}

// SetNextHop stores the next hop of the present endpoint. Each change of the endpoint clears it in
// the same write. If it was not zero, the caller waits for a grace period of the program before it
// relies on the new one.
func (t *Table) SetNextHop(h Handle, nextHop NextHop) {
	r := t.identity(h.slot())
	r.state.Store(uint32(nextHop)<<16 | r.state.Load()&(1<<16-1))
}

// setEndpoint adds the new endpoint to the index before the record changes, and removes the old
// one after it.
func (t *Table) setEndpoint(h Handle, old, ep endpoint.Endpoint) {
	slot := h.slot()
	if !ep.IsZero() {
		hash := t.hashEndpoint(ep)
		t.byEndpoint.shard(hash).insert(hash, slot, t.rehashEndpoint)
		t.w.bound.Add(1)
	}
	t.identity(slot).writeNextHop(0, func(r *identity) { r.setEndpoint(ep) })
	if !old.IsZero() {
		hash := t.hashEndpoint(old)
		t.byEndpoint.shard(hash).remove(hash, slot)
		t.w.bound.Add(-1)
	}
}

// Link opens a link in both directions at once. The caller has checked that there is none.
func (t *Table) Link(joiner, host Handle) {
	t.identity(joiner.slot()).write(func(r *identity) { r.link.Store(uint64(host)) })
	h, j := t.Account(host), t.Account(joiner)
	if h.NextLinked == 0 {
		h.NextLinked, h.PrevLinked = host.slot()+1, host.slot()+1
	}
	j.NextLinked, j.PrevLinked = h.NextLinked, host.slot()+1
	t.AccountAt(h.NextLinked - 1).PrevLinked = joiner.slot() + 1
	h.NextLinked = joiner.slot() + 1
	h.Links++
	t.w.links.Add(1)
}

// LinkedJoiners yields the joiners of a live host, the oldest link first. The caller changes no
// link meanwhile.
func (t *Table) LinkedJoiners(host Handle) iter.Seq[Handle] {
	return func(yield func(Handle) bool) {
		end := host.slot() + 1
		for slot := t.Account(host).PrevLinked; slot != 0 && slot != end; slot = t.AccountAt(slot - 1).PrevLinked {
			if !yield(t.HandleAt(slot - 1)) {
				return
			}
		}
	}
}

// Unlink closes a link in both directions at once. It reports false when there was none, or its
// host has ended.
func (t *Table) Unlink(joiner Handle) bool {
	e, ok := t.At(joiner)
	if !ok || e.Link == 0 {
		return false
	}
	t.identity(joiner.slot()).write(func(r *identity) { r.link.Store(0) })
	if _, alive := t.At(e.Link); !alive {
		return false
	}
	a := t.Account(joiner)
	t.AccountAt(a.NextLinked - 1).PrevLinked = a.PrevLinked
	t.AccountAt(a.PrevLinked - 1).NextLinked = a.NextLinked
	t.Account(e.Link).Links--
	t.w.links.Add(-1)
	return true
}

// End closes a host's links by its generation, which every joiner's link names.
func (t *Table) End(h Handle) (Entry, bool) {
	e, ok := t.At(h)
	if !ok {
		return Entry{}, false
	}
	t.Unlink(h)
	t.w.links.Add(-int64(t.Account(h).Links))
	t.identity(h.slot()).writeNextHop(0, func(r *identity) {
		r.setMeta(h.generation(), RoleNone)
		r.setID(proto.AllocationID{})
		r.setEndpoint(endpoint.Endpoint{})
		r.link.Store(0)
	})
	hash := t.hashID(e.ID)
	t.byID.shard(hash).remove(hash, h.slot())
	if t.w.ids != nil {
		t.w.ids.remove(e.ID, h.slot())
	}
	if !e.Endpoint.IsZero() {
		hash = t.hashEndpoint(e.Endpoint)
		t.byEndpoint.shard(hash).remove(hash, h.slot())
		t.w.bound.Add(-1)
	}
	t.w.live.Add(-1)
	return e, true
}

// Recycle lets the slot of h be used again. The caller has waited for a grace period since the
// end.
func (t *Table) Recycle(h Handle) { t.w.free = append(t.w.free, h.slot()) }

// Each slot in an index that grows still has the key it was inserted under.
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
