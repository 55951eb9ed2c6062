package utp

import (
	"errors"
	"fmt"
)

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

// Event is a change of a connection, or data that it received.
type Event struct {
	Kind     EventKind
	Conn     ConnID
	Pipeline PipelineID // of EventData
	Reason   Reason     // of EventDisconnected
	Cause    error      // of ReasonProtocolError: ErrWindowMismatch or ErrPeerGone
	Refused  bool       // of ReasonClosedByRemote: the server never took this side's request
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

// Outcome is what became of one received datagram. Every datagram ends in
// exactly one, so the outcomes add up to the datagrams received.
type Outcome uint8

// The outcomes.
const (
	// Taken: it did what it is for.
	Taken Outcome = iota
	// DropShort: it ends before its header does.
	DropShort
	// DropLarge: above MaxDatagram bytes.
	DropLarge
	// DropVersion: a request or accept of another protocol version.
	DropVersion
	// DropKind: of no known kind.
	DropKind
	// DropLength: its size or length field does not match its kind.
	DropLength
	// DropToken: of no connection here. It gets no answer.
	DropToken
	// DropForeign: of a connection, but from another address, and the connection
	// may not move, or not yet.
	DropForeign
	// DropState: a handshake packet that the connection does not wait for.
	DropState
	// DropListening: a request while this side does not listen.
	DropListening
	// DropFull: a request above MaxConnections. It may have been refused.
	DropFull
	// DropHalfOpen: a request above MaxHalfOpen. The client asks again.
	DropHalfOpen
	// DropSource: a request above MaxHalfOpenPerSource.
	DropSource
	// DropClosed: a late copy of a request whose connection has been closed.
	DropClosed
	// DropQueue: the queue of events is full.
	DropQueue
	// DropPipeline: on a pipeline that the configuration does not have.
	DropPipeline
	// DropStage: a stage header is cut off or has a value without a meaning.
	DropStage
	// DropLate: older than, or the same as, what was received before.
	DropLate
	// DropFragment: a piece of a message of which another piece is missing, or
	// of one that is too large.
	DropFragment
	// DropMismatch: a sign that the windows differ; it closed the connection.
	DropMismatch

	outcomes
)

// String returns the name of the outcome.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

var outcomeNames = [outcomes]string{
	Taken: "taken", DropShort: "short", DropLarge: "large", DropVersion: "version", DropKind: "kind",
	DropLength: "length", DropToken: "token", DropForeign: "foreign", DropState: "state",
	DropListening: "not listening", DropFull: "full", DropHalfOpen: "half-open", DropSource: "source",
	DropClosed: "closed", DropQueue: "queue", DropPipeline: "pipeline", DropStage: "stage", DropLate: "late",
	DropFragment: "fragment", DropMismatch: "window mismatch",
}

// outcomeOf says which outcome an error of a parser is.
func outcomeOf(err error) Outcome {
	switch err {
	case ErrShort:
		return DropShort
	case ErrVersion:
		return DropVersion
	case ErrKind:
		return DropKind
	}
	return DropLength
}

// The errors of the codecs. They are returned bare, so that == works and the
// path of a dropped datagram formats nothing.
var (
	// ErrShort is a packet or a header that ends too early.
	ErrShort = errors.New("utp: packet is shorter than its header")
	// ErrVersion is a request or accept of another protocol version than 1.
	ErrVersion = errors.New("utp: protocol version is not 1")
	// ErrKind is a packet of another or of an unknown kind.
	ErrKind = errors.New("utp: packet is of another or of an unknown kind")
	// ErrLength is a size that does not match the kind or the length field.
	ErrLength = errors.New("utp: size of the packet does not match its kind")
	// ErrStage is the header of a pipeline stage with a value that has no meaning.
	ErrStage = errors.New("utp: stage header has a value without a meaning")
)

// The errors of an endpoint.
var (
	// ErrConfig is wrapped by every refusal of a Config.
	ErrConfig = errors.New("utp: configuration is not usable")
	// ErrConn is a call for a connection that has ended or never was.
	ErrConn = errors.New("utp: no such connection")
	// ErrState is Send before the connection is established.
	ErrState = errors.New("utp: connection is not established yet")
	// ErrAddr is Connect to nowhere or to UDP port 0.
	ErrAddr = errors.New("utp: address is not usable")
	// ErrPipeline is Send on a pipeline that the configuration does not have.
	ErrPipeline = errors.New("utp: no such pipeline")
	// ErrTooLarge is a payload above MaxPayload of its pipeline, or a connect
	// payload that does not fit into a request. Nothing was sent.
	ErrTooLarge = errors.New("utp: payload is too large")
	// ErrQueueFull is Send while the window of the pipeline or the queue of
	// datagrams is full. Nothing was sent or kept; a later try may succeed.
	ErrQueueFull = errors.New("utp: send queue is full")
	// ErrFull is Connect above MaxConnections.
	ErrFull = errors.New("utp: no room for a further connection")
	// ErrWindowMismatch is the Cause of a connection that was closed because
	// the two ends have reliable windows of different mask sizes.
	ErrWindowMismatch = errors.New("utp: the peer's reliable window has another mask size")
	// ErrPeerGone is the Cause of a connection whose link said that its peer
	// has left, see Endpoint.Gone.
	ErrPeerGone = errors.New("utp: the link lost the peer")
)
