package proto

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// idLen is the size of an allocation id in bytes.
const idLen = 16

// AllocationID identifies an allocation. On the wire it is 16 opaque bytes. Ferry
// uses a UUID in the byte order of RFC 9562, so that the bytes and the text that the
// HTTP API returns are the same id. No allocation has the zero id.
type AllocationID [16]byte

// IsZero reports whether all bytes are zero, as in an ERROR without an allocation.
func (id AllocationID) IsZero() bool { return id == AllocationID{} }

// String returns the 36 characters of the UUID in lower case, for example
// 10111213-1415-1617-1819-1a1b1c1d1e1f.
func (id AllocationID) String() string {
	text := make([]byte, 0, 36)
	for i := range id {
		switch i {
		case 4, 6, 8, 10:
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, id[i:i+1])
	}
	return string(text)
}

// ErrIDText is returned by [ParseAllocationID] for any text but the 36 characters of
// a UUID.
var ErrIDText = errors.New("proto: not the text of a UUID")

// ParseAllocationID is the inverse of [AllocationID.String]; letters may be in either
// case. Its error is [ErrIDText].
func ParseAllocationID(text string) (AllocationID, error) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return AllocationID{}, ErrIDText
	}
	digits := text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	var id AllocationID
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return AllocationID{}, ErrIDText
	}
	return id, nil
}

// pingLen is the size of PING in bytes.
const pingLen = HeaderLen + idLen + 2 /* number */

// Ping keeps an idle allocation alive. The relay echoes it unchanged and sends none
// of its own.
type Ping struct {
	ID     AllocationID // bytes 4-19: the sender's own allocation
	Number uint16       // bytes 20-21, little-endian; real clients always send 1
}

// ParsePing parses a PING of exactly 22 bytes.
func ParsePing(pkt []byte) (Ping, error) {
	wrong := headerMismatch(pkt, TypePing)
	if wrong != HeaderLen || len(pkt) != pingLen {
		return Ping{}, headerErrors[wrong]
	}
	return Ping{ID: AllocationID(pkt[4:20]), Number: binary.LittleEndian.Uint16(pkt[20:])}, nil
}

// Append appends the encoded message to dst.
func (m Ping) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypePing)
	dst = append(dst, m.ID[:]...)
	return binary.LittleEndian.AppendUint16(dst, m.Number)
}

// String describes the message in one line.
func (m Ping) String() string { return fmt.Sprintf("PING %v number=%d", m.ID, m.Number) }

// closeLen is the size of CLOSE in bytes.
const closeLen = HeaderLen + idLen

// Close ends the sender's allocation. The relay does not answer it. No Unity client
// sends it; only the published text describes it.
type Close struct {
	ID AllocationID // bytes 4-19: the sender's own allocation
}

// ParseClose parses a CLOSE of exactly 20 bytes.
func ParseClose(pkt []byte) (Close, error) {
	wrong := headerMismatch(pkt, TypeClose)
	if wrong != HeaderLen || len(pkt) != closeLen {
		return Close{}, headerErrors[wrong]
	}
	return Close{ID: AllocationID(pkt[4:20])}, nil
}

// Append appends the encoded message to dst.
func (m Close) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeClose)
	return append(dst, m.ID[:]...)
}

// String describes the message in one line.
func (m Close) String() string { return fmt.Sprintf("CLOSE %v", m.ID) }

// errorLen is the size of ERROR in bytes.
const errorLen = HeaderLen + idLen + 1 /* code */

// ErrorCode is the reason of an ERROR, byte 20. Clients log unknown codes.
type ErrorCode uint8

// The codes, numbered as on the wire. A real client ends its game on ErrorTimeout and
// ErrorNotFound, so a relay sends them only if it is certain.
const (
	ErrorVersion      ErrorCode = 0 // the version of the message is not supported
	ErrorTimeout      ErrorCode = 1 // the allocation ended because it was idle; fatal for clients
	ErrorUnauthorized ErrorCode = 2 // the connection data is not for this requester
	ErrorMismatch     ErrorCode = 3 // the endpoint is not bound to the named allocation; 2.x clients bind again
	ErrorNotFound     ErrorCode = 4 // the allocation does not exist (any more); fatal for clients
	ErrorNotConnected ErrorCode = 5 // there is no link to the named peer
	ErrorSelfConnect  ErrorCode = 6 // an allocation asked for a link to itself
)

// String returns a description, or "code n" for an unknown code.
func (c ErrorCode) String() string {
	switch c {
	case ErrorVersion:
		return "version not supported"
	case ErrorTimeout:
		return "timed out"
	case ErrorUnauthorized:
		return "unauthorized"
	case ErrorMismatch:
		return "endpoint mismatch"
	case ErrorNotFound:
		return "allocation not found"
	case ErrorNotConnected:
		return "not connected"
	case ErrorSelfConnect:
		return "connect to self"
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Error reports that the relay refused a message. It is a message, not a Go error.
type Error struct {
	ID   AllocationID // bytes 4-19: the allocation concerned, zero for ErrorVersion; clients ignore it
	Code ErrorCode    // byte 20
}

// ParseError parses an ERROR of exactly 21 bytes, with any code.
func ParseError(pkt []byte) (Error, error) {
	wrong := headerMismatch(pkt, TypeError)
	if wrong != HeaderLen || len(pkt) != errorLen {
		return Error{}, headerErrors[wrong]
	}
	return Error{ID: AllocationID(pkt[4:20]), Code: ErrorCode(pkt[20])}, nil
}

// Append appends the encoded message to dst.
func (m Error) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeError)
	dst = append(dst, m.ID[:]...)
	return append(dst, uint8(m.Code))
}

// String describes the message in one line.
func (m Error) String() string { return fmt.Sprintf("ERROR %v %d (%v)", m.ID, uint8(m.Code), m.Code) }
