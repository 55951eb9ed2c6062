package lab

import (
	"math/rand/v2"
	"net/netip"

	"github.com/ferryrelay/ferry/proto"
)

// AttackerReplyRange holds the replies to attackers only: a multiple
// of its mask that contains every source of Stranger and no player.
func AttackerReplyRange() netip.Prefix { return netip.MustParsePrefix("198.18.128.0/17") }

// RandomSource returns a forged source: one of 32,512 addresses, any port from 1024.
func RandomSource(rng *rand.Rand) netip.AddrPort {
	n := rng.Uint32N(128 * 254)
	addr := netip.AddrFrom4([4]byte{198, 18, byte(128 + n/254), byte(1 + n%254)})
	return netip.AddrPortFrom(addr, uint16(1024+rng.UintN(1<<16-1024)))
}

// Messages returns one message of each type that clients send, of the right
// size, with random contents.
func Messages(rng *rand.Rand) [][]byte {
	id := func() (id proto.AllocationID) { fill(rng, id[:]); return id }
	data := make([]byte, proto.MaxConnectionData)
	fill(rng, data)
	bind := proto.Bind{Nonce: uint16(rng.Uint32()), ConnectionData: data}
	fill(rng, bind.MAC[:])
	return [][]byte{
		bind.Append(nil),
		proto.Ping{ID: id(), Number: 1}.Append(nil),
		proto.ConnectRequest{ID: id(), ConnectionData: data}.Append(nil),
		proto.Disconnect{From: id(), To: id()}.Append(nil),
		proto.Relay{From: id(), To: id(), Payload: data[:64]}.Append(nil),
		proto.Close{ID: id()}.Append(nil),
	}
}

// Malformed returns a datagram as a flood of rubbish has it: random bytes, a
// random type behind a right header, a message that was cut or prolonged, or
// one with another version.
func Malformed(rng *rand.Rand) []byte {
	all := Messages(rng)
	m := all[rng.IntN(len(all))]
	switch rng.IntN(5) {
	case 0:
		junk := make([]byte, rng.IntN(400))
		fill(rng, junk)
		return junk
	case 1:
		m[3] = byte(rng.Uint32())
		return m
	case 2:
		return m[:rng.IntN(len(m))]
	case 3:
		return append(m, make([]byte, 1+rng.IntN(200))...)
	default:
		m[2] = byte(1 + rng.IntN(255))
		return m
	}
}

func fill(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}
