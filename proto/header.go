package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// The header is 4 bytes: 2 bytes of signature, 1 of version, 1 of type.
const (
	Version   = 0 // the only version there is, in byte 2
	HeaderLen = 4 // bytes

	// signature is the first two bytes of every message, DA 72, written as a
	// big-endian number.
	signature = 0xDA72
)

// The errors of this package. They are returned bare, so that == works and the
// path of a dropped datagram formats nothing.
var (
	ErrShort     = errors.New("proto: datagram is shorter than a header")
	ErrSignature = errors.New("proto: datagram does not start with the signature DA 72")
	ErrVersion   = errors.New("proto: protocol version is not 0")
	ErrType      = errors.New("proto: message is of another or of an unknown type")
	ErrLength    = errors.New("proto: size of the datagram does not match the message")
)

// Type is the kind of a message, byte 3 of the header. Values without a name
// are reserved or unknown.
type Type uint8

// The types, numbered as on the wire. 4, 5 and 7 are reserved; 8 is reserved
// in the published text too, but clients since transport 2.5.1 read it as a
// refusal.
const (
	TypeBind           Type = 0
	TypeBindReceived   Type = 1
	TypePing           Type = 2
	TypeConnectRequest Type = 3
	TypeAccepted       Type = 6
	TypeRejected       Type = 8
	TypeDisconnect     Type = 9
	TypeRelay          Type = 10
	TypeClose          Type = 11
	TypeError          Type = 12
)

// Sets of types, one bit per type.
const (
	clientTypes = 1<<TypeBind | 1<<TypePing | 1<<TypeConnectRequest |
		1<<TypeDisconnect | 1<<TypeRelay | 1<<TypeClose
	serverTypes = 1<<TypeBindReceived | 1<<TypeAccepted | 1<<TypeRejected | 1<<TypeError
)

// FromClient reports whether a client sends messages of this type, and so
// whether a relay may ever answer one: BIND, PING, CONNECT_REQUEST,
// DISCONNECT, RELAY and CLOSE.
func (t Type) FromClient() bool {
	// A shift by the width of the operand or more gives 0 in Go, so that
	// unknown types need no check of their own.
	return uint32(1)<<t&clientTypes != 0
}

// FromServer reports whether only a relay sends messages of this type:
// BIND_RECEIVED, ACCEPTED, REJECTED and ERROR. PING, DISCONNECT and RELAY come
// from both ends and count as FromClient.
func (t Type) FromServer() bool {
	return uint32(1)<<t&serverTypes != 0
}

// String returns the name that the published text uses, or TYPE(n).
func (t Type) String() string {
	switch t {
	case TypeBind:
		return "BIND"
	case TypeBindReceived:
		return "BIND_RECEIVED"
	case TypePing:
		return "PING"
	case TypeConnectRequest:
		return "CONNECT_REQUEST"
	case TypeAccepted:
		return "ACCEPTED"
	case TypeRejected:
		return "REJECTED"
	case TypeDisconnect:
		return "DISCONNECT"
	case TypeRelay:
		return "RELAY"
	case TypeClose:
		return "CLOSE"
	case TypeError:
		return "ERROR"
	}
	return fmt.Sprintf("TYPE(%d)", uint8(t))
}

// ParseType reads the header. It does not say that the type is known or that
// the rest has the right size.
//
// Errors: ErrShort below 4 bytes, ErrSignature, and ErrVersion. The type is
// returned with ErrVersion as well, because the answer to a wrong version
// depends on it; with the other errors it is 0 and means nothing.
func ParseType(pkt []byte) (Type, error) {
	if len(pkt) < HeaderLen {
		return 0, ErrShort
	}
	if binary.BigEndian.Uint16(pkt) != signature {
		return 0, ErrSignature
	}
	if pkt[2] != Version {
		return Type(pkt[3]), ErrVersion
	}
	return Type(pkt[3]), nil
}

// headerOf returns the four bytes that begin a message of type t, as a
// big-endian number.
func headerOf(t Type) uint32 {
	return signature<<16 | Version<<8 | uint32(t)
}

func appendHeader(dst []byte, t Type) []byte {
	return binary.BigEndian.AppendUint32(dst, headerOf(t))
}

// firstWrong returns the index of the first byte of pkt that differs from the
// header of a message of type want: HeaderLen when none does, noHeader when
// pkt is too short to tell. The result is an index into reasons, so that a
// parser needs no call and no chain of branches to name its error. That keeps
// the parsers within the budget of the inliner.
func firstWrong(pkt []byte, want Type) int {
	if len(pkt) < HeaderLen {
		return noHeader
	}
	return bits.LeadingZeros32(binary.BigEndian.Uint32(pkt)^headerOf(want)) / 8
}

const noHeader = HeaderLen + 1

// reasons says what it means that the byte of this index is the first wrong
// one. A datagram whose header is right can only have the wrong size.
var reasons = [...]error{
	0:         ErrSignature,
	1:         ErrSignature,
	2:         ErrVersion,
	3:         ErrType,
	HeaderLen: ErrLength,
	noHeader:  ErrShort,
}
