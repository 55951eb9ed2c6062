package proto

import (
	"encoding/binary"
	"fmt"
)

// PingLen is the size of PING in bytes.
const PingLen = HeaderLen + IDLen + 2 /* number */

// Ping keeps an idle allocation alive. The relay echoes it unchanged and never
// starts one.
type Ping struct {
	ID     AllocationID // bytes 4-19: the sender's own allocation
	Number uint16       // bytes 20-21, little-endian; real clients always send 1
}

// ParsePing reads a PING of exactly 22 bytes.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParsePing(pkt []byte) (Ping, error) {
	wrong := firstWrong(pkt, TypePing)
	if wrong != HeaderLen || len(pkt) != PingLen {
		return Ping{}, reasons[wrong]
	}
	return Ping{ID: AllocationID(pkt[4:20]), Number: binary.LittleEndian.Uint16(pkt[20:])}, nil
}

// Len returns 22, the size of the encoded message in bytes.
func (Ping) Len() int { return PingLen }

// Append appends the encoded message to dst.
func (m Ping) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypePing)
	dst = append(dst, m.ID[:]...)
	return binary.LittleEndian.AppendUint16(dst, m.Number)
}

// String describes the message in one line.
func (m Ping) String() string { return fmt.Sprintf("PING %v number=%d", m.ID, m.Number) }
