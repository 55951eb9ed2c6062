package demo

import (
	"math/big"
	"sync/atomic"
)

// tally counts one direction between a player and its host. One goroutine
// receives; any goroutine may read.
type tally struct {
	sent, received, duplicates, strange atomic.Uint64
}

func (t *tally) settled() bool { return t.received.Load() == t.sent.Load() }

// count enters one arrival: new, again, or a number that was never sent, which is limit or more. The bits of
// seen are the numbers that have arrived.
func (t *tally) count(seen *big.Int, number, limit uint32) (fresh bool) {
	switch {
	case number >= limit:
		t.strange.Add(1)
	case seen.Bit(int(number)) == 0:
		seen.SetBit(seen, int(number), 1)
		t.received.Add(1)
		return true
	default:
		t.duplicates.Add(1)
	}
	return false
}

func (t *tally) direction() Direction {
	d := Direction{Sent: t.sent.Load(), Received: t.received.Load(), Duplicates: t.duplicates.Load(), Strange: t.strange.Load()}
	d.Lost = d.Sent - d.Received
	return d
}
