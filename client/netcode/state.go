package netcode

import "fmt"

// State is where a connection stands. The values are those of Netcode for
// Entities. No connection enters a state twice.
type State uint8

// The states, in the order in which a connection passes them; any of them may
// be followed by StateDisconnected.
const (
	// StateUnknown: the zero Conn.
	StateUnknown State = iota
	// StateDisconnected: over, or never was.
	StateDisconnected
	// StateConnecting: a client that waits for the server's transport.
	StateConnecting
	// StateHandshake: the two sides exchange their protocol versions.
	StateHandshake
	// StateApproval: the server's game decides on the client.
	StateApproval
	// StateConnected: the connection has a NetworkID, and everything may pass.
	StateConnected
)

// String returns the name of the state, or state(n).
func (s State) String() string {
	switch s {
	case StateUnknown:
		return "unknown"
	case StateDisconnected:
		return "disconnected"
	case StateConnecting:
		return "connecting"
	case StateHandshake:
		return "handshake"
	case StateApproval:
		return "approval"
	case StateConnected:
		return "connected"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}
