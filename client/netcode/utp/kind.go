package utp

import (
	"encoding/binary"
	"fmt"
)

// Sizes of the headers, in bytes.
const (
	// HandshakeLen is the size of a request or accept without payload:
	// signature, version, kind and token.
	HandshakeLen = len(signature) + 1 + 1 + TokenLen
	// MessageLen is the size of the header of every other packet: kind and token.
	MessageLen = 1 + TokenLen
	// TokenLen is the size of a Token.
	TokenLen = 8
	// MaxDatagram is the largest packet there is, what a UDP datagram holds on
	// an Ethernet path.
	MaxDatagram = 1472

	// Version is the protocol version in requests and accepts.
	Version = 1

	signature = "UTP"
)

// Token names a connection in every packet of it. The client picks it at
// random. On the wire it has 8 bytes, little-endian.
type Token uint64

// String returns the 16 hex digits of the token as they stand on the wire.
func (t Token) String() string {
	return fmt.Sprintf("%x", binary.LittleEndian.AppendUint64(nil, uint64(t)))
}

// Kind is the kind of a packet. Messages have the value of the wire. Requests
// and accepts are numbered apart there, and have bit 7 set here.
type Kind uint8

// The kinds.
const (
	KindData       Kind = 1
	KindDisconnect Kind = 2
	KindHeartbeat  Kind = 3
	KindMTUCheck   Kind = 4
	KindMTUAck     Kind = 5

	KindRequest Kind = handshakeBit | 1
	KindAccept  Kind = handshakeBit | 2

	handshakeBit = 0x80
)

// String returns the name of the kind, or kind(n).
func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindDisconnect:
		return "disconnect"
	case KindHeartbeat:
		return "heartbeat"
	case KindMTUCheck:
		return "mtu check"
	case KindMTUAck:
		return "mtu ack"
	case KindRequest:
		return "request"
	case KindAccept:
		return "accept"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind reads the kind and the token of a packet and says nothing about
// the rest. A packet of at least 13 bytes that begins with UTP is a request or
// accept, whatever follows; no other kind begins with that byte.
//
// Errors: ErrShort, ErrVersion, ErrKind.
func ParseKind(pkt []byte) (Kind, Token, error) {
	if len(pkt) >= HandshakeLen && string(pkt[:len(signature)]) == signature {
		return parseHandshakeKind(pkt)
	}
	if len(pkt) < MessageLen {
		return 0, 0, ErrShort
	}
	kind := Kind(pkt[0])
	if kind < KindData || kind > KindMTUAck {
		return 0, 0, ErrKind
	}
	return kind, Token(binary.LittleEndian.Uint64(pkt[1:])), nil
}

func parseHandshakeKind(pkt []byte) (Kind, Token, error) {
	if pkt[3] != Version {
		return 0, 0, ErrVersion
	}
	kind := handshakeBit | Kind(pkt[4])
	if pkt[4] >= handshakeBit || kind != KindRequest && kind != KindAccept {
		return 0, 0, ErrKind
	}
	return kind, Token(binary.LittleEndian.Uint64(pkt[5:])), nil
}

// tokenOf reads the token of a packet that must be of one kind.
func tokenOf(pkt []byte, want Kind) (Token, error) {
	kind, token, err := ParseKind(pkt)
	if err == nil && kind != want {
		err = ErrKind
	}
	return token, err
}

// appendHeader appends the header of a message.
func appendHeader(dst []byte, k Kind, t Token) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, byte(k)), uint64(t))
}

// appendHandshake appends a request or an accept.
func appendHandshake(dst []byte, k Kind, t Token, payload []byte) []byte {
	dst = append(dst, signature...)
	dst = append(dst, Version, byte(k&^handshakeBit))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(t))
	if len(payload) == 0 {
		return dst
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(payload)))
	return append(dst, payload...)
}

// handshakePayload returns what follows the 13 bytes of a request or accept.
// It counts only if its length field is what is left, and not 0.
func handshakePayload(pkt []byte) ([]byte, error) {
	rest := pkt[HandshakeLen:]
	if len(rest) == 0 {
		return nil, nil
	}
	if len(rest) <= lengthLen || int(binary.LittleEndian.Uint16(rest)) != len(rest)-lengthLen {
		return nil, ErrLength
	}
	return rest[lengthLen:len(rest):len(rest)], nil
}

// lengthLen is the size of a length field, in bytes.
const lengthLen = 2
