package proto

// BindReceivedLen is the size of BIND_RECEIVED in bytes: a bare header.
const BindReceivedLen = HeaderLen

// BindReceived is the relay's answer to a BIND that it carried out.
type BindReceived struct{}

// ParseBindReceived reads a BIND_RECEIVED of exactly 4 bytes.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseBindReceived(pkt []byte) (BindReceived, error) {
	wrong := firstWrong(pkt, TypeBindReceived)
	if wrong != HeaderLen || len(pkt) != BindReceivedLen {
		return BindReceived{}, reasons[wrong]
	}
	return BindReceived{}, nil
}

// Len returns 4, the size of the encoded message in bytes.
func (BindReceived) Len() int { return BindReceivedLen }

// Append appends the encoded message to dst.
func (BindReceived) Append(dst []byte) []byte { return appendHeader(dst, TypeBindReceived) }

// String describes the message in one line.
func (BindReceived) String() string { return "BIND_RECEIVED" }
