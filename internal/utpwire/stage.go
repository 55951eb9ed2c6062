package utpwire

import "encoding/binary"

// Sizes of the stage headers, in bytes.
const (
	SequencedLen      = 2
	FragmentLen       = 2
	ReliableNarrowLen = 12 // windows of 1 to 32
	ReliableWideLen   = 16 // windows of 33 to 64
)

// SequencedHeader is the header of an unreliable sequenced stage: u16 LE.
type SequencedHeader struct {
	Sequence uint16 // the first is 0
}

// ParseSequenced reads the header and returns what follows it.
// Errors: ErrShort.
func ParseSequenced(b []byte) (SequencedHeader, []byte, error) {
	if len(b) < SequencedLen {
		return SequencedHeader{}, nil, ErrShort
	}
	return SequencedHeader{Sequence: binary.LittleEndian.Uint16(b)}, b[SequencedLen:], nil
}

// Append appends the encoded header to dst.
func (h SequencedHeader) Append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint16(dst, h.Sequence)
}

// FragmentHeader is the header of a fragmentation stage: u16 LE, bit 15 is
// First, bit 14 is Last, the rest is the sequence. Every packet has it; a
// message that is whole is both first and last.
type FragmentHeader struct {
	First, Last bool
	Sequence    uint16 // of the packet, 0 to 16383; runs on from message to message
}

const (
	fragmentFirst = 1 << 15
	fragmentLast  = 1 << 14
	// FragmentMask bounds the sequence of a fragment.
	FragmentMask = fragmentLast - 1
)

// ParseFragment reads the header and returns what follows it.
// Errors: ErrShort.
func ParseFragment(b []byte) (FragmentHeader, []byte, error) {
	if len(b) < FragmentLen {
		return FragmentHeader{}, nil, ErrShort
	}
	v := binary.LittleEndian.Uint16(b)
	return FragmentHeader{
		First:    v&fragmentFirst != 0,
		Last:     v&fragmentLast != 0,
		Sequence: v & FragmentMask,
	}, b[FragmentLen:], nil
}

// Append appends the encoded header to dst. Bits of the sequence above 13 are
// cut off.
func (h FragmentHeader) Append(dst []byte) []byte {
	v := h.Sequence & FragmentMask
	if h.First {
		v |= fragmentFirst
	}
	if h.Last {
		v |= fragmentLast
	}
	return binary.LittleEndian.AppendUint16(dst, v)
}

// ReliableHeader is the header of a reliable sequenced stage.
//
//	 0      1    2            4          6        8
//	+------+----+------------+----------+--------+----------------+
//	| type | 0  | processing | sequence | newest | mask           |
//	+------+----+------------+----------+--------+----------------+
//	  u8     u8   u16 LE       u16 LE     u16 LE   u32 or u64 LE
//
// The size of the mask is not on the wire: both ends must be configured alike.
// A pure acknowledgement has one more byte behind it, without a meaning.
type ReliableHeader struct {
	Ack        bool   // type 1: acknowledges and carries nothing
	Processing uint16 // ms between receiving Newest and sending this
	Sequence   uint16 // the first is 0; 0 in pure acknowledgements
	Newest     uint16 // sequence received; 0xFFFF before anything was
	Mask       uint64 // bit i set: Newest-i was received; bits older than sequence 0 mean nothing
}

// ParseReliable reads the header with a mask of 8 bytes if wide, of 4 bytes
// otherwise, and returns what follows it.
// Errors: ErrShort, and ErrStage for a type above 1 or a mask of another size,
// as windows above 64 announce it.
func ParseReliable(b []byte, wide bool) (ReliableHeader, []byte, error) {
	size := ReliableLen(wide)
	if len(b) < size {
		return ReliableHeader{}, nil, ErrShort
	}
	if b[0] > 1 || b[1] != 0 {
		return ReliableHeader{}, nil, ErrStage
	}
	h := ReliableHeader{
		Ack:        b[0] == 1,
		Processing: binary.LittleEndian.Uint16(b[2:]),
		Sequence:   binary.LittleEndian.Uint16(b[4:]),
		Newest:     binary.LittleEndian.Uint16(b[6:]),
		Mask:       uint64(binary.LittleEndian.Uint32(b[8:])),
	}
	if wide {
		h.Mask = binary.LittleEndian.Uint64(b[8:])
	}
	return h, b[size:], nil
}

// Append appends the encoded header to dst, with 8 bytes of mask if wide, with
// the lower 4 otherwise.
func (h ReliableHeader) Append(dst []byte, wide bool) []byte {
	kind := byte(0)
	if h.Ack {
		kind = 1
	}
	dst = append(dst, kind, 0)
	dst = binary.LittleEndian.AppendUint16(dst, h.Processing)
	dst = binary.LittleEndian.AppendUint16(dst, h.Sequence)
	dst = binary.LittleEndian.AppendUint16(dst, h.Newest)
	if wide {
		return binary.LittleEndian.AppendUint64(dst, h.Mask)
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(h.Mask))
}

// ReliableLen is the size of a reliable header with a mask of 8 bytes if wide, of 4 bytes
// otherwise.
func ReliableLen(wide bool) int {
	if wide {
		return ReliableWideLen
	}
	return ReliableNarrowLen
}
