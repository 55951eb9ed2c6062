package utp

import "fmt"

// Disconnect ends a connection, and ends the attempt of a client whose request
// it answers. It is 9 bytes, kind 2 and token, and carries no reason.
type Disconnect struct {
	Token Token
}

// ParseDisconnect reads a disconnect of exactly 9 bytes.
// Errors: ErrShort, ErrVersion, ErrKind, ErrLength.
func ParseDisconnect(pkt []byte) (Disconnect, error) {
	token, err := bareToken(pkt, KindDisconnect)
	return Disconnect{Token: token}, err
}

// bareToken reads a message that is kind and token and nothing else. What has
// more is refused, though no rule asks for it: a bit that flipped in a data
// packet shall not end the connection.
func bareToken(pkt []byte, want Kind) (Token, error) {
	token, err := tokenOf(pkt, want)
	if err != nil {
		return 0, err
	}
	if len(pkt) != MessageLen {
		return 0, ErrLength
	}
	return token, nil
}

// Append appends the encoded packet to dst.
func (m Disconnect) Append(dst []byte) []byte { return appendHeader(dst, KindDisconnect, m.Token) }

// String describes the packet in one line.
func (m Disconnect) String() string { return fmt.Sprintf("disconnect %v", m.Token) }
