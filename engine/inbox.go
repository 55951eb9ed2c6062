package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// class sorts commands, so that a rush of one sort does not keep the other out.
type class uint8

const (
	// known: whoever asks has been here before: a further BIND of a bound
	// allocation, or a message of a bound endpoint.
	known class = iota
	// fresh: the first BIND of an allocation.
	fresh
)

// The sizes of the two rings of an inbox, and how many commands of each control
// decides before it turns to the next worker: known goes before fresh, three to
// one. 1,024 commands are a few milliseconds of control's work; beyond that the
// newest is dropped, and its client repeats it within a second.
const (
	knownRing, freshRing         = 768, 256
	knownPerRound, freshPerRound = 96, 32
)

const (
	// shares is the number of buckets of source prefixes, by a secret hash.
	sourceBuckets = 256
	// shareUnderLoad is how many commands of one bucket and class may wait while
	// the worker is under load, so that nobody fills the rings alone.
	bucketLimit = 16
	// loadedMillis is how long a worker counts as under load after the last sign
	// of it (WireGuard's rule).
	underLoadMillis = 1000
)

// inbox is how commands of one worker reach control: two bounded rings.
type inbox struct {
	rings  [2]ring
	queued [2][sourceBuckets]atomic.Int32 // commands that wait, by class and bucket

	unlimited   bool  // no shares, however loaded
	loadedUntil int64 // ms; the worker's
}

func newInbox(unshared bool) *inbox {
	b := &inbox{unlimited: unshared}
	b.rings[known].slots = make([]command, knownRing)
	b.rings[fresh].slots = make([]command, freshRing)
	return b
}

// strained notes a sign of load: a ring that is an eighth full, or a receive
// batch that came full.
func (b *inbox) noteLoad(now int64) { b.loadedUntil = now + underLoadMillis }

// loaded reports whether the worker is under load.
func (b *inbox) isUnderLoad(now int64) bool {
	for i := range b.rings {
		if r := &b.rings[i]; r.size() >= len(r.slots)/8 {
			b.noteLoad(now)
		}
	}
	return now < b.loadedUntil
}

// push hands a command over. The number says which command it is, see pending.
func (b *inbox) push(q class, c *command) (uint64, Outcome) {
	held := &b.queued[q][c.bucket]
	if held.Load() >= bucketLimit && !b.unlimited && b.isUnderLoad(c.now) {
		return 0, DropLoad
	}
	n, ok := b.rings[q].push(c)
	if !ok {
		return 0, DropBusy
	}
	held.Add(1)
	return n<<1 | uint64(q), outcomePending
}

// pending reports whether the command of that number still waits; zero is the
// number of none.
func (b *inbox) isPending(n uint64) bool { return b.rings[n&1].isPending(n >> 1) }

// pump lets control decide a bounded number of commands, and reports whether
// more may wait.
func (b *inbox) drain(decide func(*command)) bool {
	k := b.drainRing(known, knownPerRound, decide)
	f := b.drainRing(fresh, freshPerRound, decide)
	return k == knownPerRound || f == freshPerRound
}

func (b *inbox) drainRing(q class, max int, decide func(*command)) int {
	return b.rings[q].drain(max, func(c *command) {
		decide(c)
		b.queued[q][c.bucket].Add(-1)
	})
}

// command is a datagram that passed the worker's checks and asks for a change
// of state, on which control decides.
type command struct {
	kind   proto.Type
	bucket uint8 // bucket of the source prefix, see inbox
	from   endpoint.Endpoint
	sender table.Entry        // whom the worker found at from; not for BIND
	peer   proto.AllocationID // DISCONNECT, RELAY: the To field
	nonce  uint16             // BIND
	now    int64              // ms; when the worker had it
	claims claims             // BIND: its own; CONNECT_REQUEST: the target's
	large  largeMessage       // of a RELAY whose outcome the worker has counted
}

// claims is what connection data says, as far as control needs it.
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
}

func claimsOf(c *alloc.Claims) claims {
	return claims{
		role: c.Role, id: c.ID, match: c.Match, joiner: c.Joiner, player: c.Player, tenant: c.Tenant,
		boot: c.Boot, maxConnections: c.MaxConnections, epoch: c.Epoch,
	}
}

// ring carries commands from one worker, which pushes, to control, which pops.
type ring struct {
	slots []command
	_     [64]byte
	tail  atomic.Uint64 // commands ever pushed; the worker's
	_     [56]byte
	head  atomic.Uint64 // commands ever decided; control's
	_     [56]byte
}

// push returns the number of the command, from 1, or false when the ring is
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

// drain calls decide for every command that waits, up to max, and takes each
// off the ring after it was decided, so that the worker can tell which of its
// commands are still on their way.
func (r *ring) drain(max int, decide func(*command)) int {
	head, tail := r.head.Load(), r.tail.Load()
	n := 0
	for ; head != tail && n < max; n++ {
		decide(&r.slots[head%uint64(len(r.slots))])
		head++
		r.head.Store(head)
	}
	return n
}

// waiting returns how many commands are on the ring.
func (r *ring) size() int { return int(r.tail.Load() - r.head.Load()) }

// pending reports whether command number n still waits for control.
func (r *ring) isPending(n uint64) bool { return n > r.head.Load() }
