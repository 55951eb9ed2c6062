package utp

import "encoding/binary"

const (
	sequencedLen      = 2
	fragmentLen       = 2
	reliableNarrowLen = 12 // windows of 1 to 32
	reliableWideLen   = 16 // windows of 33 to 64
)

// The header of an unreliable sequenced stage is a sequence, u16 LE from 0.
//
// The header of a fragmentation stage is u16 LE: two marks, and the sequence of the packet,
// which runs on from message to message. Every packet has it; a message that is whole has both
// marks.
const (
	fragmentFirst = 1 << 15
	fragmentLast  = 1 << 14
	fragmentMask  = fragmentLast - 1
)

func cutUint16(b []byte) (v uint16, rest []byte, ok bool) {
	if len(b) < 2 {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint16(b), b[2:], true
}

// reliableHeader is the header of a reliable sequenced stage.
//
//	 0      1    2            4          6        8
//	+------+----+------------+----------+--------+----------------+
//	| kind | 0  | processing | sequence | newest | mask           |
//	+------+----+------------+----------+--------+----------------+
//	  u8     u8   u16 LE       u16 LE     u16 LE   u32 or u64 LE
//
// The size of the mask is not on the wire: both ends must be configured alike.
// A pure acknowledgement has one more byte behind it, without a meaning.
type reliableHeader struct {
	kind       uint8  // 0, or reliableAck
	processing uint16 // ms between receiving newest and sending this
	sequence   uint16 // the first is 0; 0 in pure acknowledgements
	newest     uint16 // sequence received; 0xFFFF before anything was
	mask       uint64 // bit i set: newest-i was received; bits older than sequence 0 mean nothing
}

// reliableAck is the kind of a header that acknowledges, and has no payload behind it.
const reliableAck = 1

// parseReliable refuses a kind above 1 and, in the byte behind it, a mask of another size,
// as windows above 64 announce it.
func parseReliable(b []byte, wide bool) (h reliableHeader, rest []byte, ok bool) {
	size := reliableLen(wide)
	if len(b) < size || b[0] > reliableAck || b[1] != 0 {
		return h, nil, false
	}
	h = reliableHeader{
		kind:       b[0],
		processing: binary.LittleEndian.Uint16(b[2:]),
		sequence:   binary.LittleEndian.Uint16(b[4:]),
		newest:     binary.LittleEndian.Uint16(b[6:]),
		mask:       uint64(binary.LittleEndian.Uint32(b[8:])),
	}
	if wide {
		h.mask = binary.LittleEndian.Uint64(b[8:])
	}
	return h, b[size:], true
}

// append has 8 bytes of mask if wide, or the lower 4.
func (h reliableHeader) append(dst []byte, wide bool) []byte {
	dst = append(dst, h.kind, 0)
	dst = binary.LittleEndian.AppendUint16(dst, h.processing)
	dst = binary.LittleEndian.AppendUint16(dst, h.sequence)
	dst = binary.LittleEndian.AppendUint16(dst, h.newest)
	if wide {
		return binary.LittleEndian.AppendUint64(dst, h.mask)
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(h.mask))
}

func reliableLen(wide bool) int {
	if wide {
		return reliableWideLen
	}
	return reliableNarrowLen
}
