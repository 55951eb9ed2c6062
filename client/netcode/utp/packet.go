package utp

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
	if len(rest) <= lengthLen || int(binary.LittleEndian.Uint16(rest)) != len(rest)-lengthLen {
		return nil, ErrLength
	}
	return rest[lengthLen:len(rest):len(rest)], nil
}

// lengthLen is the size of a length field, in bytes.
const lengthLen = 2

// DataLen is the size of a data packet without stage headers and payload, in
// bytes: kind, token and pipeline id.
const DataLen = MessageLen + 1

// PipelineID names a pipeline on the wire: 1 for the first of the
// configuration, 2 for the second. 0 is no pipeline: the bare payload.
type PipelineID uint8

// Data carries a payload on a pipeline.
//
//	 0      1       9          10
//	+------+-------+----------+---------------+---------+
//	| 1    | token | pipeline | stage headers | payload |
//	+------+-------+----------+---------------+---------+
//	         u64 LE  u8         of the last stage first
type Data struct {
	Token    Token
	Pipeline PipelineID
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
	return Data{Token: token, Pipeline: PipelineID(pkt[MessageLen]), Body: pkt[DataLen:len(pkt):len(pkt)]}, nil
}

// Append appends the encoded packet to dst.
func (m Data) Append(dst []byte) []byte {
	dst = append(appendHeader(dst, KindData, m.Token), byte(m.Pipeline))
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

// Netcode for GameObjects puts an i32 LE length before each of its messages.
// On its reliable pipeline the bytes are a stream, in which a message may
// straddle packets; on the others a packet holds whole messages.

// BatchHeaderLen is the size of the length before a message, in bytes.
const BatchHeaderLen = 4

// ErrBatch is a length that is negative or above the limit. What follows it
// can not be found, so the stream is lost.
var ErrBatch = errors.New("utp: batch has an impossible message length")

// AppendBatched appends a message with its length to dst.
func AppendBatched(dst, msg []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(msg)))
	return append(dst, msg...)
}

// ParseBatched reads the first message of at most limit bytes and returns what
// follows it. Both alias b.
// Errors: ErrShort if the message is not complete, ErrBatch.
func ParseBatched(b []byte, limit int) (msg, rest []byte, err error) {
	if len(b) < BatchHeaderLen {
		return nil, nil, ErrShort
	}
	size := int64(int32(binary.LittleEndian.Uint32(b)))
	if size < 0 || size > int64(limit) {
		return nil, nil, ErrBatch
	}
	if int64(len(b)-BatchHeaderLen) < size {
		return nil, nil, ErrShort
	}
	end := BatchHeaderLen + int(size)
	return b[BatchHeaderLen:end:end], b[end:], nil
}

// BatchReader cuts the stream of one reliable pipeline into messages. It keeps
// at most one incomplete message and what Add brought.
type BatchReader struct {
	// Limit is the largest message in bytes. Required: nothing else bounds what
	// a peer can make this side keep.
	Limit int

	buf  []byte
	next int
	lost bool
}

// Add takes the data of the next event. It keeps a copy.
func (r *BatchReader) Add(data []byte) {
	if r.lost {
		return
	}
	rest := copy(r.buf, r.buf[r.next:])
	r.buf = append(r.buf[:rest], data...)
	r.next = 0
}

// Next returns the next message, which is valid until the next Add, or false
// if none is complete. After ErrBatch it gives nothing but ErrBatch.
func (r *BatchReader) Next() (msg []byte, ok bool, err error) {
	msg, rest, err := ParseBatched(r.buf[r.next:], r.Limit)
	switch err {
	case nil:
		r.next = len(r.buf) - len(rest)
		return msg, true, nil
	case ErrShort:
		return nil, false, nil
	}
	r.lost = true
	return nil, false, err
}

// Netcode for Entities puts RPCs on its reliable pipeline like this, and so
// does this module's own session layer:
//
//	 0    1             5       7      9
//	+----+-------------+-------+------+---------+- - -
//	| 02 | sender time | index | bits | payload | more RPCs
//	+----+-------------+-------+------+---------+- - -
//	  u8   u32 LE, ms    u16 LE  u16 LE  padded to a byte

// Sizes and marks of an RPC packet, in bytes.
const (
	RPCPacketLen = 5 // header of the packet
	RPCLen       = 4 // header of each RPC

	rpcMark = 2
)

// RPC is one call in an RPC packet.
type RPC struct {
	Index   uint16
	Bits    uint16 // of Payload that count
	Payload []byte // exactly as many bytes as Bits need; aliases the packet
}

// AppendRPCPacket appends the header of an RPC packet to dst; RPCs follow. The
// time is the sender's, in ms.
func AppendRPCPacket(dst []byte, sent uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, rpcMark), sent)
}

// ParseRPCPacket reads the header and returns the RPCs.
// Errors: ErrShort, ErrKind.
func ParseRPCPacket(b []byte) (sent uint32, rpcs []byte, err error) {
	if len(b) < RPCPacketLen {
		return 0, nil, ErrShort
	}
	if b[0] != rpcMark {
		return 0, nil, ErrKind
	}
	return binary.LittleEndian.Uint32(b[1:]), b[RPCPacketLen:], nil
}

// Append appends the encoded RPC to dst. The payload must have the bytes that
// Bits need.
func (m RPC) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, m.Index)
	dst = binary.LittleEndian.AppendUint16(dst, m.Bits)
	return append(dst, m.Payload...)
}

// ParseRPC reads the first RPC and returns those behind it.
// Errors: ErrShort.
func ParseRPC(b []byte) (m RPC, rest []byte, err error) {
	if len(b) < RPCLen {
		return RPC{}, nil, ErrShort
	}
	m = RPC{Index: binary.LittleEndian.Uint16(b), Bits: binary.LittleEndian.Uint16(b[2:])}
	size := (int(m.Bits) + 7) / 8
	if len(b)-RPCLen < size {
		return RPC{}, nil, ErrShort
	}
	end := RPCLen + size
	m.Payload = b[RPCLen:end:end]
	return m, b[end:], nil
}
