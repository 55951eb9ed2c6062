package utp

import "errors"

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
