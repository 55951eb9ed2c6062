package utp

import "fmt"

// Heartbeat says that its sender is alive. It is 9 bytes, kind 3 and token, and
// nobody answers it.
type Heartbeat struct {
	Token Token
}

// ParseHeartbeat reads a heartbeat of exactly 9 bytes.
// Errors: ErrShort, ErrVersion, ErrKind, ErrLength.
func ParseHeartbeat(pkt []byte) (Heartbeat, error) {
	token, err := bareToken(pkt, KindHeartbeat)
	return Heartbeat{Token: token}, err
}

// Append appends the encoded packet to dst.
func (m Heartbeat) Append(dst []byte) []byte { return appendHeader(dst, KindHeartbeat, m.Token) }

// String describes the packet in one line.
func (m Heartbeat) String() string { return fmt.Sprintf("heartbeat %v", m.Token) }
