package engine

import "time"

// pacer decides whether a worker rests before it receives again. Between idle
// and saturation a datagram costs less than waking up for it, so a short rest
// lets several come together. It belongs to its worker.
//
// It does not rest when the queue is deep, and not when so few datagrams come
// that a rest would gather none: an idle relay answers at once.
type pacer struct {
	delay int64 // nanoseconds; 0: never rest
	deep  int   // datagrams in a batch from which on the queue is deep
	last  int64 // when the last batch was done, in nanoseconds
	gap   int64 // running mean of the time between datagrams, in nanoseconds
}

// gapShift makes the mean follow the last 8 batches or so.
const gapShift = 3

// gatherAtLeast is how many datagrams a rest must be expected to gather. With
// fewer the rest costs as much as the wake-up that it saves.
const gatherAtLeast = 2

// rest returns for how long to rest after a batch of n datagrams that was done
// at now, in nanoseconds.
func (p *pacer) rest(now int64, n int) time.Duration {
	if p.delay == 0 {
		return 0
	}
	// A pause is worth no more than one that is clearly idle.
	gap := min((now-p.last)/int64(n), 4*p.delay)
	p.last = now
	p.gap += (gap - p.gap) >> gapShift
	if n >= p.deep || p.gap*gatherAtLeast > p.delay {
		return 0
	}
	return time.Duration(p.delay)
}
