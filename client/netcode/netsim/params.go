package netsim

import (
	"errors"
	"fmt"
	"time"
)

// ErrParams is wrapped by every refusal of parameters or of a Config.
var ErrParams = errors.New("netsim: parameters are not usable")

// maxDelay bounds each duration: beyond it there is no network.
const maxDelay = time.Minute

// defaultReorderBy is longer than a tick at 60 per second and shorter than at
// 20, so that a datagram held back is overtaken by one or a few.
const defaultReorderBy = 40 * time.Millisecond

// Params say what happens to the datagrams of one direction, in this order:
// MTU, loss, corruption, duplication, delay. The zero value lets everything
// pass untouched. Chances are percentages from 0 to 100.
type Params struct {
	// Delay is how long each datagram takes, at most a minute.
	Delay time.Duration
	// Jitter is added to it, uniform from -Jitter up to but not Jitter; the sum
	// is not below 0. Datagrams overtake each other when it is larger than the
	// time between them.
	Jitter time.Duration
	// Ordered keeps jitter from reordering: a datagram waits for the one before
	// it, as in the queue of a router.
	Ordered bool
	// Loss is the chance of a datagram to be lost.
	Loss float64
	// LossEvery loses the first datagram and then every n-th. 0 means none.
	LossEvery int
	// Duplicate is the chance to arrive twice. The copy has a jitter of its own.
	Duplicate float64
	// Reorder is the chance to be held back for up to ReorderBy more, while
	// later datagrams pass.
	Reorder float64
	// ReorderBy bounds that time. 0 means 40 ms, the limit is a minute.
	ReorderBy time.Duration
	// Corrupt is the chance to have 1, 3, 5 or 7 bits flipped, at least one of
	// them for good.
	Corrupt float64
	// CorruptFrom is the first byte that may be touched.
	CorruptFrom int
	// MTU is the largest datagram in bytes that passes. 0 means all do.
	MTU int
}

// Check reports what is wrong with the parameters. Errors wrap ErrParams.
func (p Params) Check() error {
	for _, f := range fields {
		switch v := f.value(&p).(type) {
		case *time.Duration:
			if *v < 0 || *v > maxDelay {
				return fmt.Errorf("%w: %s is %v, not within 0 and %v", ErrParams, f.name, *v, maxDelay)
			}
		case *float64:
			if !(*v >= 0 && *v <= 100) {
				return fmt.Errorf("%w: %s is %v, not a percentage", ErrParams, f.name, *v)
			}
		case *int:
			if *v < 0 {
				return fmt.Errorf("%w: %s is %d, below 0", ErrParams, f.name, *v)
			}
		}
	}
	return nil
}

// Plus returns the parameters of two networks in a row: delays, jitters and
// chances add up to at most 100, and of the rest the sharper one counts.
func (p Params) Plus(q Params) Params {
	p.Delay += q.Delay
	p.Jitter += q.Jitter
	p.Ordered = p.Ordered || q.Ordered
	p.Loss = min(p.Loss+q.Loss, 100)
	p.Duplicate = min(p.Duplicate+q.Duplicate, 100)
	p.Reorder = min(p.Reorder+q.Reorder, 100)
	p.ReorderBy = max(p.ReorderBy, q.ReorderBy)
	p.Corrupt = min(p.Corrupt+q.Corrupt, 100)
	p.CorruptFrom = max(p.CorruptFrom, q.CorruptFrom)
	p.LossEvery = sharper(p.LossEvery, q.LossEvery)
	p.MTU = sharper(p.MTU, q.MTU)
	return p
}

// sharper returns the smaller one of two values of which 0 means none.
func sharper(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
