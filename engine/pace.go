package engine

import "time"

// pacer decides whether a worker rests before it receives again. Between idle
// and saturation a datagram costs less than waking up for it, so a short rest
// lets several come together. It belongs to its worker.
//
// It does not rest when the queue is deep, and not after a datagram that came
// alone: an idle relay answers at once. So of a burst, such as that of a tick,
// the first datagram is not delayed and the others come together.
type pacer struct {
	delay int64 // nanoseconds; 0: never rest
	deep  int   // datagrams in a batch from which on the queue is deep
	last  int64 // when the last batch was done, in nanoseconds
}

// gatherAtLeast is how many datagrams a rest must be expected to gather, at the
// pace of the last batch. With fewer it costs as much as the wake-up it saves.
const gatherAtLeast = 2

// rest returns for how long to rest after a batch of n datagrams that was done
// at now, in nanoseconds.
func (p *pacer) rest(now int64, n int) time.Duration {
	gap := (now - p.last) / int64(n)
	p.last = now
	if n >= p.deep || gap*gatherAtLeast > p.delay {
		return 0
	}
	return time.Duration(p.delay)
}
