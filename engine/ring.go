package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// command is a datagram that passed the worker's checks and asks for a change
// of state, on which control decides.
type command struct {
	kind   proto.Type
	share  uint8 // bucket of the source prefix, see inbox
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
	role   alloc.Role
	id     proto.AllocationID
	match  proto.AllocationID
	joiner proto.AllocationID
	player alloc.PlayerHash
	tenant uint64
	boot   uint64
	most   uint16 // maximum of connections
	epoch  uint16
}

func claimsOf(c *alloc.Claims) claims {
	return claims{
		role: c.Role, id: c.ID, match: c.Match, joiner: c.Joiner, player: c.Player, tenant: c.Tenant,
		boot: c.Boot, most: c.MaxConnections, epoch: c.Epoch,
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
func (r *ring) waiting() int { return int(r.tail.Load() - r.head.Load()) }

// pending reports whether command number n still waits for control.
func (r *ring) pending(n uint64) bool { return n > r.head.Load() }
