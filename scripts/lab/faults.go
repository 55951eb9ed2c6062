package lab

import (
	"math/rand/v2"
	"time"
)

// Faults describes the faults of a network in one direction. The zero
// value is a perfect network.
type Faults struct {
	Loss      float64       // share of datagrams that vanish, 0 to 1
	Duplicate float64       // share that arrives twice, 0 to 1
	Reorder   float64       // share that is held back by ReorderBy, 0 to 1
	ReorderBy time.Duration // how long; 0: 10 ms
	Delay     time.Duration // of every datagram
	Jitter    time.Duration // added to Delay, uniform from 0 to this
}

const defaultReorderBy = 10 * time.Millisecond

// dice draws the fate of one direction's datagrams in their order. One
// goroutine owns it.
type dice struct {
	faults Faults
	rng    *rand.Rand
}

// newDice returns the dice of a direction. The fate of its n-th datagram is a
// function of seed, session, direction and n alone.
func newDice(f Faults, seed uint64, session uint32, up bool) dice {
	stream := uint64(session) << 1
	if up {
		stream |= 1
	}
	if f.ReorderBy == 0 {
		f.ReorderBy = defaultReorderBy
	}
	return dice{faults: f, rng: rand.New(rand.NewPCG(seed, stream))}
}

// throw returns after which delays copies of a datagram arrive: none, one or
// two. Each call draws the same number of random values.
func (d dice) throw() (delays [2]time.Duration, copies int) {
	lost := d.rng.Float64() < d.faults.Loss
	twice := d.rng.Float64() < d.faults.Duplicate
	held := d.rng.Float64() < d.faults.Reorder
	jitter := time.Duration(d.rng.Float64() * float64(d.faults.Jitter))
	second := time.Duration(d.rng.Float64() * float64(d.faults.Jitter))
	if lost {
		return delays, 0
	}
	delays[0] = d.faults.Delay + jitter
	if held {
		delays[0] += d.faults.ReorderBy
	}
	copies = 1
	if twice {
		delays[1], copies = d.faults.Delay+second, 2
	}
	return delays, copies
}
