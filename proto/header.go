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

// The errors of the parsers. They are returned unwrapped, so that == works and
// dropping a datagram formats no text.
var (
	ErrShort     = errors.New("proto: datagram is shorter than a header")
	ErrSignature = errors.New("proto: datagram does not start with the signature DA 72")
	ErrVersion   = errors.New("proto: protocol version is not 0")
	ErrType      = errors.New("proto: message is of another or of an unknown type")
	ErrLength    = errors.New("proto: size of the datagram does not match the message")
)

// Type is the type of a message, byte 3 of the header. Values without a constant
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

// One bit per type.
const (
	clientTypes = 1<<TypeBind | 1<<TypePing | 1<<TypeConnectRequest |
		1<<TypeDisconnect | 1<<TypeRelay | 1<<TypeClose
	serverTypes = 1<<TypeBindReceived | 1<<TypeAccepted | 1<<TypeRejected | 1<<TypeError
)

// FromClient reports whether clients send messages of this type: BIND, PING,
// CONNECT_REQUEST, DISCONNECT, RELAY and CLOSE. A relay answers no others.
func (t Type) FromClient() bool {
	// A shift by 32 or more results in 0, so unknown types need no check.
	return uint32(1)<<t&clientTypes != 0
}

// FromServer reports whether only a relay sends messages of this type:
// BIND_RECEIVED, ACCEPTED, REJECTED and ERROR. Both ends send PING, DISCONNECT and
// RELAY, which are FromClient.
func (t Type) FromServer() bool {
	return uint32(1)<<t&serverTypes != 0
}

// String returns the name in the published text, or TYPE(n).
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

// ParseType returns the type in the header. The type may be unknown, and the size
// of the rest is not checked.
//
// Errors: ErrShort below 4 bytes, ErrSignature, and ErrVersion. With ErrVersion the
// type is returned too; with the other errors it is 0.
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

// headerOf is big-endian.
func headerOf(t Type) uint32 {
	return signature<<16 | Version<<8 | uint32(t)
}

func appendHeader(dst []byte, t Type) []byte {
	return binary.BigEndian.AppendUint32(dst, headerOf(t))
}

// headerMismatch returns the index of the first byte of pkt that differs from the
// header of a message of type want, HeaderLen if none does, or noHeader if pkt is
// too short. As an index of headerErrors it keeps a parser within the budget of the
// inliner.
func headerMismatch(pkt []byte, want Type) int {
	if len(pkt) < HeaderLen {
		return noHeader
	}
	return bits.LeadingZeros32(binary.BigEndian.Uint32(pkt)^headerOf(want)) / 8
}

const noHeader = HeaderLen + 1

// headerErrors: a datagram with a correct header can only have a wrong size.
var headerErrors = [...]error{
	0:         ErrSignature,
	1:         ErrSignature,
	2:         ErrVersion,
	3:         ErrType,
	HeaderLen: ErrLength,
	noHeader:  ErrShort,
}

// Message is a value of one of the ten message types.
type Message interface {
	Append(dst []byte) []byte // appends the encoded message
	String() string           // one line for logs, without secrets
}

// Decode parses a message of any type, for tools and tests; it allocates. The
// slices in the result alias pkt.
//
// Errors: those of the parsers, and ErrType for a type without a message. The
// message is then nil.
func Decode(pkt []byte) (Message, error) {
	t, err := ParseType(pkt)
	if err != nil {
		return nil, err
	}
	switch t {
	case TypeBind:
		return asMessage(ParseBind(pkt))
	case TypeBindReceived:
		return asMessage(ParseBindReceived(pkt))
	case TypePing:
		return asMessage(ParsePing(pkt))
	case TypeConnectRequest:
		return asMessage(ParseConnectRequest(pkt))
	case TypeAccepted:
		return asMessage(ParseAccepted(pkt))
	case TypeRejected:
		return asMessage(ParseRejected(pkt))
	case TypeDisconnect:
		return asMessage(ParseDisconnect(pkt))
	case TypeRelay:
		return asMessage(ParseRelay(pkt))
	case TypeClose:
		return asMessage(ParseClose(pkt))
	case TypeError:
		return asMessage(ParseError(pkt))
	}
	return nil, ErrType
}

func asMessage[M Message](m M, err error) (Message, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}
