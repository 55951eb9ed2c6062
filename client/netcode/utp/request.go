package utp

import "fmt"

// Request asks for a connection. The client repeats it until it hears anything
// with its token.
//
//	 0      3         4      5       13         15
//	+------+---------+------+-------+----------+---------+
//	| UTP  | version | kind | token | length L | payload |
//	+------+---------+------+-------+----------+---------+
//	  ASCII  1         1      u64 LE  u16 LE     L bytes; both only if L > 0
type Request struct {
	Token   Token
	Payload []byte // 0 to 65535 bytes; aliases the packet
}

// ParseRequest reads a request. A length field that is 0 or not what is left
// makes it invalid.
// Errors: ErrShort, ErrVersion, ErrKind, ErrLength.
func ParseRequest(pkt []byte) (Request, error) {
	token, err := tokenOf(pkt, KindRequest)
	if err != nil {
		return Request{}, err
	}
	payload, err := handshakePayload(pkt)
	if err != nil {
		return Request{}, err
	}
	return Request{Token: token, Payload: payload}, nil
}

// Append appends the encoded packet to dst.
func (m Request) Append(dst []byte) []byte {
	return appendHandshake(dst, KindRequest, m.Token, m.Payload)
}

// String describes the packet in one line.
func (m Request) String() string { return fmt.Sprintf("request %v %x", m.Token, m.Payload) }
