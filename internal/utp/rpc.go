package utp

import "encoding/binary"

// Netcode for Entities puts RPCs on its reliable pipeline like this, and so
// does this module's own session layer:
//
//	 0    1             5       7      9
//	+----+-------------+-------+------+---------+- - -
//	| 02 | sender time | index | bits | payload | more RPCs
//	+----+-------------+-------+------+---------+- - -
//	  u8   u32 LE, ms    u16 LE  u16 LE  padded to a byte

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

// AppendRPCPacket appends the header of an RPC packet. The time is in ms.
func AppendRPCPacket(dst []byte, sent uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, rpcMark), sent)
}

// ParseRPCPacket reads the header and returns the RPCs. It is false if there is no such header.
func ParseRPCPacket(b []byte) (sent uint32, rpcs []byte, ok bool) {
	if len(b) < RPCPacketLen || b[0] != rpcMark {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint32(b[1:]), b[RPCPacketLen:], true
}

// Append appends the encoded RPC to dst. The payload has the bytes of Bits.
func (m RPC) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, m.Index)
	dst = binary.LittleEndian.AppendUint16(dst, m.Bits)
	return append(dst, m.Payload...)
}

// ParseRPC reads the first RPC and returns those behind it. It is false if the RPC is cut off.
func ParseRPC(b []byte) (m RPC, rest []byte, ok bool) {
	if len(b) < RPCLen {
		return RPC{}, nil, false
	}
	m = RPC{Index: binary.LittleEndian.Uint16(b), Bits: binary.LittleEndian.Uint16(b[2:])}
	end := RPCLen + (int(m.Bits)+7)/8
	if len(b) < end {
		return RPC{}, nil, false
	}
	m.Payload = b[RPCLen:end:end]
	return m, b[end:], true
}
