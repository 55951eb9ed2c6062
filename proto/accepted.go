package proto

import "fmt"

// AcceptedLen is the size of ACCEPTED in bytes.
const AcceptedLen = HeaderLen + IDLen + IDLen

// Accepted tells a joiner that the link it asked for is open, both ways. The
// host is told nothing: it learns of the joiner from the first RELAY.
type Accepted struct {
	From AllocationID // bytes 4-19: the target of the request, the host; the client keeps it as its peer
	To   AllocationID // bytes 20-35: the requester, the joiner; real clients do not check it
}

// ParseAccepted reads an ACCEPTED of exactly 36 bytes.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseAccepted(pkt []byte) (Accepted, error) {
	wrong := firstWrong(pkt, TypeAccepted)
	if wrong != HeaderLen || len(pkt) != AcceptedLen {
		return Accepted{}, reasons[wrong]
	}
	return Accepted{From: AllocationID(pkt[4:20]), To: AllocationID(pkt[20:36])}, nil
}

// Len returns 36, the size of the encoded message in bytes.
func (Accepted) Len() int { return AcceptedLen }

// Append appends the encoded message to dst.
func (m Accepted) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeAccepted)
	dst = append(dst, m.From[:]...)
	return append(dst, m.To[:]...)
}

// String describes the message in one line.
func (m Accepted) String() string { return fmt.Sprintf("ACCEPTED %v -> %v", m.From, m.To) }
