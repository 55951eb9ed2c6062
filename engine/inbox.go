package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// class is the class of a command. Each class has a ring of its own, so that a flood of
// one cannot keep the other out.
type class uint8

const (
	// known: a further BIND of a bound allocation, or a message of a bound endpoint.
	known class = iota
	// fresh: the first BIND of an allocation.
	fresh
)

// The sizes of the two rings of an inbox, and how many commands of each control executes
// before it turns to the next worker: known before fresh, three to one. 1,024 commands
// are a few milliseconds of control's work. When a ring is full the newest command is
// dropped, and its client repeats it within a second.
const (
	knownRing, freshRing         = 768, 256
	knownPerRound, freshPerRound = 96, 32
)

const (
	// sourceBuckets is the number of buckets of source prefixes, by a keyed hash.
	sourceBuckets = 256
	// bucketLimit is how many commands of one bucket and class may wait while the
	// worker is under load, so that one source cannot fill the rings.
	bucketLimit = 16
	// underLoadMillis is how long a worker is under load after the last sign of it, as
	// in WireGuard.
	underLoadMillis = 1000
)

// inbox carries the commands of one worker to control, in two bounded rings.
type inbox struct {
	rings  [2]ring
	queued [2][sourceBuckets]atomic.Int32 // commands that wait, by class and bucket

	unlimited   bool  // bucketLimit is off
	loadedUntil int64 // ms; the worker's
}

func newInbox(unshared bool) *inbox {
	b := &inbox{unlimited: unshared}
	b.rings[known].slots = make([]command, knownRing)
	b.rings[fresh].slots = make([]command, freshRing)
	return b
}

// noteLoad records a sign of load: a ring that is an eighth full, or a full receive
// batch.
func (b *inbox) noteLoad(now int64) { b.loadedUntil = now + underLoadMillis }

// isUnderLoad reports whether the worker is under load.
func (b *inbox) isUnderLoad(now int64) bool {
	for i := range b.rings {
		if r := &b.rings[i]; r.size() >= len(r.slots)/8 {
			b.noteLoad(now)
		}
	}
	return now < b.loadedUntil
}

// push adds a command, and returns its number for isPending.
func (b *inbox) push(q class, c *command) (uint64, Outcome) {
	queued := &b.queued[q][c.bucket]
	if queued.Load() >= bucketLimit && !b.unlimited && b.isUnderLoad(c.now) {
		return 0, DropLoad
	}
	n, ok := b.rings[q].push(c)
	if !ok {
		return 0, DropBusy
	}
	queued.Add(1)
	return n<<1 | uint64(q), outcomePending
}

// isPending reports whether the command with that number still waits. No command has the
// number zero.
func (b *inbox) isPending(n uint64) bool { return b.rings[n&1].isPending(n >> 1) }

// drain calls execute for a bounded number of commands, and reports whether more may
// wait.
func (b *inbox) drain(execute func(*command)) bool {
	k := b.drainRing(known, knownPerRound, execute)
	f := b.drainRing(fresh, freshPerRound, execute)
	return k == knownPerRound || f == freshPerRound
}

func (b *inbox) drainRing(q class, max int, execute func(*command)) int {
	return b.rings[q].drain(max, func(c *command) {
		execute(c)
		b.queued[q][c.bucket].Add(-1)
	})
}

// command is a datagram that passed the worker's checks and requests a change of
// state from control.
type command struct {
	kind   proto.Type
	bucket uint8 // bucket of the source prefix, see inbox
	from   endpoint.Endpoint
	sender table.Entry        // the allocation that is bound to from; not for BIND
	peer   proto.AllocationID // DISCONNECT, RELAY: the To field
	nonce  uint16             // BIND
	now    int64              // ms; when the worker received it
	claims claims             // BIND: its own; CONNECT_REQUEST: the target's
	large  largeMessage       // of a RELAY whose outcome the worker has counted
}

// claims are the contents of connection data that control needs.
type claims struct {
	role           alloc.Role
	id             proto.AllocationID
	match          proto.AllocationID
	joiner         proto.AllocationID
	player         alloc.PlayerHash
	tenant         uint64
	boot           uint64
	maxConnections uint16 // maximum of connections
	epoch          uint16
	path           path
}

// path is what a BIND shows about the path to its source.
type path uint8

const (
	// pathUnknown: the network of the reservation's caller is not known.
	pathUnknown path = iota
	// pathValidated: its sender has received something from this machine at that
	// network, in a handshake or in the API's answer.
	pathValidated
	// pathElsewhere: the reservation's caller was in another network, so the source
	// may be forged.
	pathElsewhere
)

func claimsOf(c *alloc.Claims) claims {
	return claims{
		role: c.Role, id: c.ID, match: c.Match, joiner: c.Joiner, player: c.Player, tenant: c.Tenant,
		boot: c.Boot, maxConnections: c.MaxConnections, epoch: c.Epoch,
	}
}

// ring is a bounded queue with one producer, a worker, and one consumer, control.
type ring struct {
	slots []command
	_     [64]byte
	tail  atomic.Uint64 // commands ever pushed; the worker's
	_     [56]byte
	head  atomic.Uint64 // commands ever decided; control's
	_     [56]byte
}

// push adds a command and returns its number, from 1 on, or false if the ring is
// full.
func (r *ring) push(c *command) (uint64, bool) {
	tail := r.tail.Load()
	size := uint64(len(r.slots))
	if tail-r.head.Load() == size {
		return 0, false
	}
	r.slots[tail%size] = *c
	r.tail.Store(tail + 1)
	return tail + 1, true
}

// drain calls execute for up to max commands, and removes each from the ring only
// afterwards, so that the worker can tell which of its commands are still pending.
func (r *ring) drain(max int, execute func(*command)) int {
	head, tail := r.head.Load(), r.tail.Load()
	n := 0
	for ; head != tail && n < max; n++ {
		execute(&r.slots[head%uint64(len(r.slots))])
		head++
		r.head.Store(head)
	}
	return n
}

// size returns the number of waiting commands.
func (r *ring) size() int { return int(r.tail.Load() - r.head.Load()) }

// isPending reports whether command number n still waits.
func (r *ring) isPending(n uint64) bool { return n > r.head.Load() }
