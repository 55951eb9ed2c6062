package utp

import "errors"

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// EventIncoming: a client connected to this side; Data is its connect payload.
	EventIncoming EventKind = iota + 1
	// EventConnected: an attempt of this side succeeded; Data is the payload of
	// the accept, nil if that was lost.
	EventConnected
	// EventData: Data arrived on Pipeline.
	EventData
	// EventDisconnected: the connection ended, not by Disconnect of this side.
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
	Cause    error      // of ReasonProtocolError: ErrWindowMismatch, ErrPeerGone or what DropPeer was given
	Refused  bool       // of ReasonClosedByRemote: the server never took this side's request
	Data     []byte     // valid until the next Advance
}

// outcome is taken, or the reason for the drop of a datagram in a few words.
type outcome string

const (
	taken outcome = "" // it did what it is for

	dropShort     outcome = "short"           // it ends before its header does
	dropLarge     outcome = "large"           // above the largest packet
	dropVersion   outcome = "version"         // a request or accept of another protocol version
	dropKind      outcome = "kind"            // of no known kind
	dropLength    outcome = "length"          // its size or length field does not match its kind
	dropToken     outcome = "token"           // of no connection here; it gets no answer
	dropForeign   outcome = "foreign"         // of a connection that may not move to this address, or not yet
	dropState     outcome = "state"           // a handshake packet that the connection does not wait for
	dropListening outcome = "not listening"   // a request while this side does not listen
	dropFull      outcome = "full"            // a request above MaxConnections
	dropHalfOpen  outcome = "half-open"       // a request above MaxHalfOpen
	dropSource    outcome = "source"          // a request above MaxHalfOpenPerSource
	dropClosed    outcome = "closed"          // a late copy of a request whose connection has been closed
	dropQueue     outcome = "queue"           // the queue of events, or of answers, is full
	dropPipeline  outcome = "pipeline"        // on a pipeline that the configuration does not have
	dropStage     outcome = "stage"           // a stage header is cut off or has a value without a meaning
	dropLate      outcome = "late"            // older than, or the same as, what was received before
	dropFragment  outcome = "fragment"        // a piece of a message of which another is missing, or of one too large
	dropMismatch  outcome = "window mismatch" // a sign that the windows differ; it closed the connection
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
	// ErrTooLarge is a payload above MaxPayload of its pipeline. Nothing was sent.
	ErrTooLarge = errors.New("utp: payload is too large")
	// ErrQueueFull is Send while the window of the pipeline or the queue of
	// datagrams is full. Nothing was sent or kept; a later try may succeed.
	ErrQueueFull = errors.New("utp: send queue is full")
	// ErrFull is Connect above MaxConnections.
	ErrFull = errors.New("utp: no room for a further connection")
	// ErrWindowMismatch is the Cause of a connection that was closed because
	// the two ends have reliable windows of different mask sizes.
	ErrWindowMismatch = errors.New("utp: the peer's reliable window has another mask size")
	// ErrPeerGone is the Cause of a connection whose peer left, see DropPeer.
	ErrPeerGone = errors.New("utp: the link lost the peer")
)
