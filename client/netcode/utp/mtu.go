package utp

import (
	"encoding/binary"
	"fmt"
)

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
	if len(rest) < lengthLen {
		return MTUCheck{}, ErrShort
	}
	padding := binary.LittleEndian.Uint16(rest)
	if int(padding) != len(rest)-lengthLen {
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
	mtuAckLen = MessageLen + lengthLen + sizeLen
)

// ParseMTUAck reads an answer of exactly 13 bytes.
// Errors: ErrShort, ErrVersion, ErrKind, ErrLength.
func ParseMTUAck(pkt []byte) (MTUAck, error) {
	token, err := tokenOf(pkt, KindMTUAck)
	if err != nil {
		return MTUAck{}, err
	}
	if len(pkt) != mtuAckLen || binary.LittleEndian.Uint16(pkt[MessageLen:]) != sizeLen {
		return MTUAck{}, ErrLength
	}
	return MTUAck{Token: token, Size: binary.LittleEndian.Uint16(pkt[MessageLen+lengthLen:])}, nil
}

// Append appends the encoded packet to dst.
func (m MTUAck) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindMTUAck, m.Token)
	dst = binary.LittleEndian.AppendUint16(dst, sizeLen)
	return binary.LittleEndian.AppendUint16(dst, m.Size)
}

// String describes the packet in one line.
func (m MTUAck) String() string { return fmt.Sprintf("mtu ack %v %d", m.Token, m.Size) }
