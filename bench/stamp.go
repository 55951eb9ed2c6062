package bench

import "encoding/binary"

// StampLen is the size in bytes of the stamp at the beginning of each payload:
//
//	0   magic      4 bytes
//	4   run        a random number, so that stragglers of an earlier run are told apart
//	8   flow       number of the flow
//	12  sequence   of the flow, from 0
//	16  time       intended send time, nanoseconds of sock.Now
//
// All numbers are big-endian.
const StampLen = 24

// stampMagic begins each payload.
const stampMagic = 0xFE221B3C

// stamp is what a datagram says of itself.
type stamp struct {
	run  uint32
	flow uint32
	seq  uint32
	due  int64
}

// put writes the stamp to the first StampLen bytes of b.
func (s *stamp) put(b []byte) {
	_ = b[StampLen-1]
	binary.BigEndian.PutUint32(b, stampMagic)
	binary.BigEndian.PutUint32(b[4:], s.run)
	binary.BigEndian.PutUint32(b[8:], s.flow)
	binary.BigEndian.PutUint32(b[12:], s.seq)
	binary.BigEndian.PutUint64(b[16:], uint64(s.due))
}

// parseStamp reads the stamp of a payload; false means that b has none.
func parseStamp(b []byte) (s stamp, ok bool) {
	if len(b) < StampLen || binary.BigEndian.Uint32(b) != stampMagic {
		return stamp{}, false
	}
	return stamp{
		run:  binary.BigEndian.Uint32(b[4:]),
		flow: binary.BigEndian.Uint32(b[8:]),
		seq:  binary.BigEndian.Uint32(b[12:]),
		due:  int64(binary.BigEndian.Uint64(b[16:])),
	}, true
}
