package netsim

import "github.com/ferryrelay/ferry/client/netcode/link"

// item is a datagram or an event that waits for its time, in memory that is
// used again.
type item struct {
	due    int64 // ns
	serial uint64
	event  link.Event
	buf    [link.MaxDatagram]byte
}

func (it *item) bytes() []byte { return it.buf[:it.event.N] }

func (it *item) before(other *item) bool {
	return it.due < other.due || it.due == other.due && it.serial < other.serial
}

// queue holds items by the time when they are due, and in the order of push
// when that is the same: a binary heap.
type queue struct {
	heap   []*item
	spare  []*item
	serial uint64
}

// take returns empty memory.
func (q *queue) take() *item {
	last := len(q.spare) - 1
	if last < 0 {
		return new(item)
	}
	it := q.spare[last]
	q.spare = q.spare[:last]
	return it
}

// give takes memory back.
func (q *queue) give(it *item) {
	it.event = link.Event{}
	q.spare = append(q.spare, it)
}

func (q *queue) push(it *item, due int64) {
	q.serial++
	it.due, it.serial = due, q.serial
	q.heap = append(q.heap, it)
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(q.heap[parent]) {
			return
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// pop returns the first item that is due by now, or nil.
func (q *queue) pop(now int64) *item {
	if len(q.heap) == 0 || q.heap[0].due > now {
		return nil
	}
	it, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap[last] = nil
	q.heap = q.heap[:last]
	q.sink(0)
	return it
}

// sink moves an item down to its place.
func (q *queue) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.heap); child++ {
			if q.heap[child].before(q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}

// order makes a heap of any order, after items were taken out of the middle.
func (q *queue) order() {
	for i := len(q.heap)/2 - 1; i >= 0; i-- {
		q.sink(i)
	}
}
