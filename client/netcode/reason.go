package netcode

import "fmt"

// DisconnectReason says why a connection ended. The values up to 102 are those
// of Unity's packages; no reason crosses the wire, see CloseInfo.
type DisconnectReason uint8

// The reasons.
const (
	// ReasonConnectionClose: closed by this side without another reason.
	ReasonConnectionClose DisconnectReason = 0
	// ReasonTimeout: nothing was heard for too long.
	ReasonTimeout DisconnectReason = 1
	// ReasonMaxConnectionAttempts: the server did not answer.
	ReasonMaxConnectionAttempts DisconnectReason = 2
	// ReasonClosedByRemote: the peer ended it.
	ReasonClosedByRemote DisconnectReason = 3
	// ReasonBadProtocolVersion: the two sides have different versions.
	ReasonBadProtocolVersion DisconnectReason = 4
	// ReasonInvalidRPC: the peer sent an RPC that is unknown, malformed, or not
	// allowed in its state.
	ReasonInvalidRPC DisconnectReason = 5
	// ReasonAuthenticationFailure: the peer's certificate; not given by this package.
	ReasonAuthenticationFailure DisconnectReason = 6
	// ReasonProtocolError: the transports do not fit, or the link lost the peer,
	// as by the DISCONNECT of a relay.
	ReasonProtocolError DisconnectReason = 7
	// ReasonHandshakeTimeout: the versions were not exchanged in time.
	ReasonHandshakeTimeout DisconnectReason = 100
	// ReasonApprovalFailure: for the game that does not approve a client.
	ReasonApprovalFailure DisconnectReason = 101
	// ReasonApprovalTimeout: the game did not decide in time.
	ReasonApprovalTimeout DisconnectReason = 102
	// ReasonServerFull: for the game that has no room for a client; not Unity's.
	ReasonServerFull DisconnectReason = 120
)

// String returns the name of the reason, or reason(n).
func (r DisconnectReason) String() string {
	switch r {
	case ReasonConnectionClose:
		return "connection closed"
	case ReasonTimeout:
		return "timeout"
	case ReasonMaxConnectionAttempts:
		return "too many connection attempts"
	case ReasonClosedByRemote:
		return "closed by remote"
	case ReasonBadProtocolVersion:
		return "bad protocol version"
	case ReasonInvalidRPC:
		return "invalid RPC"
	case ReasonAuthenticationFailure:
		return "authentication failure"
	case ReasonProtocolError:
		return "protocol error"
	case ReasonHandshakeTimeout:
		return "handshake timeout"
	case ReasonApprovalFailure:
		return "approval failure"
	case ReasonApprovalTimeout:
		return "approval timeout"
	case ReasonServerFull:
		return "server full"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}
