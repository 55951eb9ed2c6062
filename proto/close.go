package proto

import "fmt"

// CloseLen is the size of CLOSE in bytes.
const CloseLen = HeaderLen + IDLen

// Close ends the sender's allocation. It is not answered. No Unity client
// sends it; the published text alone describes it.
type Close struct {
	ID AllocationID // bytes 4-19: the sender's own allocation
}

// ParseClose reads a CLOSE of exactly 20 bytes.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseClose(pkt []byte) (Close, error) {
	wrong := firstWrong(pkt, TypeClose)
	if wrong != HeaderLen || len(pkt) != CloseLen {
		return Close{}, reasons[wrong]
	}
	return Close{ID: AllocationID(pkt[4:20])}, nil
}

// Len returns 20, the size of the encoded message in bytes.
func (Close) Len() int { return CloseLen }

// Append appends the encoded message to dst.
func (m Close) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeClose)
	return append(dst, m.ID[:]...)
}

// String describes the message in one line.
func (m Close) String() string { return fmt.Sprintf("CLOSE %v", m.ID) }
