package engine

import (
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
)

// deed is what control does once every worker has passed.
type deed uint8

const (
	sendReply   deed = iota // send the first size bytes of room
	sendBound               // the same, a BIND_RECEIVED for handle
	sendLast                // the same, an ERROR 1, unless somebody else is there by now
	recycleSlot             // let the slot of an ended allocation be used again
	expire                  // end handle if it is still overdue
)

// deferred is one such deed.
type deferred struct {
	after  uint64 // number of the grace period that must be over; 0: none
	does   deed
	handle table.Handle
	to     endpoint.Endpoint
	size   uint8
	nonce  uint16 // sendBound: of the BIND
	room   [replySize]byte
}

// queue holds control's deeds in the order of their commits. None overtakes
// another, so a reply that need not wait still comes after one that must. It
// belongs to the control goroutine. What it holds is bounded: commands of one
// grace period, and one deed or two per allocation.
type queue struct {
	deeds []deferred
	head  int
}

func (q *queue) empty() bool { return q.head == len(q.deeds) }

// add appends a deed and returns it for filling; it is valid until the next
// call.
func (q *queue) add() *deferred {
	// What is done makes room when it is more than half.
	if q.head*2 >= len(q.deeds) && q.head > 0 {
		n := copy(q.deeds, q.deeds[q.head:])
		q.deeds, q.head = q.deeds[:n], 0
	}
	q.deeds = append(q.deeds, deferred{})
	return &q.deeds[len(q.deeds)-1]
}

func (q *queue) push(after uint64, does deed, h table.Handle) {
	d := q.add()
	d.after, d.does, d.handle = after, does, h
}

// pop returns the first deed if its grace period, and so every earlier one, is
// over, else nil. The deed is valid until the next add.
func (q *queue) pop(done uint64) *deferred {
	if q.empty() || q.deeds[q.head].after > done {
		return nil
	}
	q.head++
	return &q.deeds[q.head-1]
}
