package proto

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Sizes of RELAY, in bytes.
const (
	// RelayOverhead is the size of a RELAY with an empty payload.
	RelayOverhead = HeaderLen + IDLen + IDLen + 2 /* length */
	// DefaultMaxContent is the largest payload in the published text.
	DefaultMaxContent = 1400
	// MaxContent is the largest payload that ParseRelay takes: real clients
	// may be configured to send messages of up to 1472 bytes, what a UDP
	// datagram holds on an Ethernet path.
	MaxContent = maxRelayLen - RelayOverhead

	maxRelayLen = 1472
	relayHeader = signature<<16 | Version<<8 | uint32(TypeRelay)
)

// Relay carries a payload from one allocation to another that it has a link
// to. The relay forwards it unchanged.
type Relay struct {
	From    AllocationID // bytes 4-19: the sender
	To      AllocationID // bytes 20-35: the receiver
	Payload []byte       // length in bytes 36-37, big-endian; data from byte 38; 0 to 1434 bytes; aliases the packet
}

// ParseRelay reads a RELAY of exactly 38 bytes plus the payload whose length
// bytes 36-37 give, at most MaxContent.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
//
// The body spells out what firstWrong does, since only so does it inline, with
// three nodes of the budget left. Go 1.26 on amd64 takes 7 ns for it inlined
// and 18 ns called: a Relay does not fit into registers.
func ParseRelay(pkt []byte) (Relay, error) {
	if len(pkt) < HeaderLen {
		return Relay{}, ErrShort
	}
	wrong := binary.BigEndian.Uint32(pkt) ^ relayHeader
	if wrong == 0 && len(pkt) >= RelayOverhead && len(pkt) <= maxRelayLen &&
		int(binary.BigEndian.Uint16(pkt[36:])) == len(pkt)-RelayOverhead {
		return Relay{
			From:    AllocationID(pkt[4:]),
			To:      AllocationID(pkt[20:]),
			Payload: pkt[RelayOverhead:len(pkt):len(pkt)],
		}, nil
	}
	return Relay{}, reasons[bits.LeadingZeros32(wrong)/8]
}

// Len returns the size of the encoded message, 38 to 1472 bytes.
func (m Relay) Len() int { return RelayOverhead + len(m.Payload) }

// Append appends the encoded message to dst. It panics when Payload is longer
// than MaxContent.
func (m Relay) Append(dst []byte) []byte {
	if len(m.Payload) > MaxContent {
		panic("proto: payload of RELAY is longer than 1434 bytes")
	}
	dst = appendHeader(dst, TypeRelay)
	dst = append(dst, m.From[:]...)
	dst = append(dst, m.To[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(m.Payload)))
	return append(dst, m.Payload...)
}

// String describes the message in one line, without the payload.
func (m Relay) String() string {
	return fmt.Sprintf("RELAY %v -> %v payload=%dB", m.From, m.To, len(m.Payload))
}
