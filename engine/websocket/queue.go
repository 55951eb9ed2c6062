package websocket

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

const (
	lengthSize = 2
	// minRing is in bytes. A connection to which nothing was sent has no ring.
	minRing = 2 << 10
)

// queue holds what waits for one connection: a byte ring of messages, each after its length,
// and one final ERROR. Any goroutine may push; one goroutine pops.
type queue struct {
	maxMessages, maxBytes int
	stuckAfter            time.Duration // how long a full queue may take to become empty

	mu        sync.Mutex // guards what follows
	ring      []byte
	head      int                                                   // where the first message begins
	used      int                                                   // bytes
	count     int                                                   // messages
	peak      int                                                   // the most bytes used since the last trim
	fullSince time.Time                                             // the first overflow since the queue was empty
	final     [proto.HeaderLen + len(proto.AllocationID{}) + 1]byte // an ERROR
	hasFinal  bool
	closed    bool
}

type pushResult uint8

const (
	pushQueued pushResult = iota
	pushFirst             // queued, and the queue was empty: the writer may be waiting
	pushFull              // dropped: no room
	pushStuck             // dropped, and the queue was not empty for more than stuckAfter
	pushClosed            // dropped: the connection is ending
)

// push allocates only when the ring grows.
func (q *queue) push(pkt []byte) pushResult {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return pushClosed
	}
	need := q.used + lengthSize + len(pkt)
	if q.count >= q.maxMessages || need > q.maxBytes {
		return q.rejectFull()
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

// rejectFull tells a burst (pushFull) from a client that does not keep up (pushStuck).
func (q *queue) rejectFull() pushResult {
	now := time.Now()
	if q.fullSince.IsZero() {
		q.fullSince = now
	}
	if now.Sub(q.fullSince) > q.stuckAfter {
		return pushStuck
	}
	return pushFull
}

// pushFinal queues the ERROR that ends the connection, for which there is always
// room, and closes the queue. It reports false if it is closed already.
func (q *queue) pushFinal(pkt []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	copy(q.final[:], pkt)
	q.hasFinal, q.closed = true, true
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
}

// pop needs maxMessage bytes in dst. It reports false if the queue is empty.
func (q *queue) pop(dst []byte) (msg []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == 0 {
		if !q.hasFinal {
			return nil, false
		}
		q.hasFinal = false
		return dst[:copy(dst, q.final[:])], true
	}
	var length [lengthSize]byte
	q.take(length[:])
	msg = dst[:binary.BigEndian.Uint16(length[:])]
	q.take(msg)
	if q.count--; q.count == 0 {
		q.fullSince = time.Time{}
	}
	return msg, true
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hasFinal {
		return q.count + 1
	}
	return q.count
}

func (q *queue) put(b []byte) {
	tail := q.head + q.used
	if tail >= len(q.ring) {
		tail -= len(q.ring)
	}
	n := copy(q.ring[tail:], b)
	copy(q.ring, b[n:])
	q.used += len(b)
}

func (q *queue) take(b []byte) {
	n := copy(b, q.ring[q.head:])
	copy(b[n:], q.ring)
	if q.head += len(b); q.head >= len(q.ring) {
		q.head -= len(q.ring)
	}
	q.used -= len(b)
}

func (q *queue) resize(need int) {
	size := max(len(q.ring), minRing)
	for size < need {
		size *= 2
	}
	old, head, used := q.ring, q.head, q.used
	q.ring, q.head, q.used = make([]byte, min(size, q.maxBytes)), 0, 0
	n := min(used, len(old)-head)
	q.put(old[head : head+n])
	q.put(old[:used-n])
}

// trim halves an empty ring of which less than a quarter was used since the last call.
func (q *queue) trim() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if size := len(q.ring); q.used == 0 && size > minRing && q.peak < size/4 {
		q.ring, q.head = make([]byte, max(size/2, minRing)), 0
	}
	q.peak = q.used
}
