package utp

import "fmt"

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
	// DropToken: of no connection here. Nobody is told.
	DropToken
	// DropForeign: of a connection, but from another place, and the connection
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

// dropOf says which outcome an error of a parser is.
func dropOf(err error) Outcome {
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
