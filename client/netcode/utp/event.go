package utp

import "fmt"

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	// EventIncoming: a client connected to this side; Data is its connect payload.
	EventIncoming EventKind = iota + 1
	// EventConnected: an attempt of this side succeeded; Data is the payload of
	// the accept, nil if that was lost.
	EventConnected
	// EventData: Data arrived on Pipeline.
	EventData
	// EventDisconnected: the connection ended for a Reason. There is none after
	// Disconnect of this side.
	EventDisconnected
)

// String returns the name of the kind, or event(n).
func (k EventKind) String() string {
	switch k {
	case EventIncoming:
		return "incoming"
	case EventConnected:
		return "connected"
	case EventData:
		return "data"
	case EventDisconnected:
		return "disconnected"
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is something that a game must know of a connection.
type Event struct {
	Kind     EventKind
	Conn     ConnID
	Pipeline PipelineID // of EventData
	Reason   Reason     // of EventDisconnected
	Cause    error      // of ReasonProtocolError: ErrWindowMismatch or ErrPeerGone
	Data     []byte     // valid until the next Advance
}

// eventQueue holds the events that wait for NextEvent, in order, with their
// data in one buffer that is used again.
type eventQueue struct {
	limit   int // events; those that are not data may exceed it
	list    []Event
	next    int
	buf     []byte
	extents []extent
}

// extent is where the data of an event lie in the buffer.
type extent struct{ from, to int }

func (q *eventQueue) full() bool { return len(q.list)-q.next >= q.limit }

// recycle forgets what was read.
func (q *eventQueue) recycle() {
	start := len(q.buf)
	if q.next < len(q.list) {
		start = q.extents[q.next].from
	}
	rest := copy(q.list, q.list[q.next:])
	copy(q.extents, q.extents[q.next:])
	clear(q.list[rest:])
	q.list, q.extents = q.list[:rest], q.extents[:rest]
	for i := range q.extents {
		q.extents[i].from -= start
		q.extents[i].to -= start
	}
	q.buf = q.buf[:copy(q.buf, q.buf[start:])]
	if len(q.buf) == 0 && cap(q.buf) > maxKept {
		q.buf = nil
	}
	q.next = 0
}

// maxKept is the largest buffer in bytes that is kept for the next tick: what
// 250 full messages of 16 KiB take.
const maxKept = 4 << 20

// push queues an event with a copy of its data.
func (q *eventQueue) push(ev Event, data []byte) {
	from := len(q.buf)
	q.buf = append(q.buf, data...)
	q.list = append(q.list, ev)
	q.extents = append(q.extents, extent{from, len(q.buf)})
}

func (q *eventQueue) take() (Event, bool) {
	if q.next == len(q.list) {
		return Event{}, false
	}
	ev, x := q.list[q.next], q.extents[q.next]
	q.next++
	if x.from < x.to {
		ev.Data = q.buf[x.from:x.to:x.to]
	}
	return ev, true
}
