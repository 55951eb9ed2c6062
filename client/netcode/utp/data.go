package utp

import "fmt"

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
