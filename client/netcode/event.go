package netcode

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Event is the entry of a connection into a state in this tick. A server has none for
// StateConnecting, and neither side has one for StateUnknown or for Listen. StateStalled and
// StateResumed leave the connection in StateConnected.
type Event struct {
	Conn      Conn
	NetworkID NetworkID // 0 before StateConnected, and after it if that never was
	State     State

	// Of StateDisconnected.
	Reason     Reason
	PeerReason Reason // in the close notice of the peer; without one the same as Reason
	PeerText   string // in the close notice, at most 127 bytes of valid UTF-8
	Cause      error  // *VersionError of ReasonBadProtocolVersion; why a link or its peer ended, of ReasonProtocolError
	UserData   any    // what Conn.SetUserData kept
}

// String is such as "3 disconnected, closed by remote (server full: try later)".
func (ev Event) String() string {
	s := fmt.Sprintf("%d %v", ev.NetworkID, ev.State)
	if ev.State == StateDisconnected {
		s += fmt.Sprintf(", %v", ev.Reason)
	}
	switch {
	case ev.PeerText != "":
		s += fmt.Sprintf(" (%v: %s)", ev.PeerReason, ev.PeerText)
	case ev.PeerReason != ev.Reason:
		s += fmt.Sprintf(" (%v)", ev.PeerReason)
	}
	if ev.Cause != nil {
		s += fmt.Sprintf(": %v", ev.Cause)
	}
	return s
}

// Events returns the events of the last Update, of new clients first, and then
// in the order of the connections. It is valid until the next Update.
func (d *Driver) Events() []Event { return d.events }

func (d *Driver) publish(ev Event) {
	d.events = append(d.events, ev)
	d.log.Debug("connection", "state", ev.State, "networkID", ev.NetworkID, "reason", ev.Reason)
}

func orderEvents(events []Event, server bool) {
	rank := func(ev Event) int {
		if server && ev.State == StateHandshake {
			return -1
		}
		return ev.Conn.id.Index()
	}
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(rank(a), rank(b)) })
}

// The errors of this package. A closed Driver answers with net.ErrClosed.
var (
	// ErrConfig is wrapped by every refusal of a configuration or of a type of RPC.
	ErrConfig = errors.New("netcode: configuration is not usable")
	// ErrAlready is Listen on a server that listens, and Connect on a client that has a
	// connection.
	ErrAlready = errors.New("netcode: already listening or connected")
	// ErrGone is a call for a connection that has ended or never was.
	ErrGone = errors.New("netcode: connection has ended")
	// ErrNotAllowed is a server's call on a client or a client's on a server, and one that the
	// state of the connection forbids, as commands are before both Connected and SetInGame.
	ErrNotAllowed = errors.New("netcode: not allowed on this side or in this state")
	// ErrUnknownRPC is an RPC of another registry, or registered after the
	// driver.
	ErrUnknownRPC = errors.New("netcode: RPC is not registered")
	// ErrTooLarge is an RPC above Limits.MaxRPCLen or Limits.MaxRPCQueue, or above one packet
	// before StateConnected, a message above one packet, or a command or snapshot above
	// Limits.MaxSnapshotLen.
	ErrTooLarge = errors.New("netcode: message is too large")
	// ErrQueueFull is an RPC for which Limits.MaxRPCQueue leaves no room now, or a message for
	// which the transport has no room until the next Flush.
	ErrQueueFull = errors.New("netcode: queue is full")
)

// Reason is why a connection ended. The values up to 102 are those
// of Unity's packages; each side gives its own, see Event.
type Reason uint8

const (
	// ReasonConnectionClose: closed by this side without another reason.
	ReasonConnectionClose Reason = 0
	// ReasonTimeout: nothing was received for too long.
	ReasonTimeout Reason = 1
	// ReasonMaxConnectionAttempts: the server did not answer.
	ReasonMaxConnectionAttempts Reason = 2
	// ReasonClosedByRemote: the peer ended it.
	ReasonClosedByRemote Reason = 3
	// ReasonBadProtocolVersion: the two sides have different versions.
	ReasonBadProtocolVersion Reason = 4
	// ReasonInvalidRPC: the peer sent an RPC that is unknown, malformed, or not
	// allowed in its state.
	ReasonInvalidRPC Reason = 5
	// ReasonProtocolError: the transports do not fit, or the link lost the peer,
	// as by the DISCONNECT of a relay.
	ReasonProtocolError Reason = 7
	// ReasonHandshakeTimeout: the versions were not exchanged in time.
	ReasonHandshakeTimeout Reason = 100
	// ReasonApprovalFailure: for the game that does not approve a client.
	ReasonApprovalFailure Reason = 101
	// ReasonApprovalTimeout: the game did not decide in time.
	ReasonApprovalTimeout Reason = 102
	// ReasonServerFull: as Event.PeerReason, the server has no room for a client, or for one
	// more handshake; and for a game that has none. Not Unity's.
	ReasonServerFull Reason = 120
)

var reasonNames = map[Reason]string{
	ReasonConnectionClose: "connection closed", ReasonTimeout: "timeout",
	ReasonMaxConnectionAttempts: "too many connection attempts", ReasonClosedByRemote: "closed by remote",
	ReasonBadProtocolVersion: "bad protocol version", ReasonInvalidRPC: "invalid RPC",
	ReasonProtocolError: "protocol error", ReasonHandshakeTimeout: "handshake timeout",
	ReasonApprovalFailure: "approval failure", ReasonApprovalTimeout: "approval timeout",
	ReasonServerFull: "server full",
}

// String returns the name of the reason, or reason(n).
func (r Reason) String() string {
	if name, ok := reasonNames[r]; ok {
		return name
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}
