package proto

import "fmt"

// Sizes of CONNECT_REQUEST, in bytes.
const (
	// ConnectRequestOverhead is the size without connection data.
	ConnectRequestOverhead = HeaderLen + IDLen + 1 /* length */
	// MaxConnectRequestLen is the size of every CONNECT_REQUEST that a real
	// client sends.
	MaxConnectRequestLen = ConnectRequestOverhead + MaxConnectionData
)

// ConnectRequest asks for a link to the allocation that the connection data
// was issued for. It is answered with Accepted, Rejected, Error or silence.
type ConnectRequest struct {
	ID             AllocationID // bytes 4-19: the requester's own allocation
	ConnectionData []byte       // length in byte 20, data from byte 21: the ticket to the host; at most 255 bytes; aliases the packet
}

// ParseConnectRequest reads a CONNECT_REQUEST of exactly 21 bytes plus the
// connection data whose length byte 20 gives.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseConnectRequest(pkt []byte) (ConnectRequest, error) {
	const data = ConnectRequestOverhead
	wrong := firstWrong(pkt, TypeConnectRequest)
	if wrong != HeaderLen || len(pkt) < data || len(pkt) != data+int(pkt[data-1]) {
		return ConnectRequest{}, reasons[wrong]
	}
	return ConnectRequest{
		ID:             AllocationID(pkt[4:20]),
		ConnectionData: pkt[data:len(pkt):len(pkt)],
	}, nil
}

// Len returns the size of the encoded message, 21 to 276 bytes.
func (m ConnectRequest) Len() int { return ConnectRequestOverhead + len(m.ConnectionData) }

// Append appends the encoded message to dst. It panics when ConnectionData is
// longer than MaxConnectionData.
func (m ConnectRequest) Append(dst []byte) []byte {
	if len(m.ConnectionData) > MaxConnectionData {
		panic(errConnectionData)
	}
	dst = appendHeader(dst, TypeConnectRequest)
	dst = append(dst, m.ID[:]...)
	dst = append(dst, uint8(len(m.ConnectionData)))
	return append(dst, m.ConnectionData...)
}

// String describes the message in one line, without the connection data: it
// is a ticket.
func (m ConnectRequest) String() string {
	return fmt.Sprintf("CONNECT_REQUEST %v data=%dB", m.ID, len(m.ConnectionData))
}
