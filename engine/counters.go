package engine

import (
	"math/bits"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/sock"
)

// batchBuckets is the number of buckets of batch sizes: 1, 2, 3-4, 5-8, up to
// 129-256.
const batchBuckets = 9

// counters count what one goroutine did. It counts in plain words and
// publishes now and then: an atomic store costs as much as a look-up.
type counters struct {
	received, receivedBytes  uint64
	sentDatagrams, sentBytes uint64
	sendFailed, sendDown     uint64
	outcomes                 [NumOutcomes]uint64
	batches                  [batchBuckets]uint64
	touched                  uint64 // outcomes that changed since they were published, one bit each
	pub                      published
}

// published is what others read.
type published struct {
	received, receivedBytes  atomic.Uint64
	sentDatagrams, sentBytes atomic.Uint64
	sendFailed, sendDown     atomic.Uint64
	outcomes                 [NumOutcomes]atomic.Uint64
	batches                  [batchBuckets]atomic.Uint64
}

func (c *counters) add(o Outcome) {
	c.outcomes[o]++
	c.touched |= 1 << o
}

func (c *counters) sent(r sock.SendResult) {
	c.sentDatagrams += uint64(r.Sent)
	c.sentBytes += uint64(r.Bytes)
	c.sendFailed += uint64(r.Failed)
	c.sendDown += uint64(r.Down)
}

// batch counts a batch of n datagrams, at least one.
func (c *counters) batch(n int) { c.batches[bits.Len(uint(n-1))]++ }

// publish makes the counts visible to others.
func (c *counters) publish() {
	for b := range c.batches {
		c.pub.batches[b].Store(c.batches[b])
	}
	c.pub.received.Store(c.received)
	c.pub.receivedBytes.Store(c.receivedBytes)
	c.pub.sentDatagrams.Store(c.sentDatagrams)
	c.pub.sentBytes.Store(c.sentBytes)
	c.pub.sendFailed.Store(c.sendFailed)
	c.pub.sendDown.Store(c.sendDown)
	for t := c.touched; t != 0; t &= t - 1 {
		o := bits.TrailingZeros64(t)
		c.pub.outcomes[o].Store(c.outcomes[o])
	}
	c.touched = 0
}
