package demo

import "encoding/binary"

// kind is the sender and the purpose of a datagram.
type kind byte

const (
	fromPlayer kind = 'p'
	fromHost   kind = 'h'
	echo       kind = 'e' // the host returns one of the player's
)

// size is what a game sends: a header and some state.
const size = 64

// datagram is what the demo sends: kind, number, time, and filling.
//
//	0     kind
//	1     filling
//	4     number, from 0, little-endian
//	8     time of sending in nanoseconds of the demo's clock
//	16    filling, 48 bytes, which follows from the number: so one that was mixed up with another is noticed
type datagram struct {
	kind   kind
	number uint32
	sent   int64
}

func (d datagram) put(b *[size]byte) {
	for i := range b {
		b[i] = byte(d.number) ^ byte(i)
	}
	b[0] = byte(d.kind)
	binary.LittleEndian.PutUint32(b[4:], d.number)
	binary.LittleEndian.PutUint64(b[8:], uint64(d.sent))
}

// parse reports false for anything that put did not write.
func parse(b []byte) (datagram, bool) {
	if len(b) != size {
		return datagram{}, false
	}
	d := datagram{kind(b[0]), binary.LittleEndian.Uint32(b[4:]), int64(binary.LittleEndian.Uint64(b[8:]))}
	var again [size]byte
	d.put(&again)
	return d, [size]byte(b) == again
}
