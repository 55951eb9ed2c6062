package proto

import "encoding/binary"

// A QoS probe measures the round trip to a region, in the format of the QoS SDK 1.3.
// It uses the relay's UDP port and is not part of the relay protocol.
const (
	// QoSMagic is the first byte of a request, and of no other datagram that the
	// relay accepts.
	QoSMagic = 0x59
	// qosRequestOverhead is the size of a request besides its title, in bytes.
	qosRequestOverhead = 14
	// qosResponseLen is the size of a response in bytes, less than any request.
	qosResponseLen = 13

	qosResponseMagic = 0x95
)

// QoSRequest is a probe that a client sends to measure round trip and loss.
type QoSRequest struct {
	Title    []byte // aliases the packet; at most 254 bytes
	Sequence uint8
	ID       uint16
	Time     uint64 // of the client's clock, in the client's unit
}

// QoSResponse is the answer to a QoSRequest, with the fields by which the client
// matches it.
type QoSResponse struct {
	Sequence uint8
	ID       uint16
	Time     uint64
}

// ParseQoSRequest parses a request. Errors: ErrShort, ErrSignature for another
// first byte, ErrVersion, ErrLength.
func ParseQoSRequest(pkt []byte) (QoSRequest, error) {
	if len(pkt) < 3 {
		return QoSRequest{}, ErrShort
	}
	if pkt[0] != QoSMagic {
		return QoSRequest{}, ErrSignature
	}
	if pkt[1]>>4 != 0 {
		return QoSRequest{}, ErrVersion
	}
	title := int(pkt[2]) - 1
	if title < 0 || len(pkt) != qosRequestOverhead+title {
		return QoSRequest{}, ErrLength
	}
	rest := pkt[3+title:]
	return QoSRequest{
		Title: pkt[3 : 3+title : 3+title], Sequence: rest[0],
		ID: binary.LittleEndian.Uint16(rest[1:]), Time: binary.LittleEndian.Uint64(rest[3:]),
	}, nil
}

// Append appends the request to dst, with at most 254 bytes of the title.
func (m QoSRequest) Append(dst []byte) []byte {
	title := m.Title[:min(len(m.Title), 254)]
	dst = append(dst, QoSMagic, 0, byte(len(title)+1))
	dst = append(append(dst, title...), m.Sequence)
	dst = binary.LittleEndian.AppendUint16(dst, m.ID)
	return binary.LittleEndian.AppendUint64(dst, m.Time)
}

// Response returns the answer to a request, without its optional throttling and ban.
func (m QoSRequest) Response() QoSResponse {
	return QoSResponse{Sequence: m.Sequence, ID: m.ID, Time: m.Time}
}

// ParseQoSResponse parses a response. Errors: those of ParseQoSRequest.
func ParseQoSResponse(pkt []byte) (QoSResponse, error) {
	switch {
	case len(pkt) < 2:
		return QoSResponse{}, ErrShort
	case pkt[0] != qosResponseMagic:
		return QoSResponse{}, ErrSignature
	case pkt[1]>>4 != 0:
		return QoSResponse{}, ErrVersion
	case len(pkt) != qosResponseLen:
		return QoSResponse{}, ErrLength
	}
	return QoSResponse{
		Sequence: pkt[2], ID: binary.LittleEndian.Uint16(pkt[3:]), Time: binary.LittleEndian.Uint64(pkt[5:]),
	}, nil
}

// Append appends the response to dst.
func (m QoSResponse) Append(dst []byte) []byte {
	dst = append(dst, qosResponseMagic, 0, m.Sequence)
	dst = binary.LittleEndian.AppendUint16(dst, m.ID)
	return binary.LittleEndian.AppendUint64(dst, m.Time)
}
