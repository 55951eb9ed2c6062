package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/sock"
	"github.com/ferryrelay/ferry/proto"
)

// ringSize is how many commands of one worker may wait for control. 1,024 are
// a few milliseconds of control's work; beyond that the newest is dropped, and
// its client repeats it within a second.
const ringSize = 1024

// command is a datagram that passed the worker's checks and asks for a change
// of state, on which control decides.
type command struct {
	kind   proto.Type
	from   sock.Endpoint
	sender alloc.Entry        // whom the worker found at from; not for BIND
	id     proto.AllocationID // BIND: the id in the connection data
	peer   proto.AllocationID // DISCONNECT: the To field
	nonce  uint16
	now    int64 // ms; when the worker had it
	target target
}

// target is what connection data in a CONNECT_REQUEST says.
type target struct {
	role   alloc.Role
	id     proto.AllocationID
	match  proto.AllocationID
	joiner proto.AllocationID
	player alloc.PlayerHash
	tenant uint64
}

// ring carries commands from one worker, which pushes, to control, which pops.
type ring struct {
	slots [ringSize]command
	_     [64]byte
	tail  atomic.Uint64 // commands ever pushed; the worker's
	_     [56]byte
	head  atomic.Uint64 // commands ever decided; control's
}

// push returns the number of the command, from 1, or false when the ring is
// full.
func (r *ring) push(c *command) (uint64, bool) {
	tail := r.tail.Load()
	if tail-r.head.Load() == ringSize {
		return 0, false
	}
	r.slots[tail%ringSize] = *c
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
		decide(&r.slots[head%ringSize])
		head++
		r.head.Store(head)
	}
	return n
}

// pending reports whether command number n still waits for control.
func (r *ring) pending(n uint64) bool { return n > r.head.Load() }
