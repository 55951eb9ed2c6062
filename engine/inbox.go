package engine

import (
	"math/bits"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Each class has a ring of its own, so that a flood of one cannot keep the other out.
type class uint8

const (
	// known: a further BIND of a bound allocation, or a message of a bound endpoint.
	known class = iota
	// fresh: the first BIND of an allocation.
	fresh
)

// The sizes of the two rings, and how many commands of each control executes before it turns to
// the next worker: known before fresh, three to one. 1,024 commands are a few milliseconds of
// control's work. When a ring is full the newest command is dropped, and its client repeats it.
const (
	knownRing, freshRing         = 768, 256
	knownPerRound, freshPerRound = 96, 32
)

// classLimits: the commands of an inbox in a round, and the length of the action queue from which
// none is executed.
var classLimits = [2]struct{ perRound, actions int }{
	known: {knownPerRound, maxActions},
	fresh: {freshPerRound, maxFreshActions},
}

const (
	sourceBuckets = 256
	// bucketLimit per bucket and class, under load, so that one source cannot fill the rings.
	bucketLimit = 16
	// underLoadMillis is as in WireGuard.
	underLoadMillis = 1000
)

type inbox struct {
	rings  [2]ring
	queued [2][sourceBuckets]atomic.Int32 // commands that wait, by class and bucket

	unlimited   bool  // bucketLimit is off
	loadedUntil int64 // ms; the worker's

	ready *atomic.Uint64 // of the group in inboxes
	bit   uint64         // of the inbox there
}

func newInbox(unshared bool) *inbox {
	b := &inbox{unlimited: unshared, ready: new(atomic.Uint64), bit: 1}
	b.rings[known].slots = make([]command, knownRing)
	b.rings[fresh].slots = make([]command, freshRing)
	return b
}

// Load is a ring that is an eighth full, or a full receive batch.
func (b *inbox) noteLoad(now int64) { b.loadedUntil = now + underLoadMillis }

func (b *inbox) isUnderLoad(now int64) bool {
	for i := range b.rings {
		if r := &b.rings[i]; r.size() >= len(r.slots)/8 {
			b.noteLoad(now)
		}
	}
	return now < b.loadedUntil
}

func (b *inbox) push(q class, c *command) (uint64, outcome) {
	queued := &b.queued[q][c.bucket]
	if queued.Load() >= bucketLimit && !b.unlimited && b.isUnderLoad(c.now) {
		return 0, dropLoad
	}
	n, ok := b.rings[q].push(c)
	if !ok {
		return 0, dropBusy
	}
	queued.Add(1)
	// The bit is read after the ring was written, and control clears it before it reads
	// the ring. So if it is set here, control will see the command.
	if b.ready.Load()&b.bit == 0 {
		b.ready.Or(b.bit)
	}
	return n<<1 | uint64(q), outcomePending
}

// No command has the number zero.
func (b *inbox) isPending(n uint64) bool { return b.rings[n&1].isPending(n >> 1) }

func (b *inbox) drainRing(q class, max int, execute func(*command)) int {
	return b.rings[q].drain(max, func(c *command) {
		execute(c)
		b.queued[q][c.bucket].Add(-1)
	})
}

// inboxes has a bit for each inbox that may hold commands, so that control looks at no other one.
// It belongs to the control goroutine.
type inboxes struct {
	groups []*inboxGroup
	count  int
	first  int // inbox with which the next round begins
}

type inboxGroup struct {
	ready   atomic.Uint64 // workers set the bits of theirs, control clears them
	_       [56]byte
	members [64]*inbox
	left    [2]uint64 // by class: those in which control has left commands
}

// The worker of the inbox does not run yet.
func (s *inboxes) add(b *inbox) {
	if s.count%64 == 0 {
		s.groups = append(s.groups, new(inboxGroup))
	}
	g := s.groups[s.count/64]
	g.members[s.count%64] = b
	b.ready, b.bit = &g.ready, 1<<(s.count%64)
	s.count++
}

// drain executes a bounded number of commands of each inbox, and begins each round with another
// one.
func (s *inboxes) drain(queue *actionQueue, execute func(*command)) {
	if s.count == 0 {
		return
	}
	for _, g := range s.groups {
		if g.ready.Load() != 0 {
			ready := g.ready.Swap(0)
			g.left[known] |= ready
			g.left[fresh] |= ready
		}
	}
	upper := ^uint64(0) << (s.first % 64)
	for i := range len(s.groups) + 1 {
		g, mask := s.groups[(s.first/64+i)%len(s.groups)], ^uint64(0)
		switch i {
		case 0:
			mask = upper
		case len(s.groups):
			mask = ^upper
		}
		for left := (g.left[known] | g.left[fresh]) & mask; left != 0; left &= left - 1 {
			g.drain(bits.TrailingZeros64(left), queue, execute)
		}
	}
	s.first = (s.first + 1) % s.count
}

func (g *inboxGroup) drain(i int, queue *actionQueue, execute func(*command)) {
	for q, limits := range classLimits {
		if g.left[q]&(1<<i) == 0 || queue.len() >= limits.actions {
			continue
		}
		if g.members[i].drainRing(class(q), limits.perRound, execute) < limits.perRound {
			g.left[q] &^= 1 << i
		}
	}
}

func (s *inboxes) hasMore(queue *actionQueue) bool {
	for _, g := range s.groups {
		for q, limits := range classLimits {
			if g.left[q] != 0 && queue.len() < limits.actions {
				return true
			}
		}
	}
	return false
}

// command is a datagram that passed the worker's checks.
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
	// refused is already counted; 0: none.
	refused outcome
}

type claims struct {
	role           alloc.Role
	id             proto.AllocationID
	match          proto.AllocationID
	joiner         proto.AllocationID
	player         alloc.PlayerHash
	individual     bool
	tenant         uint64
	boot           uint64
	maxConnections uint16 // maximum of connections
	epoch          uint16
	path           path
	names          *names // of a BIND of the previous run; else nil
}

type names struct {
	tenant    alloc.Tenant
	player    string
	playerCut bool // player is only the beginning
	tag       uint64
}

func namesOf(c *seal.Claims) *names {
	return &names{alloc.Tenant{Project: string(c.Project), Environment: string(c.Environment)}, string(c.PlayerName), c.PlayerNameCut, c.Tag}
}

type path uint8

const (
	// pathUnknown: the network of the reservation's caller is not known.
	pathUnknown path = iota
	// pathValidated: its sender received something at that network, in a handshake or in the API's
	// answer.
	pathValidated
	// pathElsewhere: the reservation's caller was in another network, so the source may be forged.
	pathElsewhere
)

func claimsOf(c *seal.Claims) claims {
	return claims{
		role: c.Role, id: c.ID, match: c.Match, joiner: c.Joiner, player: c.Player, individual: c.Individual, tenant: c.Tenant,
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

// push returns a number from 1 on, or false if the ring is full.
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

// drain removes a command only after its execution, so that the worker can tell which are pending.
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

func (r *ring) size() int { return int(r.tail.Load() - r.head.Load()) }

func (r *ring) isPending(n uint64) bool { return n > r.head.Load() }
