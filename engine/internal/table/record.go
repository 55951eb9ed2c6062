package table

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Tick is in units of 250 ms. 31 bits of it are used, which last for 17 years.
type Tick uint32

// AtHostsEnd is the Account.UnlinkedAt of a joiner that another process continues and whose link
// ended with its host, which Entry.Link does not name any more.
const AtHostsEnd Tick = 1<<31 - 1

const TickMillis = 250

type Role uint8

// RoleNone marks a free slot.
const (
	RoleNone   Role = 0
	RoleHost   Role = 1
	RoleJoiner Role = 2
)

// Handle is a slot and its generation. It turns stale when the allocation ends; zero is never
// valid.
type Handle uint64

func makeHandle(slot, generation uint32) Handle {
	return Handle(uint64(slot)<<32 | uint64(generation))
}

func (h Handle) slot() uint32       { return uint32(h >> 32) }
func (h Handle) generation() uint32 { return uint32(h) }

// identity is what every worker reads for each datagram from or to its owner, in one cache line.
// Control alone writes it, under the sequence number, but for path and NextHop; every word is an
// atomic.
type identity struct {
	state    atomic.Uint32    // sequence number in the low half, odd while control writes; NextHop in the high half
	path     atomic.Uint32    // to the endpoint, and Tick of the last RELAY to it, see AllowRelay
	meta     atomic.Uint64    // generation in the low half, role, flags and nonce above it; role 0: no allocation
	id       [2]atomic.Uint64 // as on the wire
	endpoint [3]atomic.Uint64 // that its owner is bound to; zero: none
	link     atomic.Uint64    // a joiner's link: the Handle of its host; zero: none
}

// Activity is what the worker of its owner writes, on a line of its own: that of its RELAYs and of
// what it is sent in reply. Other workers use it only for ERROR 3, and for RELAYs on a path that
// is not validated. Workers keep a pointer to it no longer than their batch.
type Activity struct {
	// Tick of the last message but BIND from its endpoint, doubled; zero: none; see RecordMessage
	heard        atomic.Uint32
	relayed      atomic.Uint32                    // Tick of the last RELAY from its owner
	quotaGate    atomic.Uint64                    // see Quota
	counterIndex atomic.Uint32                    // Spec.CounterIndex; control stores it in Reserve
	received     atomic.Uint32                    // Tick of the last datagram from its owner
	notified     atomic.Uint32                    // Tick of the last message of control to its owner
	unvalidated  atomic.Uint32                    // Tick of the last RELAY to its owner on earlier paths, or before this one was validated
	sent         atomic.Uint64                    // RELAYs of its owner, see Sent
	notConnected [NotConnectedSlots]atomic.Uint64 // gates of ERROR 5 by peer, see TakeNotConnected
}

// LargeMessages is written only for messages that are too large for the path to an allocation's
// owner, or may be for its client, so it needs no line of its own.
type LargeMessages struct {
	dropped   atomic.Uint32
	forwarded atomic.Uint32 // those that may be too large, and reported
}

// The host's match was reported.
const reported = 1 << 31

// Flags are what workers need to handle a BIND.
type Flags uint8

const (
	// EverBound: a BIND was accepted, and Entry.Nonce is its nonce.
	EverBound Flags = 1 << iota
	// BindConfirmed: the BIND_RECEIVED for its present endpoint has left, so that a worker may
	// answer the same BIND at once.
	BindConfirmed
	// ExpiryDeferred: a BIND that failed for its nonce has deferred expiry, and no other one does.
	ExpiryDeferred
	Recovered
	// Individual: [Table.Player] is one player, not many that share a token.
	Individual
	// EverLinked: a host had a link once, a joiner that came back had one before.
	EverLinked
)

// Entry is a consistent copy of the identity of one allocation.
type Entry struct {
	Handle   Handle
	Link     Handle // of a joiner: the host it was linked to; stale once the host has ended
	Endpoint endpoint.Endpoint
	ID       proto.AllocationID
	Role     Role
	Flags    Flags
	Nonce    uint16 // of the last BIND that was accepted
}

// Is reports whether all of the flags are set.
func (e *Entry) Is(f Flags) bool { return e.Flags&f == f }

// NextHop names an entry in a table of a program in the kernel, which sends to the endpoint
// itself; with zero it leaves that to workers.
type NextHop uint16

// NextHopUnseen is set until the program has received a RELAY of the endpoint, at the address to
// which it is bound. Where the kernel translates addresses before the socket that never happens,
// and the program does not send there: the kernel must translate what it gets.
const NextHopUnseen NextHop = 1 << 15

// Control alone calls write, which runs change with the sequence number odd.
func (r *identity) write(change func(r *identity)) {
	r.writeNextHop(NextHop(r.state.Load()>>16), change)
}

// writeNextHop stores the next hop in its first store: a program in the kernel that sees a new
// endpoint or a part of it cannot see the old endpoint's next hop.
func (r *identity) writeNextHop(nextHop NextHop, change func(r *identity)) {
	seq := uint16(r.state.Load())
	r.state.Store(uint32(nextHop)<<16 | uint32(seq+1))
	change(r)
	r.state.Store(uint32(nextHop)<<16 | uint32(seq+2))
}

func (r *identity) setID(id proto.AllocationID) {
	r.id[0].Store(binary.LittleEndian.Uint64(id[:8]))
	r.id[1].Store(binary.LittleEndian.Uint64(id[8:]))
}

func (r *identity) setEndpoint(ep endpoint.Endpoint) {
	r.endpoint[0].Store(ep.Hi)
	r.endpoint[1].Store(ep.Lo)
	r.endpoint[2].Store(ep.Tail)
}

func (r *identity) setMeta(generation uint32, role Role) {
	r.meta.Store(uint64(role)<<32 | uint64(generation))
}

func (r *identity) setBinding(flags Flags, nonce uint16) {
	const rest = 1<<40 - 1
	r.meta.Store(uint64(nonce)<<48 | uint64(flags)<<40 | r.meta.Load()&rest)
}

// Control writes owner before anybody finds the record.
type owner struct {
	tenant atomic.Uint64
	player [2]atomic.Uint64
}

// Account is control's part of a record, valid until the allocation ends.
type Account struct {
	Match proto.AllocationID // id of the host of its match; a host's own id
	// LostEndpoint is the caller's hash of the endpoint that another allocation took over at
	// EndpointAt, zero for none. Else EndpointAt is when it was bound to its endpoint, zero if it
	// took that back.
	LostEndpoint uint32
	EndpointAt   Tick
	LinkGate     uint32 // of new links, see Rate.TakePlain

	ReservedAt    Tick
	DeferredUntil Tick // it does not expire before; zero: never deferred
	CloseAt       Tick // a CLOSE takes effect after this unless the owner sends something; zero: none
	UnlinkAt      Tick // of a joiner: its link ends after this unless DisconnectedBy relays; zero: none
	// UnlinkedAt is when one side closed the link of a joiner, the last one of a host; zero: none
	// has, or the joiner has a link. See [AtHostsEnd].
	UnlinkedAt Tick
	// MigrationAt is when a joiner was first a candidate, and when a host last sent a DISCONNECT
	// of a player; zero: never.
	MigrationAt Tick

	StateIndex uint32 // index of its record in the state file; zero: none

	Next, Prev uint32 // neighbours in the timer wheel, as slot+1

	// As slot+1.
	NextOfPlayer, PrevOfPlayer uint32

	// The ring of a host and its linked joiners, as slot+1, see [Table.LinkedJoiners]. Those of a
	// joiner mean nothing without a link to a live host.
	NextLinked, PrevLinked uint32

	Bucket         uint16 // bucket of the timer wheel, as index+1; zero: in none
	Epoch          uint16 // key epoch of its connection data
	MaxConnections uint16 // of a host
	Links          uint16 // open links of a host
	Removals       uint16 // of a host: players of which it sent a DISCONNECT in a series that ended at MigrationAt
	AwaitedLinks   uint16 // of a host that came back: its links before the restart that have not come back

	DisconnectedBy Role // the sender of the DISCONNECT that UnlinkAt waits for
	RemovedByHost  bool // of a joiner without a link: its host sent a DISCONNECT of it
	LinkBlocked    bool // of a joiner that came back: it had no link, so none comes back
	ExpiryPending  bool // it has expired and waits for the grace period
}

// SlabRecords: the collector sees few objects, and an idle relay stays small.
const SlabRecords = 1024

// Slab has what workers read and write for each datagram. It holds no pointers, so the collector
// never scans it, and it never moves; it may be memory shared with the kernel, see [NewTableIn].
// Identities and activities are apart: workers that read identities would also draw the lines next
// to them, which other workers write.
type Slab struct {
	identities [SlabRecords]identity
	activities [SlabRecords]Activity
}

// coldSlab is not used per datagram.
type coldSlab struct {
	large      [SlabRecords]LargeMessages
	mismatches [SlabRecords]atomic.Uint32 // gates of ERROR 3 that names the allocation, see TakeMismatch
	excess     [SlabRecords]atomic.Uint32 // gates of what goes beyond the allowance of a limited path, see TakeExcess
	owners     [SlabRecords]owner
	accounts   [SlabRecords]Account
}
