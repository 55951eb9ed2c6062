package utp

import "fmt"

// Accept answers a request, with the token of it. It has the layout of a
// Request and kind 2; the payload is known to UTP 2.7 and later.
type Accept struct {
	Token   Token
	Payload []byte // 0 to 65535 bytes; aliases the packet
}

// ParseAccept reads an accept. One whose payload has a wrong length field is
// an accept without payload: other than with a request, the rest of it counts.
// Errors: ErrShort, ErrVersion, ErrKind.
func ParseAccept(pkt []byte) (Accept, error) {
	token, err := tokenOf(pkt, KindAccept)
	if err != nil {
		return Accept{}, err
	}
	payload, err := handshakePayload(pkt)
	if err != nil {
		payload = nil
	}
	return Accept{Token: token, Payload: payload}, nil
}

// Append appends the encoded packet to dst.
func (m Accept) Append(dst []byte) []byte {
	return appendHandshake(dst, KindAccept, m.Token, m.Payload)
}

// String describes the packet in one line.
func (m Accept) String() string { return fmt.Sprintf("accept %v %x", m.Token, m.Payload) }
