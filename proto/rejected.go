package proto

import "fmt"

// RejectedLen is the size of REJECTED in bytes. Clients that know the type read
// only its header; the body is our choice, the one of ACCEPTED, as no text
// describes it.
const RejectedLen = HeaderLen + IDLen + IDLen

// Rejected tells a joiner that the host is full. Clients since transport 2.5.1
// give up on it, older ones ignore it.
type Rejected struct {
	From AllocationID // bytes 4-19: the target of the request, the host
	To   AllocationID // bytes 20-35: the requester, the joiner
}

// ParseRejected reads a REJECTED of exactly 36 bytes.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseRejected(pkt []byte) (Rejected, error) {
	wrong := firstWrong(pkt, TypeRejected)
	if wrong != HeaderLen || len(pkt) != RejectedLen {
		return Rejected{}, reasons[wrong]
	}
	return Rejected{From: AllocationID(pkt[4:20]), To: AllocationID(pkt[20:36])}, nil
}

// Len returns 36, the size of the encoded message in bytes.
func (Rejected) Len() int { return RejectedLen }

// Append appends the encoded message to dst.
func (m Rejected) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeRejected)
	dst = append(dst, m.From[:]...)
	return append(dst, m.To[:]...)
}

// String describes the message in one line.
func (m Rejected) String() string { return fmt.Sprintf("REJECTED %v -> %v", m.From, m.To) }
