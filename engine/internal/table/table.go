package table

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"runtime"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// DefaultMaxAllocations take at most 512 MiB of memory.
const DefaultMaxAllocations = 1_000_000

// Table holds every allocation, by its endpoint and by its id. Any goroutine may call the methods
// in this file at any time; they take no lock. Those in writer.go belong to control.
type Table struct {
	secret     [4]uint64
	slabs      []atomic.Pointer[Slab]
	byEndpoint index
	byID       index

	w    writer
	cold []atomic.Pointer[coldSlab]
}

// NewTable returns a table for at most max allocations; zero or less means
// [DefaultMaxAllocations]. Memory is taken as allocations come.
func NewTable(max int) *Table {
	return NewTableIn(Memory{Slab: func(int) *Slab { return new(Slab) }}, max)
}

// NewTableIn returns a table in the memory of a provider. Control calls m.Slab for slab 0, 1 and
// so on, at most max/SlabRecords, rounded up. All memory is zero, begins at a multiple of 64
// bytes, belongs to the table alone, and is valid as long as the table.
func NewTableIn(m Memory, max int) *Table {
	if max <= 0 {
		max = DefaultMaxAllocations
	}
	n := (max + SlabRecords - 1) / SlabRecords
	t := &Table{slabs: make([]atomic.Pointer[Slab], n), cold: make([]atomic.Pointer[coldSlab], n)}
	t.w.slab = m.Slab
	if m.IDs != nil {
		t.w.ids = &sharedIDs{cells{m.IDs}, m.IDSecret}
	}
	var seed [32]byte
	rand.Read(seed[:])
	for i := range t.secret {
		t.secret[i] = binary.LittleEndian.Uint64(seed[i*8:])
	}
	t.byEndpoint.init()
	t.byID.init()
	t.w.max = max
	return t
}

// FindByEndpoint stores the allocation that is bound to ep in e, which is undefined if there is
// none. It writes to the caller's entry because a processor stalls on an entry that is copied
// right after it was written.
func (t *Table) FindByEndpoint(ep endpoint.Endpoint, e *Entry) bool {
	hash := t.hashEndpoint(ep)
	tag, shard := tagOf(hash), t.byEndpoint.shard(hash)
	for c := shard.cells.Load(); ; {
		for at := hash; ; at++ {
			line := c.line(at)
			for found := line.match(tag); found != 0; found &= found - 1 {
				slot, ok := line.slot(found, tag)
				if ok && t.identity(slot).snapshot(slot, e) && e.Endpoint == ep {
					return true
				}
			}
			if line.hasEmpty() {
				break
			}
		}
		// A miss counts only on the current cells.
		current := shard.cells.Load()
		if current == c {
			return false
		}
		c = current
	}
}

// FindPeer stores the allocation with id to in e and reports whether it and from are linked; if
// not, e is undefined.
func (t *Table) FindPeer(from *Entry, to *proto.AllocationID, e *Entry) bool {
	if from.Role == RoleJoiner {
		return t.findAt(from.Link, e) && e.ID == *to
	}
	return t.findID(to, e) && e.Link == from.Handle
}

// ByID returns the allocation with that id, bound or not.
func (t *Table) ByID(id proto.AllocationID) (e Entry, ok bool) {
	if !t.findID(&id, &e) {
		return Entry{}, false
	}
	return e, true
}

// findID repeats the loop of FindByEndpoint, because a call for the comparison of keys would cost
// more than the comparison.
func (t *Table) findID(id *proto.AllocationID, e *Entry) bool {
	hash := t.hashID(*id)
	tag, shard := tagOf(hash), t.byID.shard(hash)
	for c := shard.cells.Load(); ; {
		for at := hash; ; at++ {
			line := c.line(at)
			for found := line.match(tag); found != 0; found &= found - 1 {
				slot, ok := line.slot(found, tag)
				if ok && t.identity(slot).snapshot(slot, e) && e.ID == *id {
					return true
				}
			}
			if line.hasEmpty() {
				break
			}
		}
		current := shard.cells.Load()
		if current == c {
			return false
		}
		c = current
	}
}

// At returns the allocation that h names, unless it has ended.
func (t *Table) At(h Handle) (e Entry, ok bool) {
	if !t.findAt(h, &e) {
		return Entry{}, false
	}
	return e, true
}

func (t *Table) findAt(h Handle, e *Entry) bool {
	return h != 0 && t.identity(h.slot()).snapshot(h.slot(), e) && e.Handle == h
}

// Counts are read one by one.
func (t *Table) Counts() (allocations, bound, links int) {
	return int(t.w.live.Load()), int(t.w.bound.Load()), int(t.w.links.Load())
}

// snapshot reports false when the slot is empty. A reader that meets control in the middle of a
// write waits for it.
func (r *identity) snapshot(slot uint32, e *Entry) bool {
	for spins := 0; ; spins++ {
		before := r.state.Load()
		if before&1 == 0 {
			meta := r.meta.Load()
			binary.LittleEndian.PutUint64(e.ID[:8], r.id[0].Load())
			binary.LittleEndian.PutUint64(e.ID[8:], r.id[1].Load())
			e.Endpoint = endpoint.Endpoint{Hi: r.endpoint[0].Load(), Lo: r.endpoint[1].Load(), Tail: r.endpoint[2].Load()}
			e.Link = Handle(r.link.Load())
			if r.state.Load() == before {
				e.Handle = makeHandle(slot, uint32(meta))
				e.Role, e.Flags, e.Nonce = Role(meta>>32), Flags(meta>>40), uint16(meta>>48)
				return e.Role != RoleNone
			}
		}
		pause(spins)
	}
}

// pause lets control finish a write. Control may have been descheduled in the
// middle of one, so a reader that spins for long gives its processor away.
//
//go:noinline
func pause(spins int) {
	if spins > 64 {
		runtime.Gosched()
	}
}

func (t *Table) identity(slot uint32) *identity {
	return &t.slabs[slot/SlabRecords].Load().identities[slot%SlabRecords]
}

// Activity belongs to the slot: see point 4 of the contract.
func (t *Table) Activity(h Handle) *Activity {
	slot := h.slot()
	return &t.slabs[slot/SlabRecords].Load().activities[slot%SlabRecords]
}

// LargeMessages belongs to the slot, as Activity does.
func (t *Table) LargeMessages(h Handle) *LargeMessages {
	slot := h.slot()
	return &t.cold[slot/SlabRecords].Load().large[slot%SlabRecords]
}

func (t *Table) owner(h Handle) *owner {
	slot := h.slot()
	return &t.cold[slot/SlabRecords].Load().owners[slot%SlabRecords]
}

// Tenant returns Spec.Tenant. Ask At again afterwards, unless h is live for certain, as for
// control.
func (t *Table) Tenant(h Handle) uint64 { return t.owner(h).tenant.Load() }

// Player returns Spec.Player, as Tenant does.
func (t *Table) Player(h Handle) (player [16]byte) {
	o := t.owner(h)
	binary.LittleEndian.PutUint64(player[:8], o.player[0].Load())
	binary.LittleEndian.PutUint64(player[8:], o.player[1].Load())
	return player
}

// The gate is not on the line of Activity: an attacker may have it written at will.
func (t *Table) mismatchGate(h Handle) *atomic.Uint32 {
	slot := h.slot()
	return &t.cold[slot/SlabRecords].Load().mismatches[slot%SlabRecords]
}

func (t *Table) excessGate(h Handle) *atomic.Uint32 {
	slot := h.slot()
	return &t.cold[slot/SlabRecords].Load().excess[slot%SlabRecords]
}

// NextHop returns how a program in the kernel sends to the endpoint of h.
func (t *Table) NextHop(h Handle) NextHop { return NextHop(t.identity(h.slot()).state.Load() >> 16) }

// hashEndpoint and hashID are keyed per table, so that an attacker cannot choose endpoints that
// collide, as with [endpoint.Mix64], whose differences are partly predictable without the key.
func (t *Table) hashEndpoint(ep endpoint.Endpoint) uint64 {
	return t.mix(foldMultiply(ep.Hi^t.secret[0], ep.Lo^t.secret[1]), ep.Tail^t.secret[2])
}

func (t *Table) hashID(id proto.AllocationID) uint64 {
	a, b := binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])
	return t.mix(a^t.secret[1], b^t.secret[2])
}

// mix hashes a and b, and the result with itself: where only one of them varies, as in a sequence
// of ports, a single product would be as even as its factor happens to be.
func (t *Table) mix(a, b uint64) uint64 {
	h := foldMultiply(a, b)
	return foldMultiply(h, h^t.secret[3])
}

// foldMultiply combines the halves of a 128-bit product, as wyhash does.
func foldMultiply(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// RecordReceive records that the owner sent a datagram. It writes only when the tick changes.
func (a *Activity) RecordReceive(tick Tick) { advance(&a.received, tick) }

// RecordNotice records that control sends the owner a message.
func (a *Activity) RecordNotice(tick Tick) { advance(&a.notified, tick) }

// RecordRelay records at tick that a RELAY of the owner is relayed.
func (a *Activity) RecordRelay(tick Tick) { advance(&a.relayed, tick) }

// sentBytesBits of Activity.sent count bytes; the upper ones count datagrams.
const sentBytesBits = 36

// The counts of [Activity.Sent] begin again at zero at these values: after 74 hours at 1,000
// datagrams a second, and after 19 hours at 1 MB a second.
const (
	SentDatagramsLimit = 1 << (64 - sentBytesBits)
	SentBytesLimit     = 1 << sentBytesBits
)

// CountRelay may lose one of two at once, on two workers.
func (a *Activity) CountRelay(size int) {
	a.sent.Store(a.sent.Load() + 1<<sentBytesBits + uint64(size))
}

// Sent returns the RELAYs of the owner that were relayed, and their bytes, below
// SentDatagramsLimit and SentBytesLimit. Each overflow of the bytes counts as a datagram.
func (a *Activity) Sent() (datagrams, bytes uint64) {
	sent := a.sent.Load()
	return sent >> sentBytesBits, sent % SentBytesLimit
}

// advance reports whether it wrote. A timestamp never goes back, as a worker may be late, and of
// two writes at once the later time stays.
func advance(timestamp *atomic.Uint32, tick Tick) bool {
	for old := timestamp.Load(); old < uint32(tick); old = timestamp.Load() {
		if timestamp.CompareAndSwap(old, uint32(tick)) {
			return true
		}
	}
	return false
}

// LastSeen returns when the owner of h last sent, and when it last sent or received.
func (t *Table) LastSeen(h Handle) (received, active Tick) {
	a := t.Activity(h)
	received = Tick(a.received.Load())
	return received, max(received, Tick(a.notified.Load()), t.lastRelayTo(h))
}

// LastRelays includes a link that the joiner had before.
func (t *Table) LastRelays(joiner Handle) (fromHost, fromJoiner Tick) {
	return t.lastRelayTo(joiner), Tick(t.Activity(joiner).relayed.Load())
}

func (t *Table) lastRelayTo(h Handle) Tick {
	last := Tick(t.Activity(h).unvalidated.Load())
	if p := t.identity(h.slot()).path.Load(); p&validated != 0 {
		last = max(last, Tick(p&^validated))
	}
	return last
}

// CounterIndex lies on the line that a worker writes for each RELAY anyway.
func (a *Activity) CounterIndex() uint32 { return a.counterIndex.Load() }

// The path to an endpoint is one word: that it is validated and the tick of the last RELAY to it,
// or how many bytes may go there.
const (
	// validated (RFC 9000, section 8): any number of bytes may go there. The other bits are the
	// tick.
	validated = 1 << 31
	// limited: each received message increases the allowance, and none validates the path. The
	// other bits are bytes.
	limited = 1 << 30
	// maxAllowance of a limited endpoint, in bytes.
	maxAllowance = 1 << 20
)

// HasHeard reports whether RecordMessage need not be called for another message in this tick.
func (a *Activity) HasHeard(tick Tick) bool { return a.heard.Load() >= uint32(tick)<<1|1 }

// RecordMessage records that a message other than a BIND came from the endpoint of an entry: it
// validates the path, or increases the allowance of a limited one by so many bytes.
//
// The low bit of heard is set if the next message of the tick changes nothing. It is stored before
// the path is read, and BeginPath stores them in the other order: so either the new path is
// validated here, or the next message comes here again.
func (t *Table) RecordMessage(e *Entry, tick Tick, bytes int) {
	a := t.Activity(e.Handle)
	a.heard.Store(uint32(tick)<<1 | 1)
	advance(&a.received, tick)
	if !t.identity(e.Handle.slot()).increaseAllowance(e.Endpoint, bytes) {
		a.heard.Store(uint32(tick) << 1)
	}
}

// RecordHeard is RecordMessage without a change of the path.
func (a *Activity) RecordHeard(tick Tick) {
	if a.heard.Load() < uint32(tick)<<1 {
		a.heard.Store(uint32(tick) << 1)
	}
}

// LastHeard returns when a message other than a BIND last came from the owner's endpoint, zero if
// none did since it was bound there. A program in the kernel relays only for an owner that was
// heard, and records relayed alone.
func (a *Activity) LastHeard() Tick {
	heard := Tick(a.heard.Load() >> 1)
	if heard == 0 {
		return 0
	}
	return max(heard, Tick(a.relayed.Load()))
}

// increaseAllowance reports whether the path is validated. The owner may have moved since: the
// path is read first, and Bind precedes BeginPath, so a message of the former endpoint does not
// change the path to the new one.
func (r *identity) increaseAllowance(ep endpoint.Endpoint, bytes int) bool {
	for {
		old := r.path.Load()
		next := uint32(validated)
		if old&validated != 0 {
			return true
		}
		if r.endpoint[0].Load() != ep.Hi || r.endpoint[1].Load() != ep.Lo || r.endpoint[2].Load() != ep.Tail {
			return false
		}
		if old&limited != 0 {
			next = limited | min(old&^limited+uint32(min(bytes, maxAllowance)), maxAllowance)
		}
		if r.path.CompareAndSwap(old, next) {
			return next&validated != 0
		}
	}
}

// IsValidated reports whether the path to the endpoint of h is validated.
func (t *Table) IsValidated(h Handle) bool { return t.identity(h.slot()).path.Load()&validated != 0 }

// HasRelayed reports whether AllowRelay need not be called for another RELAY in this tick.
func (t *Table) HasRelayed(h Handle, tick Tick) bool {
	return t.identity(h.slot()).path.Load() == validated|uint32(tick)
}

// AllowRelay reports whether a RELAY of size bytes may go to the endpoint of h, and takes them
// from its allowance while the path is not validated. It records that the RELAY goes there.
func (t *Table) AllowRelay(h Handle, size int, tick Tick) bool {
	path := &t.identity(h.slot()).path
	for {
		old := path.Load()
		if old&validated != 0 {
			if old >= validated|uint32(tick) || path.CompareAndSwap(old, validated|uint32(tick)) {
				return true
			}
			continue
		}
		if old&^limited < uint32(size) {
			return false
		}
		if path.CompareAndSwap(old, old-uint32(size)) {
			advance(&t.Activity(h).unvalidated, tick)
			return true
		}
	}
}

// TakeExcess takes size bytes beyond the allowance of a limited path from q.
func (t *Table) TakeExcess(h Handle, q Quota, size int, nowMillis int64) bool {
	return t.identity(h.slot()).path.Load()&limited != 0 && q.TakeBytes(t.excessGate(h), size, nowMillis)
}

// RecordExcess records at tick that a RELAY beyond the allowance goes to the owner of h.
func (t *Table) RecordExcess(h Handle, tick Tick) { advance(&t.Activity(h).unvalidated, tick) }

// ChargeReply takes size bytes of the relay's own, which go in any case, from the allowance of a
// limited path, or else from q.
func (t *Table) ChargeReply(h Handle, q Quota, size int, nowMillis int64) {
	path := &t.identity(h.slot()).path
	for {
		old := path.Load()
		switch {
		case old&(validated|limited) != limited:
			return
		case old&^limited < uint32(size):
			gate := t.excessGate(h)
			for old := gate.Load(); ; old = gate.Load() {
				next, _ := takeCost(old, quotaClock(nowMillis), q.bytesCost(size), quotaBurst, quotaClockSkew)
				if gate.CompareAndSwap(old, next) {
					return
				}
			}
		case path.CompareAndSwap(old, old-uint32(size)):
			return
		}
	}
}

// TakeQuota reports whether the owner may relay size bytes within q, and counts them if so. Two
// workers at once may count one datagram for two, which is rare, since the kernel hands all
// datagrams of an endpoint to one worker, and does no harm.
func (a *Activity) TakeQuota(q Quota, size int, nowMillis int64) bool {
	return q == (Quota{}) || a.takeQuota(q, size, nowMillis)
}

func (a *Activity) takeQuota(q Quota, size int, nowMillis int64) bool {
	now, old := quotaClock(nowMillis), a.quotaGate.Load()
	datagram, bytes := q.cost(size)
	datagrams, ok1 := takeCost(uint32(old>>32), now, datagram, quotaBurst, quotaClockSkew)
	volume, ok2 := takeCost(uint32(old), now, bytes, quotaBurst, quotaClockSkew)
	if !ok1 || !ok2 {
		return false
	}
	a.quotaGate.Store(uint64(datagrams)<<32 | uint64(volume))
	return true
}

// AddDrop counts a message that was too large for the path to the owner.
func (l *LargeMessages) AddDrop() { l.dropped.Add(1) }

// Drops returns how many were counted.
func (l *LargeMessages) Drops() uint32 { return l.dropped.Load() }

// AddForwarded counts a message that may be too large for the owner's client.
func (l *LargeMessages) AddForwarded() { l.forwarded.Add(1) }

// Forwarded returns how many were counted.
func (l *LargeMessages) Forwarded() uint32 { return l.forwarded.Load() &^ reported }

// TakeReport reports true to one caller, the one to report the match of a host, until
// ReturnReport.
func (l *LargeMessages) TakeReport() bool {
	return l.forwarded.Load()&reported == 0 && l.forwarded.Or(reported)&reported == 0
}

// ReturnReport is called when the report was lost.
func (l *LargeMessages) ReturnReport() { l.forwarded.And(^uint32(reported)) }

// NotConnectedSlots is about how many peers one allocation may receive an ERROR 5 within a second:
// the record of them has a fixed size.
const NotConnectedSlots = 3

// NotConnectedMillis is the shortest time between two ERROR 5 to one allocation about one peer.
const NotConnectedMillis = 1000

// TakeNotConnected permits one ERROR 5 a second to the owner of h for each peer.
func (t *Table) TakeNotConnected(h Handle, peer proto.AllocationID, nowMillis int64) bool {
	const second = NotConnectedMillis // The clock of another worker may be as much behind.
	return takeOf(t.Activity(h).notConnected[:], uint32(t.hashID(peer)), uint32(nowMillis), second, second, second)
}

// TakeMismatch permits ERROR 3 that name the live allocation h, within rate.
func (t *Table) TakeMismatch(h Handle, rate Rate, nowMillis int64) bool {
	cost, burst := rate.millis()
	return takeShared(t.mismatchGate(h), uint32(nowMillis), cost, burst, clockSkewMillis)
}
