package proto

import "fmt"

// ErrorLen is the size of ERROR in bytes.
const ErrorLen = HeaderLen + IDLen + 1 /* code */

// ErrorCode is the reason inside an ERROR, byte 20. Clients log codes that
// they do not know.
type ErrorCode uint8

// The codes, numbered as on the wire. ErrorTimeout and ErrorNotFound end the
// game of a real client, so a relay never sends them on doubt.
const (
	ErrorVersion      ErrorCode = 0 // the version of the message is not supported
	ErrorTimeout      ErrorCode = 1 // the allocation ended because it was idle; fatal for clients
	ErrorUnauthorized ErrorCode = 2 // the connection data is not for this requester
	ErrorMismatch     ErrorCode = 3 // the endpoint is not bound to the allocation named; 2.x clients bind again
	ErrorNotFound     ErrorCode = 4 // the allocation does not exist any more; fatal for clients
	ErrorNotConnected ErrorCode = 5 // there is no link to the peer named
	ErrorSelfConnect  ErrorCode = 6 // an allocation asked for a link to itself
)

// String returns a few words, or code n for a code without a name.
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

// Error is the relay's word that it did not carry out a message. It is a
// message, not a Go error.
type Error struct {
	ID   AllocationID // bytes 4-19: the allocation it is about, zero for ErrorVersion; clients do not compare it
	Code ErrorCode    // byte 20
}

// ParseError reads an ERROR of exactly 21 bytes, with any code.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseError(pkt []byte) (Error, error) {
	wrong := firstWrong(pkt, TypeError)
	if wrong != HeaderLen || len(pkt) != ErrorLen {
		return Error{}, reasons[wrong]
	}
	return Error{ID: AllocationID(pkt[4:20]), Code: ErrorCode(pkt[20])}, nil
}

// Len returns 21, the size of the encoded message in bytes.
func (Error) Len() int { return ErrorLen }

// Append appends the encoded message to dst.
func (m Error) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeError)
	dst = append(dst, m.ID[:]...)
	return append(dst, uint8(m.Code))
}

// String describes the message in one line.
func (m Error) String() string { return fmt.Sprintf("ERROR %v %d (%v)", m.ID, uint8(m.Code), m.Code) }
