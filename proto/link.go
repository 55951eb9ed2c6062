package proto

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Sizes of CONNECT_REQUEST, in bytes.
const (
	// connectRequestOverhead is the size without connection data.
	connectRequestOverhead = HeaderLen + idLen + 1 /* length */
	// maxConnectRequestLen is the size of every CONNECT_REQUEST that a real
	// client sends.
	maxConnectRequestLen = connectRequestOverhead + MaxConnectionData
)

// ConnectRequest asks for a link to the host for which the connection data was issued.
// The relay answers with Accepted, Rejected or Error, or not at all.
type ConnectRequest struct {
	ID             AllocationID // bytes 4-19: the requester's own allocation
	ConnectionData []byte       // length in byte 20, data from byte 21: the ticket to the host; at most 255 bytes; aliases the packet
}

// ParseConnectRequest parses a CONNECT_REQUEST of exactly 21 bytes plus the
// connection data, whose length is byte 20.
func ParseConnectRequest(pkt []byte) (ConnectRequest, error) {
	const data = connectRequestOverhead
	wrong := headerMismatch(pkt, TypeConnectRequest)
	if wrong != HeaderLen || len(pkt) < data || len(pkt) != data+int(pkt[data-1]) {
		return ConnectRequest{}, headerErrors[wrong]
	}
	return ConnectRequest{
		ID:             AllocationID(pkt[4:20]),
		ConnectionData: pkt[data:len(pkt):len(pkt)],
	}, nil
}

// Append appends the encoded message to dst. It panics if ConnectionData is longer
// than MaxConnectionData.
func (m ConnectRequest) Append(dst []byte) []byte {
	if len(m.ConnectionData) > MaxConnectionData {
		panic(errConnectionData)
	}
	dst = appendHeader(dst, TypeConnectRequest)
	dst = append(dst, m.ID[:]...)
	dst = append(dst, uint8(len(m.ConnectionData)))
	return append(dst, m.ConnectionData...)
}

// String describes the message in one line, without the connection data, which is a
// ticket.
func (m ConnectRequest) String() string {
	return fmt.Sprintf("CONNECT_REQUEST %v data=%dB", m.ID, len(m.ConnectionData))
}

// acceptedLen is the size of ACCEPTED in bytes.
const acceptedLen = HeaderLen + idLen + idLen

// Accepted confirms a joiner's link, which is open in both directions. The host gets
// no message; it learns of the joiner from the first RELAY.
type Accepted struct {
	From AllocationID // bytes 4-19: the host; the client keeps it as its peer
	To   AllocationID // bytes 20-35: the joiner; real clients do not check it
}

// ParseAccepted parses an ACCEPTED of exactly 36 bytes.
func ParseAccepted(pkt []byte) (Accepted, error) {
	wrong := headerMismatch(pkt, TypeAccepted)
	if wrong != HeaderLen || len(pkt) != acceptedLen {
		return Accepted{}, headerErrors[wrong]
	}
	return Accepted{From: AllocationID(pkt[4:20]), To: AllocationID(pkt[20:36])}, nil
}

// Append appends the encoded message to dst.
func (m Accepted) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeAccepted)
	dst = append(dst, m.From[:]...)
	return append(dst, m.To[:]...)
}

// String describes the message in one line.
func (m Accepted) String() string { return fmt.Sprintf("ACCEPTED %v -> %v", m.From, m.To) }

// rejectedLen is the size of REJECTED in bytes. Clients read only its header, and no
// text describes the body; Ferry uses that of ACCEPTED.
const rejectedLen = HeaderLen + idLen + idLen

// Rejected tells a joiner that the host is full. Clients since transport 2.5.1 stop
// connecting; older clients ignore it.
type Rejected struct {
	From AllocationID // bytes 4-19: the host
	To   AllocationID // bytes 20-35: the joiner
}

// ParseRejected parses a REJECTED of exactly 36 bytes.
func ParseRejected(pkt []byte) (Rejected, error) {
	wrong := headerMismatch(pkt, TypeRejected)
	if wrong != HeaderLen || len(pkt) != rejectedLen {
		return Rejected{}, headerErrors[wrong]
	}
	return Rejected{From: AllocationID(pkt[4:20]), To: AllocationID(pkt[20:36])}, nil
}

// Append appends the encoded message to dst.
func (m Rejected) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeRejected)
	dst = append(dst, m.From[:]...)
	return append(dst, m.To[:]...)
}

// String describes the message in one line.
func (m Rejected) String() string { return fmt.Sprintf("REJECTED %v -> %v", m.From, m.To) }

// disconnectLen is the size of DISCONNECT in bytes.
const disconnectLen = HeaderLen + idLen + idLen

// Disconnect ends the link between two allocations. The relay forwards it to
// the peer and echoes it to the sender; both ends of a link may send one.
type Disconnect struct {
	From AllocationID // bytes 4-19: the sender, which ends the link
	To   AllocationID // bytes 20-35: the peer
}

// ParseDisconnect parses a DISCONNECT of exactly 36 bytes.
func ParseDisconnect(pkt []byte) (Disconnect, error) {
	wrong := headerMismatch(pkt, TypeDisconnect)
	if wrong != HeaderLen || len(pkt) != disconnectLen {
		return Disconnect{}, headerErrors[wrong]
	}
	return Disconnect{From: AllocationID(pkt[4:20]), To: AllocationID(pkt[20:36])}, nil
}

// Append appends the encoded message to dst.
func (m Disconnect) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeDisconnect)
	dst = append(dst, m.From[:]...)
	return append(dst, m.To[:]...)
}

// String describes the message in one line.
func (m Disconnect) String() string { return fmt.Sprintf("DISCONNECT %v -> %v", m.From, m.To) }

// Sizes of RELAY, in bytes.
const (
	// RelayOverhead is the size of a RELAY with an empty payload.
	RelayOverhead = HeaderLen + idLen + idLen + 2 /* length */
	// DefaultMaxContent is the largest payload in the published text.
	DefaultMaxContent = 1400
	// MaxContent is the largest payload that ParseRelay accepts: real clients
	// can be configured to send messages of up to 1472 bytes, the size of a UDP
	// datagram on an Ethernet path.
	MaxContent = maxRelayLen - RelayOverhead

	maxRelayLen = 1472
	relayHeader = signature<<16 | Version<<8 | uint32(TypeRelay)
)

// Relay carries a payload to a linked allocation. The relay forwards it unchanged.
type Relay struct {
	From    AllocationID // bytes 4-19: the sender
	To      AllocationID // bytes 20-35: the receiver
	Payload []byte       // length in bytes 36-37, big-endian; data from byte 38; 0 to 1434 bytes; aliases the packet
}

// ParseRelay parses a RELAY of exactly 38 bytes plus the payload, whose length is in
// bytes 36-37 and at most MaxContent.
//
// The body repeats headerMismatch, because otherwise it exceeds the budget of the
// inliner. Inlined it takes 7 ns and called 18 ns (Go 1.26, amd64), because a Relay
// does not fit into registers.
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
	return Relay{}, headerErrors[bits.LeadingZeros32(wrong)/8]
}

// Append appends the encoded message to dst. It panics if Payload is longer than
// MaxContent.
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
