package benchrig

import (
	"context"
	"net/netip"
	"time"
)

// Dialect makes endpoints ready on one kind of relay.
type Dialect interface {
	// Name is a short word for tables: "ferry", "swap", "turn".
	Name() string
	// Open makes every endpoint and flow of the plan ready. It calls NewRig,
	// performs the handshakes with SendTo and Poll, and fills in Flows. It must
	// end with ctx. If it fails, it closes the rig.
	Open(ctx context.Context, p Plan) (*Rig, error)
}

// Churner is a Dialect that can play whole sessions, for the shape churn.
type Churner interface {
	Dialect
	// Session plays one session with datagrams for about play, and calls done
	// after each step that succeeded. Errors are *StepError. It is safe for
	// concurrent use.
	Session(ctx context.Context, play time.Duration, done func(step string, took time.Duration)) error
}

// Replacer is a Dialect that can make spare matches ready during the load.
type Replacer interface {
	Dialect
	// NewMatch reserves a match with so many players, host first, on the relay of the
	// rig. It sends no datagram. It is safe for concurrent use.
	NewMatch(ctx context.Context, players int) ([]Arrival, error)
	// Header writes the header of a flow to prefix, of the length of a Flow.Prefix.
	Header(prefix []byte, from, to *Arrival)
}

// Arrival is an endpoint of a match that becomes ready: it sends Bind until it has an
// Answer, and then, unless it is a host, Connect until it has one named Accepted.
type Arrival struct {
	ID        [16]byte // of its allocation
	Relay     netip.AddrPort
	Bind      []byte
	Connect   []byte // nil for a host; sent after the host's Answer
	Open      []byte // sent once after Accepted, since a relay may close a link that is not used
	Keepalive []byte // of an Endpoint
}

// StepError says in which step a session failed.
type StepError struct {
	Step string
	Err  error
}

// Error returns the step and the reason.
func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *StepError) Unwrap() error { return e.Err }

// Handler processes a datagram that endpoint ep received; pkt is valid during the call.
type Handler func(ep int, from netip.AddrPort, pkt []byte)

// Cipher encrypts datagrams, each by itself. One goroutine uses it at a time.
type Cipher interface {
	// Seal appends to dst the datagram for msg, which is Overhead bytes longer.
	Seal(dst, msg []byte) []byte
	// Open returns the message in pkt, which it may change, or nil.
	Open(pkt []byte) []byte
	// Overhead returns the number of bytes that Seal adds to a message.
	Overhead() int
}
