package link

import (
	"errors"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// MaxDatagram is the largest datagram in bytes that a link carries: what a UDP
// datagram holds on an Ethernet path with IPv4, 1500 - 20 - 8.
const MaxDatagram = 1472

// The errors of this package. A closed link answers with net.ErrClosed, and a
// relay that ended a link with the error of its client.Session.
var (
	// ErrTooLarge is a datagram above MaxDatagram, or above what the relay takes.
	ErrTooLarge = errors.New("link: datagram is too large")
	// ErrAddr is an address that this link has no way to: of another kind or family, port 0,
	// nowhere, or of a peer without a connection of the transport; or one that is taken.
	ErrAddr = errors.New("link: address is not usable")
)

// Link is an endpoint for datagrams that never waits, owned by one goroutine.
type Link interface {
	// Advance sets the link's time, once per tick before Receive. A time
	// before an earlier one is taken as that one.
	Advance(now time.Time)
	// Receive returns what comes next, Nothing if there is nothing now. A
	// datagram that does not fit into b is dropped and counted. A caller that
	// may be flooded bounds its calls in one tick.
	Receive(b []byte) Event
	// Send sends b to a peer, at the latest with the next Flush. Nil means that
	// it is on its way or lost. b is the caller's again when Send returns.
	//
	// Errors: ErrTooLarge, ErrAddr, net.ErrClosed after Close, or why the link
	// ended. Nothing was sent then.
	Send(to address.Addr, b []byte) error
	// Flush sends what Send has gathered, at the end of a tick.
	Flush()
	// Dial asks for a transport's own connection to a joiner's host before each
	// attempt to connect, if it has such things. It does not wait: Joined or
	// Refused follows, nothing while there is one.
	// Errors: client.ErrRole on the host of a relay, net.ErrClosed after Close, or
	// why the link ended.
	Dial() error
	// Disconnect ends the transport's own connection to a peer, behind what was
	// sent before. Nothing more of the peer is received.
	Disconnect(peer address.Addr)
	// Local returns the address of this end.
	Local() address.Addr
	// Overhead returns how many bytes of each UDP datagram the link takes for
	// itself: 38 on a relay, otherwise 0.
	Overhead() int
	Stats() Stats
	// Close ends the link and what runs for it. It may be called again.
	Close() error
}

// Kind is the kind of an Event.
type Kind uint8

const (
	// Nothing: there is nothing now.
	Nothing Kind = iota
	// Datagram: N bytes came from Addr.
	Datagram
	// Joined: a peer has appeared. On a relay this comes before its first
	// datagram; a joiner's peer is its host.
	Joined
	// Left: a peer is gone, as a relay reports by DISCONNECT. Err, if there is
	// one, is why a relay refuses to make a lost link to a host again.
	Left
	// Refused: Dial failed; Err is the reason.
	Refused
	// Ended: the link has ended for Err. It comes once and is the last event.
	Ended
)

var kindNames = [...]string{"nothing", "datagram", "joined", "left", "refused", "ended"}

// String returns the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Event is what Receive returns.
type Event struct {
	Kind Kind
	Addr address.Addr // of the peer; nowhere if the event is about none
	N    int          // bytes of a Datagram in the caller's buffer, possibly 0
	Err  error        // of Refused and Ended, and sometimes of Left
}

// Stats is what a link has counted since it was opened. Bytes are payload.
type Stats struct {
	Sent, SentBytes         uint64 // given to the transport
	Received, ReceivedBytes uint64 // given to the caller

	Unsent      uint64 // refused by the system: no network, no buffer
	Unreachable uint64 // sent without a connection to the peer, as far as the link or the relay knows
	QueueFull   uint64 // lost because a queue was full
	KernelDrops uint64 // lost by the kernel before the link could read them
	// Discarded is what was received and cannot be used: above MaxDatagram or the caller's
	// buffer, or from port 0.
	Discarded uint64
}
