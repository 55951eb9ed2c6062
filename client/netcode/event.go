package netcode

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// ConnectionEvent is the entry of a connection into a state in this tick. A server has none
// for StateConnecting, and neither side has one for StateUnknown or for Listen.
type ConnectionEvent struct {
	Conn      Conn
	NetworkID NetworkID // 0 before StateConnected, and after it if that never was
	State     State
	Reason    DisconnectReason // of StateDisconnected
	Remote    *CloseInfo       // the close notice of the peer, nil if there was none
	UserData  any              // of StateDisconnected: what Conn.SetUserData kept
	Cause     error            // *VersionError of ReasonBadProtocolVersion; of ReasonProtocolError utp.ErrWindowMismatch, utp.ErrPeerGone or why the link ended
}

// String returns the NetworkID and the state, and of an end the reason, the close
// notice of the peer and the cause: "3 disconnected, closed by remote (server full: try later)".
func (ev ConnectionEvent) String() string {
	s := fmt.Sprintf("%d %v", ev.NetworkID, ev.State)
	if ev.State == StateDisconnected {
		s += fmt.Sprintf(", %v", ev.Reason)
	}
	switch {
	case ev.Remote == nil:
	case ev.Remote.Text == "":
		s += fmt.Sprintf(" (%v)", ev.Remote.Reason)
	default:
		s += fmt.Sprintf(" (%v: %s)", ev.Remote.Reason, ev.Remote.Text)
	}
	if ev.Cause != nil {
		s += fmt.Sprintf(": %v", ev.Cause)
	}
	return s
}

// CloseInfo is the close notice of a peer that ended a connection.
type CloseInfo struct {
	Reason DisconnectReason
	Text   string // at most 127 bytes, valid UTF-8
}

// maxCloseText is the largest text of a CloseInfo in bytes. More is cut off.
const maxCloseText = 127

// Events returns the events of the last Update: first clients
// that were accepted, then what happened to each connection, in the order of
// the connections. It is valid until the next Update and reading it does not
// change it.
func (d *Driver) Events() []ConnectionEvent { return d.events }

func (d *Driver) publish(ev ConnectionEvent) {
	d.events = append(d.events, ev)
	d.log.Debug("connection", "state", ev.State, "networkID", ev.NetworkID, "reason", ev.Reason)
}

// order puts the events into the order that Events promises.
func (d *Driver) order() {
	rank := func(ev ConnectionEvent) int {
		if d.server && ev.State == StateHandshake {
			return -1
		}
		return ev.Conn.id.Index()
	}
	slices.SortStableFunc(d.events, func(a, b ConnectionEvent) int { return cmp.Compare(rank(a), rank(b)) })
}

// The errors of this package. A closed Driver answers with net.ErrClosed.
var (
	// ErrConfig is wrapped by every refusal of a configuration.
	ErrConfig = errors.New("netcode: configuration is not usable")
	// ErrRole is a server's call on a client, or a client's on a server.
	ErrRole = errors.New("netcode: not in this role")
	// ErrAlready is Listen on a server that listens, or Connect on a client that has a
	// connection.
	ErrAlready = errors.New("netcode: already listening or connected")
	// ErrPending is a Request before the next Update.
	ErrPending = errors.New("netcode: request is pending")
	// ErrMultipleRequests is a Request after another one of the same kind and tick.
	ErrMultipleRequests = errors.New("netcode: another request of this tick was served")
	// ErrAddr is an address to which, or at which, this driver's link can not be, as port 0
	// in Connect.
	ErrAddr = errors.New("netcode: address is not usable")
	// ErrGone is a call for a connection that has ended or never was.
	ErrGone = errors.New("netcode: connection has ended")
	// ErrNotAllowedInState is a call that the state of the connection forbids,
	// as commands are before both Connected and SetInGame, or a server without RequireApproval.
	ErrNotAllowedInState = errors.New("netcode: not allowed in this state of the connection")
	// ErrUnknownRPC is an RPC of another registry, or one that was registered
	// after the driver was made.
	ErrUnknownRPC = errors.New("netcode: RPC is not registered")
	// ErrTooLarge is an RPC above Config.MaxRPCLen or Config.MaxRPCQueue, or above one packet
	// before StateConnected, a message above one packet, or a command or snapshot above the
	// fragmentation capacity.
	ErrTooLarge = errors.New("netcode: message is too large")
	// ErrQueueFull is an RPC for which Config.MaxRPCQueue leaves no room now, or a message for which the transport has
	// no room until the next Flush.
	ErrQueueFull = errors.New("netcode: RPC queue is full")
	// ErrRegistered is a name that is registered already, or one too many.
	ErrRegistered = errors.New("netcode: RPC can not be registered")
)

// ConnStats is what a connection has counted. Commands and snapshots share
// counters: a client sends the former and receives the latter.
type ConnStats struct {
	Transport utp.Stats

	// RTT and RTTVariation are the smoothed round trip and its variation, as
	// commands and snapshots measure it, the wait of a tick included. 0 before.
	RTT, RTTVariation time.Duration
	// CommandAge is by how many ticks the server's last snapshot was ahead of
	// the client's newest command when it was sent. Known to clients.
	CommandAge int32

	RPCsSent, RPCsReceived uint64
	RPCsQueued             int    // bytes that wait for a packet
	MessagesSent           uint64 // by SendMessage
	MessagesReceived       uint64
	Sent, Received         uint64 // commands or snapshots
	Unsent                 uint64 // those that were not sent, since there was no room
	Late                   uint64 // commands with Late set; snapshots that came after a newer one
	Repeated               uint64 // commands that were received before, in another datagram
	Dropped                uint64 // commands that were 64 ticks too old; commands and messages above what an Update keeps
	Replaced               uint64 // snapshots that a newer one of the same Update replaced
	Lost                   uint64 // snapshots that are missing in the sequence; some may be late
	Ignored                uint64 // received while not in game, or malformed
}

// Stats returns the counters, and false when the connection has ended.
func (c Conn) Stats() (ConnStats, bool) {
	s := c.live()
	if s == nil {
		return ConnStats{}, false
	}
	t, _ := c.d.ep.ConnStats(c.id)
	millis := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	n := s.counts
	return ConnStats{
		Transport: t, RTT: millis(s.trip.rtt), RTTVariation: millis(s.trip.variation), CommandAge: s.age,
		RPCsSent: n.RPCsSent, RPCsReceived: n.RPCsReceived, RPCsQueued: s.queue.len(),
		MessagesSent: n.MessagesSent, MessagesReceived: n.Messages,
		Sent: n.Sent, Received: n.Received, Unsent: n.Unsent,
		Late: n.Late, Repeated: n.Repeated, Dropped: n.Dropped, Replaced: n.Replaced, Lost: n.Lost, Ignored: n.Ignored,
	}, true
}

// driverCounts is what a driver has counted.
type driverCounts struct {
	Stale  uint64
	Unsent uint64
	NoLink uint64
}

// Stats is what a driver has counted, and the layers below.
type Stats struct {
	Transport utp.Stats
	Link      link.Stats

	Refused     uint64 // answers to clients for which there was no room
	Stale       uint64 // clients that had left before they were seen
	Unsent      uint64 // datagrams that the link did not take
	NoLink      uint64 // times that the link missed a peer
	Handshaking int    // clients now in handshake or approval
}

// Stats returns the counters.
func (d *Driver) Stats() Stats {
	n := d.counts
	st := Stats{Stale: n.Stale, Unsent: n.Unsent, NoLink: n.NoLink}
	if d.ep != nil {
		st.Transport, st.Link = d.ep.Stats(), d.link.Stats()
		st.Refused, st.Handshaking = st.Transport.Refused, st.Transport.HalfOpen
	}
	return st
}
