// Package utpwire has the packets of Unity Transport 2.x, protocol version 1, and the headers
// of its pipeline stages. All numbers are little-endian. No input panics, and what a parser
// returns aliases the packet.
package utpwire

import (
	"encoding/binary"
	"errors"
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
	if len(rest) <= LengthLen || int(binary.LittleEndian.Uint16(rest)) != len(rest)-LengthLen {
		return nil, ErrLength
	}
	return rest[LengthLen:len(rest):len(rest)], nil
}

// LengthLen is the size of a length field, in bytes.
const LengthLen = 2

// Request asks for a connection. The client repeats it until it receives any
// message with its token.
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

// Heartbeat keeps a connection alive. It is 9 bytes, kind 3 and token, and has no
// answer.
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

// MTUCheck asks whether a packet of this size arrives. It is the header of a
// message with kind 4, a u16 LE length, and that many zero bytes. Peers since
// UTP 2.5.0 may send it; this package answers and never asks.
type MTUCheck struct {
	Token   Token
	Padding uint16 // how many zero bytes follow the length field
}

// ParseMTUCheck reads a check. The padding need not be zero.
// Errors: ErrShort, ErrVersion, ErrKind, ErrLength.
func ParseMTUCheck(pkt []byte) (MTUCheck, error) {
	token, err := tokenOf(pkt, KindMTUCheck)
	if err != nil {
		return MTUCheck{}, err
	}
	rest := pkt[MessageLen:]
	if len(rest) < LengthLen {
		return MTUCheck{}, ErrShort
	}
	padding := binary.LittleEndian.Uint16(rest)
	if int(padding) != len(rest)-LengthLen {
		return MTUCheck{}, ErrLength
	}
	return MTUCheck{Token: token, Padding: padding}, nil
}

// Append appends the encoded packet to dst.
func (m MTUCheck) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindMTUCheck, m.Token)
	dst = binary.LittleEndian.AppendUint16(dst, m.Padding)
	return append(dst, make([]byte, m.Padding)...)
}

// String describes the packet in one line.
func (m MTUCheck) String() string { return fmt.Sprintf("mtu check %v %d", m.Token, m.Padding) }

// MTUAck answers a check. It is the header of a message with kind 5, a u16 LE
// length of 2, and the size as u16 LE: 13 bytes.
type MTUAck struct {
	Token Token
	Size  uint16 // of the whole datagram that arrived, in bytes
}

const (
	sizeLen   = 2
	MTUAckLen = MessageLen + LengthLen + sizeLen
)

// ParseMTUAck reads an answer of exactly 13 bytes.
// Errors: ErrShort, ErrVersion, ErrKind, ErrLength.
func ParseMTUAck(pkt []byte) (MTUAck, error) {
	token, err := tokenOf(pkt, KindMTUAck)
	if err != nil {
		return MTUAck{}, err
	}
	if len(pkt) != MTUAckLen || binary.LittleEndian.Uint16(pkt[MessageLen:]) != sizeLen {
		return MTUAck{}, ErrLength
	}
	return MTUAck{Token: token, Size: binary.LittleEndian.Uint16(pkt[MessageLen+LengthLen:])}, nil
}

// Append appends the encoded packet to dst.
func (m MTUAck) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindMTUAck, m.Token)
	dst = binary.LittleEndian.AppendUint16(dst, sizeLen)
	return binary.LittleEndian.AppendUint16(dst, m.Size)
}

// String describes the packet in one line.
func (m MTUAck) String() string { return fmt.Sprintf("mtu ack %v %d", m.Token, m.Size) }

// DataLen is the size of a data packet without stage headers and payload, in
// bytes: kind, token and pipeline id.
const DataLen = MessageLen + 1

// Data carries a payload on a pipeline.
//
//	 0      1       9          10
//	+------+-------+----------+---------------+---------+
//	| 1    | token | pipeline | stage headers | payload |
//	+------+-------+----------+---------------+---------+
//	         u64 LE  u8         of the last stage first
type Data struct {
	Token    Token
	Pipeline uint8
	Body     []byte // stage headers and payload; aliases the packet
}

// ParseData reads a data packet.
// Errors: ErrShort, ErrVersion, ErrKind.
func ParseData(pkt []byte) (Data, error) {
	token, err := tokenOf(pkt, KindData)
	if err != nil {
		return Data{}, err
	}
	if len(pkt) < DataLen {
		return Data{}, ErrShort
	}
	return Data{Token: token, Pipeline: pkt[MessageLen], Body: pkt[DataLen:len(pkt):len(pkt)]}, nil
}

// Append appends the encoded packet to dst.
func (m Data) Append(dst []byte) []byte {
	dst = append(appendHeader(dst, KindData, m.Token), m.Pipeline)
	return append(dst, m.Body...)
}

// String describes the packet in one line.
func (m Data) String() string {
	return fmt.Sprintf("data %v pipeline %d %x", m.Token, m.Pipeline, m.Body)
}

// Message is any packet of the connection layer.
type Message interface {
	// Append appends the encoded packet to dst.
	Append(dst []byte) []byte
	// String describes the packet in one line.
	String() string
}

// Decode reads a packet of any kind. It is for tests and tools: an endpoint
// does not use it. The error is that of the kind's own parser.
func Decode(pkt []byte) (Message, error) {
	kind, _, err := ParseKind(pkt)
	if err != nil {
		return nil, err
	}
	switch kind {
	case KindRequest:
		return message(ParseRequest(pkt))
	case KindAccept:
		return message(ParseAccept(pkt))
	case KindData:
		return message(ParseData(pkt))
	case KindDisconnect:
		return message(ParseDisconnect(pkt))
	case KindHeartbeat:
		return message(ParseHeartbeat(pkt))
	case KindMTUCheck:
		return message(ParseMTUCheck(pkt))
	}
	return message(ParseMTUAck(pkt))
}

func message[M Message](m M, err error) (Message, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// The errors of the parsers. They are returned bare, so that == works and the
// path of a dropped datagram formats nothing.
var (
	// ErrShort is a packet or a header that ends too early.
	ErrShort = errors.New("utp: packet is shorter than its header")
	// ErrVersion is a request or accept of another protocol version than 1.
	ErrVersion = errors.New("utp: protocol version is not 1")
	// ErrKind is a packet of another or of an unknown kind.
	ErrKind = errors.New("utp: packet is of another or of an unknown kind")
	// ErrLength is a size that does not match the kind or the length field.
	ErrLength = errors.New("utp: size of the packet does not match its kind")
	// ErrStage is the header of a pipeline stage with a value that has no meaning.
	ErrStage = errors.New("utp: stage header has a value without a meaning")
)
