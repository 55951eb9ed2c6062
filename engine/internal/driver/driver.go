// Package driver has the interfaces of the optional parts of a relay that only packages of
// engine implement: what the engine and they call of each other.
package driver

import (
	"context"
	"net/netip"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// FastPath is a program in the kernel that relays between plain UDP endpoints, as one more
// worker on the records of the table: it relays a datagram as a worker does, or leaves it
// to one.
type FastPath interface {
	// Load prepares the program and returns the memory in which it expects the table. New
	// calls it once, before all other methods.
	Load(FastPathSpec) (table.Memory, error)
	// SetQuota is called by any goroutine.
	SetQuota(role table.Role, q table.Quota)
	// NextHop returns the next hop to an endpoint of plain UDP for datagrams that leave from the
	// address from, and zero if the program cannot send there. Control calls it.
	NextHop(to endpoint.Endpoint, from netip.AddrPort) table.NextHop
	// Generation returns the number of the state of the network that NextHop knows. From its
	// change on the program is off, until Resume is called with that number when the
	// next hops of all endpoints have been asked for again.
	Generation() uint64
	Resume(generation uint64)
	// Synchronize blocks until every run of the program that is under way has ended.
	Synchronize()
	// Traffic returns what was relayed for a counter index. Any goroutine calls it.
	Traffic(index uint32) (datagrams, bytes uint64)
	// Run attaches the program and follows the network until ctx ends, and then detaches
	// it. It calls changed when Generation has changed.
	Run(ctx context.Context, changed func()) error
	// Close releases what Load took, if Run was not called.
	Close()
	// Counts may be called by any goroutine.
	Counts() privateapi.FastPathCounts
	// Optional reports whether a relay works without the program if it cannot be loaded.
	Optional() bool
}

// FastPathSpec is what a [FastPath] must know of its relay.
type FastPathSpec struct {
	Listen         []netip.AddrPort // by listener, with their real ports
	MaxAllocations int
	MaxMessage     int // bytes of the largest RELAY
	ClockMillis    int64
}

// Records carries messages in records over the relay's own UDP sockets, as DTLS
// does: a datagram that is a record is opened before, and one to a session is
// sealed after, the relay's decision. Open and Seal are called by any worker,
// allocate nothing, and take a lock of the session only to reserve sequence numbers,
// at most some ten times a second.
type Records interface {
	// Open decrypts a datagram that begins with a byte of 20 to 63, in place. For a
	// record with a message of an established session it returns the session and the
	// message, a part of pkt. For any other it returns the zero Session: a part of a
	// handshake is copied, anything else dropped. It never blocks.
	Open(from endpoint.Endpoint, pkt []byte) (s Session, msg []byte)
	// Alive reports whether there is an established session at a UDP source. Plain
	// messages from there are dropped.
	Alive(from endpoint.Endpoint) bool
	// Seal appends the record with msg for a session to dst, and returns the UDP
	// endpoint of the session. It reports false if the session has ended.
	Seal(dst []byte, serial uint64, msg []byte) (record []byte, to endpoint.Endpoint, ok bool)
	// Source returns the UDP endpoint of a session, and false if it has ended. Any goroutine
	// may call it.
	Source(serial uint64) (from endpoint.Endpoint, ok bool)
	// MaxMessage returns the size in bytes of the largest message that is sent to a
	// session, at least 36, and SafeMessage that of the largest that every known client
	// accepts. A RELAY between both is forwarded and reported. They do not change.
	MaxMessage() int
	SafeMessage() int
	// HasRoom reports whether an allocation of an owner without a session could have one
	// now. Control calls it for each reservation.
	HasRoom(o Owner) bool
	// Begin is called once, before Open, Seal and Run.
	Begin(relay RecordsRelay)
	// Run serves handshakes until ctx ends, and leaves no goroutine behind.
	Run(ctx context.Context, relay RecordsRelay) error
}

// RecordsRelay is the relay as its [Records] use it. Any goroutine may call its
// methods, which never block.
type RecordsRelay interface {
	// Send queues a datagram of a handshake until the next call of Flush, or until
	// [HandshakeBatch] are queued. It copies pkt.
	Send(to endpoint.Endpoint, pkt []byte)
	// Flush sends the queued datagrams, those of one listener in one system call.
	Flush()
	// MayBind reports whether an allocation can be bound: it exists, or it may come
	// back after a restart.
	MayBind(id proto.AllocationID) bool
	IsBound(serial uint64) bool
	// OwnerOf returns for whom an allocation is, and false if it does not exist, or may
	// still come back after a restart.
	OwnerOf(id proto.AllocationID) (Owner, bool)
	KeyOf(id proto.AllocationID) proto.Key
	// SessionBegan is called when Alive has become true for a source.
	SessionBegan(from endpoint.Endpoint)
}

// Owner is for whom an allocation is, in digests.
type Owner struct {
	Project uint32 // with its environment
	Player  uint32 // without a known player, the allocation itself
}

// HandshakeBatch is how many datagrams of handshakes are sent per system call at most.
const HandshakeBatch = 64

// Session is an established session of [Records].
type Session struct {
	Serial uint64
	// ID is the allocation whose key authenticated the session. A BIND in the session
	// must name it.
	ID proto.AllocationID
}

// RecordOverhead is the most bytes by which a record is longer than its message.
const RecordOverhead = 64
