package engine

import (
	"context"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Transport is a further way into the relay than plain UDP: sessions, each of
// which carries one message of the relay protocol per unit, such as a WebSocket.
// A session has a serial that no other session of the process ever has.
type Transport interface {
	// Kind says which endpoints are this transport's.
	Kind() endpoint.Kind
	// Send hands a message to a session. It copies pkt, never blocks, and
	// reports false, so that a drop is counted, when the session is gone or its
	// queue is full. No message is larger than MaxMessage. Any goroutine may call
	// it.
	Send(serial uint64, pkt []byte) bool
	// MaxMessage returns the size in bytes of the largest message that is sent to
	// a session, at least 36. It does not change.
	MaxMessage() int
	// Run serves sessions until ctx ends, and leaves no goroutine behind. What
	// comes in goes to in.
	Run(ctx context.Context, in Intake) error
}

// Records carries messages in records over the relay's own UDP sockets, as DTLS
// does: a datagram that is a record is opened before, and one to a session is
// sealed after, the relay's decision. Open and Seal are called by any worker,
// allocate nothing, and take a lock of the session only to reserve sequence numbers,
// at most some ten times a second.
type Records interface {
	// Open looks at a datagram that begins with a byte of 20 to 63, and may
	// change it. If it is a record with a message of an established session it
	// returns the session and the message, which lies within pkt. Else it
	// returns zero: it was for the handshake, which copied what it needs and
	// never blocks, or is dropped.
	Open(from endpoint.Endpoint, pkt []byte) (s Session, msg []byte)
	// Alive reports whether an established session lives at a UDP source, from
	// which no plain message is handled then.
	Alive(from endpoint.Endpoint) bool
	// Seal appends the record with msg for a session to dst, and says where it
	// goes. It reports false when the session is gone.
	Seal(dst []byte, serial uint64, msg []byte) (record []byte, to endpoint.Endpoint, ok bool)
	// MaxMessage returns the size in bytes of the largest message that is sent to
	// a session, at least 36, and SafeMessage that of the largest which every
	// known client takes. A RELAY between both is forwarded, and its match
	// reported. They do not change.
	MaxMessage() int
	SafeMessage() int
	// Run serves handshakes until ctx ends, and leaves no goroutine behind. It
	// sends their datagrams with send, which copies, never blocks and may be
	// called by any goroutine.
	Run(ctx context.Context, send func(to endpoint.Endpoint, pkt []byte)) error
}

// Session is an established session of [Records].
type Session struct {
	Serial uint64
	// ID is the allocation with whose key the session was made: the BIND inside
	// must name it.
	ID proto.AllocationID
}

// RecordOverhead is the most bytes by which a record is longer than its message.
const RecordOverhead = 64

// Intake is where the sessions of a [Transport] deliver what they receive.
type Intake interface {
	// Deliver hands a message of a session to the relay. It copies pkt, never
	// blocks, and reports false when the relay is busy and drops it. Any
	// goroutine may call it.
	Deliver(serial uint64, pkt []byte) bool
}
