package proto

import "fmt"

// DisconnectLen is the size of DISCONNECT in bytes.
const DisconnectLen = HeaderLen + IDLen + IDLen

// Disconnect ends the link between two allocations. The relay forwards it to
// the peer and echoes it to the sender; both ends of a link may send one.
type Disconnect struct {
	From AllocationID // bytes 4-19: who ends the link
	To   AllocationID // bytes 20-35: whose link it ends
}

// ParseDisconnect reads a DISCONNECT of exactly 36 bytes.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseDisconnect(pkt []byte) (Disconnect, error) {
	wrong := firstWrong(pkt, TypeDisconnect)
	if wrong != HeaderLen || len(pkt) != DisconnectLen {
		return Disconnect{}, reasons[wrong]
	}
	return Disconnect{From: AllocationID(pkt[4:20]), To: AllocationID(pkt[20:36])}, nil
}

// Len returns 36, the size of the encoded message in bytes.
func (Disconnect) Len() int { return DisconnectLen }

// Append appends the encoded message to dst.
func (m Disconnect) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeDisconnect)
	dst = append(dst, m.From[:]...)
	return append(dst, m.To[:]...)
}

// String describes the message in one line.
func (m Disconnect) String() string { return fmt.Sprintf("DISCONNECT %v -> %v", m.From, m.To) }
