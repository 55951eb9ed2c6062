package bench

import (
	"context"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/sock"
)

// Dialect teaches the generator to speak with one kind of relay.
type Dialect interface {
	// Name is a short word for tables: "ferry", "swap", "turn".
	Name() string
	// Open makes every endpoint and flow of the plan ready to send and to be
	// sent to. It starts from NewRig, does what the relay asks for with SendTo
	// and Poll, and fills in Flows. It may take long and must end with ctx.
	// When it fails it closes the rig.
	Open(ctx context.Context, p Plan) (*Rig, error)
}

// Churner is a Dialect that can play whole sessions, for the shape churn.
type Churner interface {
	Dialect
	// Session plays one session from reservation to leave, with datagrams both
	// ways for about play. It calls done after each step that succeeded; the
	// first that fails ends the session with a *StepError. Many goroutines call it.
	Session(ctx context.Context, play time.Duration, done func(step string, took time.Duration)) error
}

// Reserver is a Dialect whose relay reserves allocations over an API, for
// Config.AllocateWorkers.
type Reserver interface {
	Dialect
	// Reserve asks for one allocation, of which nothing is made. Many
	// goroutines call it.
	Reserve(ctx context.Context) error
}

// Plan is what a Dialect has to set up: endpoints in matches of one host and
// its players, and flows between them. Endpoint m*(1+Players) is the host of
// match m, the next Players are its players. All flows are between a host and
// one of its players.
type Plan struct {
	Matches int // at least 1
	Players int // per match, 1 to 255, the host not counted
	Payload int // bytes that follow a flow's prefix, at least StampLen
	Flows   []Link

	// Stride is the number of addresses kept for a match: 2 for pairs, so that
	// host and player differ in the lowest bit, else 256, so that the host has
	// 0 in the last byte.
	Stride int

	// AllowRemote permits destinations outside of loopback.
	AllowRemote bool
	// BindRate says that handshakes will be repeated under load: the Dialect
	// then fills in Endpoint.Rebind.
	BindRate float64
	// Keepalive is the time after which a silent endpoint says something, if
	// the Dialect has something to say. During Open this is the Dialect's own task.
	Keepalive time.Duration

	// Sockets, ReadBuffer and Batch are those of Config.
	Sockets, ReadBuffer, Batch int

	first  uint32 // address of endpoint 0
	single bool   // all endpoints have that address, and a socket each
}

// Link is a direction in which datagrams go: From and To number endpoints.
// Links of one Group are due at the same time when a run is aligned to ticks.
type Link struct {
	From, To int
	Group    int
}

// Rig is a relay as the generator sees it: sockets, endpoints on them, and
// flows that are ready. One goroutine uses it at a time: first Open's, then the
// generator's.
type Rig struct {
	Sockets   []*Socket
	Endpoints []Endpoint // as numbered in the Plan
	Flows     []Flow     // flow i is Plan.Flows[i]
	Setup     Setup      // the Dialect counts Requests; the rest is filled in by the core

	// Sized says that each Prefix ends with the length of the payload, a
	// big-endian u16, which a load whose datagrams differ in size has to set.
	Sized bool

	// Explain names an arriving packet that is no datagram of ours, without
	// allocating. "" is an answer that was to be expected, such as that to a
	// keep-alive; Answer is one to a Rebind; everything else is counted in
	// Result.Errors under that name. Nil: everything is "foreign".
	Explain func(pkt []byte) string

	// Leave says goodbye to the relay with SendTo, so that the next run finds
	// it empty. Nil: nothing to say. It is called once, before the sockets close.
	Leave func()

	plan Plan
}

// Answer is what Explain returns for an answer to an Endpoint's Rebind.
const Answer = "answer"

// Socket is one socket of the generator. It has many endpoints, each with an
// address of its own on the same port.
type Socket struct {
	Group *sock.Group
	Conn  *sock.Conn
	// Offset is where the payload begins in what arrives on this socket: the
	// length of the header that the relay puts or leaves in front of it.
	Offset int

	byLocal []int32 // endpoint number by endpoint.Endpoint.Local; -1 = none
	rx      *sock.RecvBatch
	tx      *sock.SendBatch
}

// Endpoint is one player or host: an address and port that datagrams come from
// and go to.
type Endpoint struct {
	Socket int            // index into Rig.Sockets
	Local  uint16         // number of the source address in Socket.Group
	Addr   netip.AddrPort // what the relay sees

	// Relay is where Keepalive and Rebind go.
	Relay netip.AddrPort
	// Keepalive is the datagram for an endpoint that was silent for
	// Plan.Keepalive. Nil: none.
	Keepalive []byte
	// Rebind is a handshake that an endpoint may repeat at any time. Nil: none.
	Rebind []byte
	// Cipher is for all that the endpoint sends and hears, once the Dialect has
	// set it. Nil: datagrams go as they are. The shape netcode has none.
	Cipher Cipher
}

// Flow is one direction between two endpoints. What is sent is Prefix and then
// the payload; what arrives at endpoint To has the payload at the Offset of its socket.
type Flow struct {
	From, To int            // endpoint numbers
	Dst      netip.AddrPort // where From sends to
	Prefix   []byte         // the relay's header, not changed after Open; may be empty
}
