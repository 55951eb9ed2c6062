package websocket

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

const (
	// lengthSize is the size of the length before each message in the ring.
	lengthSize = 2
	// ringStart is the size of the ring of a connection that was sent something.
	ringStart = 2 << 10
)

// queue holds what waits to be written to one connection: messages with their
// lengths in a ring that grows with the need, up to a limit, and the ERROR that
// is to be the last. Any goroutine may push, one pops.
type queue struct {
	maxMessages, maxBytes int
	patience              time.Duration // how long it may stay crowded

	mu      sync.Mutex // guards what follows
	ring    []byte
	head    int // where the first message begins
	used    int // bytes
	count   int // messages
	peak    int // the most bytes used since the last trim
	crowded time.Time
	last    [proto.ErrorLen]byte
	hasLast bool
	closed  bool
}

// pushed is what became of a message.
type pushed uint8

const (
	pushQueued pushed = iota
	pushFirst         // queued, and the queue was empty: the writer may sleep
	pushFull          // dropped: no room
	pushStuck         // dropped, and the queue has not been empty for too long
	pushClosed        // dropped: the connection is ending
)

// push copies a message into the queue. It allocates only when the ring grows.
func (q *queue) push(pkt []byte) pushed {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return pushClosed
	}
	need := q.used + lengthSize + len(pkt)
	if q.count >= q.maxMessages || need > q.maxBytes {
		return q.full()
	}
	if need > len(q.ring) {
		q.resize(need)
	}
	var length [lengthSize]byte
	binary.BigEndian.PutUint16(length[:], uint16(len(pkt)))
	q.put(length[:])
	q.put(pkt)
	q.peak = max(q.peak, q.used)
	if q.count++; q.count == 1 {
		return pushFirst
	}
	return pushQueued
}

// full decides between a burst and a peer that does not keep up.
func (q *queue) full() pushed {
	now := time.Now()
	if q.crowded.IsZero() {
		q.crowded = now
	}
	if now.Sub(q.crowded) > q.patience {
		return pushStuck
	}
	return pushFull
}

// pushLast takes the ERROR that ends the connection, for which there is always
// room, and nothing after it. It reports false when the queue is closed.
func (q *queue) pushLast(pkt []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	copy(q.last[:], pkt)
	q.hasLast, q.closed = true, true
	return true
}

// close lets nothing more in. What is queued can still be popped.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
}

// pop moves the first message into dst, which has room for the largest one, and
// reports false when there is none.
func (q *queue) pop(dst []byte) (msg []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == 0 {
		if !q.hasLast {
			return nil, false
		}
		q.hasLast = false
		return dst[:copy(dst, q.last[:])], true
	}
	var length [lengthSize]byte
	q.take(length[:])
	msg = dst[:binary.BigEndian.Uint16(length[:])]
	q.take(msg)
	if q.count--; q.count == 0 {
		q.crowded = time.Time{}
	}
	return msg, true
}

// left returns how many messages will never be popped.
func (q *queue) left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hasLast {
		return q.count + 1
	}
	return q.count
}

// put appends bytes, which must have room.
func (q *queue) put(b []byte) {
	tail := q.head + q.used
	if tail >= len(q.ring) {
		tail -= len(q.ring)
	}
	n := copy(q.ring[tail:], b)
	copy(q.ring, b[n:])
	q.used += len(b)
}

// take removes the first bytes.
func (q *queue) take(b []byte) {
	n := copy(b, q.ring[q.head:])
	copy(b[n:], q.ring)
	if q.head += len(b); q.head >= len(q.ring) {
		q.head -= len(q.ring)
	}
	q.used -= len(b)
}

// resize makes the ring large enough for need bytes, and keeps what is in it.
func (q *queue) resize(need int) {
	size := max(len(q.ring), ringStart)
	for size < need {
		size *= 2
	}
	old, head, used := q.ring, q.head, q.used
	q.ring, q.head, q.used = make([]byte, min(size, q.maxBytes)), 0, 0
	n := min(used, len(old)-head)
	q.put(old[head : head+n])
	q.put(old[:used-n])
}

// trim gives back half of a ring of which not a quarter was used since the last
// call, so that one burst does not cost memory for ever.
func (q *queue) trim() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if size := len(q.ring); q.used == 0 && size > ringStart && q.peak < size/4 {
		q.ring, q.head = make([]byte, max(size/2, ringStart)), 0
	}
	q.peak = q.used
}
