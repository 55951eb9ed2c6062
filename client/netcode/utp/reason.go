package utp

import "fmt"

// Reason says why a connection ended, numbered as Unity's packages do. The
// wire carries none: each side gives its own.
type Reason uint8

// The reasons of this layer. A session layer above has further ones.
const (
	ReasonTimeout               Reason = 1 // nothing was heard for too long
	ReasonMaxConnectionAttempts Reason = 2 // requests stayed without an answer
	ReasonClosedByRemote        Reason = 3 // the peer sent a disconnect
	ReasonProtocolError         Reason = 7 // the two ends do not fit, or the link lost the peer
)

// String returns the name of the reason, or reason(n).
func (r Reason) String() string {
	switch r {
	case ReasonTimeout:
		return "Timeout"
	case ReasonMaxConnectionAttempts:
		return "MaxConnectionAttempts"
	case ReasonClosedByRemote:
		return "ClosedByRemote"
	case ReasonProtocolError:
		return "ProtocolError"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}
