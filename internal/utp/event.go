package utp

import (
	"errors"
	"iter"

	"github.com/ferryrelay/ferry/internal/utpwire"
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
func (k EventKind) String() string { return nameOf(kindNames, "event", uint8(k)) }

var kindNames = []string{"", "incoming", "connected", "data", "disconnected"}

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

// outcome is what became of one received datagram. Every datagram ends in
// exactly one, so the outcomes add up to the datagrams received.
type outcome uint8

const (
	taken         outcome = iota // it did what it is for
	dropShort                    // it ends before its header does
	dropLarge                    // above the largest packet
	dropVersion                  // a request or accept of another protocol version
	dropKind                     // of no known kind
	dropLength                   // its size or length field does not match its kind
	dropToken                    // of no connection here; it gets no answer
	dropForeign                  // of a connection that may not move to this address, or not yet
	dropState                    // a handshake packet that the connection does not wait for
	dropListening                // a request while this side does not listen
	dropFull                     // a request above MaxConnections
	dropHalfOpen                 // a request above MaxHalfOpen
	dropSource                   // a request above MaxHalfOpenPerSource
	dropClosed                   // a late copy of a request whose connection has been closed
	dropQueue                    // the queue of events, or of answers, is full
	dropPipeline                 // on a pipeline that the configuration does not have
	dropStage                    // a stage header is cut off or has a value without a meaning
	dropLate                     // older than, or the same as, what was received before
	dropFragment                 // a piece of a message of which another is missing, or of one too large
	dropMismatch                 // a sign that the windows differ; it closed the connection

	outcomes
)

func (o outcome) String() string { return nameOf(outcomeNames[:], "outcome", uint8(o)) }

var outcomeNames = [outcomes]string{
	taken: "taken", dropShort: "short", dropLarge: "large", dropVersion: "version", dropKind: "kind",
	dropLength: "length", dropToken: "token", dropForeign: "foreign", dropState: "state",
	dropListening: "not listening", dropFull: "full", dropHalfOpen: "half-open", dropSource: "source",
	dropClosed: "closed", dropQueue: "queue", dropPipeline: "pipeline", dropStage: "stage", dropLate: "late",
	dropFragment: "fragment", dropMismatch: "window mismatch",
}

// Drops returns the number of datagrams that an endpoint received and dropped, by the
// reason in a few words.
func (s Stats) Drops() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for o, n := range s.outcomes {
			if outcome(o) != taken && !yield(outcomeNames[o], n) {
				return
			}
		}
	}
}

// outcomeOf says which outcome an error of a parser is.
func outcomeOf(err error) outcome {
	switch err {
	case utpwire.ErrShort:
		return dropShort
	case utpwire.ErrVersion:
		return dropVersion
	case utpwire.ErrKind:
		return dropKind
	}
	return dropLength
}

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
	// has left, see Endpoint.DropPeer.
	ErrPeerGone = errors.New("utp: the link lost the peer")
)
