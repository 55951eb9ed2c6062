package netsim

import "math/rand/v2"

// dice is the chance of one direction. PCG is specified, so that a seed means
// the same with every version of Go.
type dice struct {
	fates *rand.PCG // a fixed number of values per datagram
	bits  *rand.PCG // which bits flip
}

func newDice(seed uint64, stream uint64) dice {
	return dice{fates: rand.NewPCG(seed, 2*stream), bits: rand.NewPCG(seed, 2*stream+1)}
}

// fate is all the chance in the way of one datagram.
type fate struct {
	loss, corrupt, duplicate, reorder uint64
	jitter, copyJitter, hold          uint64
}

func (d dice) throw() fate {
	next := d.fates.Uint64
	return fate{next(), next(), next(), next(), next(), next(), next()}
}

// hits reports whether a throw is within a percentage.
func hits(throw uint64, percent float64) bool {
	// 53 bits, all that a float64 holds: 100 % always hits and 0 % never does.
	return float64(throw>>11) < percent/100*(1<<53)
}

// within returns a value from 0 up to but not n, for n from 1 on. The bias of
// the remainder is below n/2^64.
func within(throw uint64, n int64) int64 { return int64(throw % uint64(n)) }

// flip changes an odd number of bits of b from a byte on, so that b is never
// what it was. It is false when there is no such byte.
func (d dice) flip(b []byte, from int) bool {
	if from >= len(b) {
		return false
	}
	b = b[from:]
	for range 1 + 2*within(d.bits.Uint64(), 4) {
		bit := within(d.bits.Uint64(), 8*int64(len(b)))
		b[bit/8] ^= 1 << (bit % 8)
	}
	return true
}
