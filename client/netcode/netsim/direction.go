package netsim

import (
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// Counts is what became of the datagrams of one direction.
type Counts struct {
	Passed     uint64 // came out at the other side, copies counted
	Lost       uint64 // by Loss
	LostEvery  uint64 // by LossEvery
	TooLarge   uint64 // above MTU
	QueueFull  uint64 // delayed, but Config.Queue others were already
	Corrupted  uint64
	Duplicated uint64
	Reordered  uint64
	Waiting    int // delayed at this moment, events counted too
}

// direction is one of the two ways through a Sim.
type direction struct {
	params Params
	dice   dice
	queue  queue
	limit  int
	seen   int   // datagrams since LossEvery was set
	last   int64 // the latest due of all so far that were not held back
	latest int64 // the latest due of all so far
	floor  int64 // nothing may become due before the newest event
	counts Counts
}

func newDirection(p Params, seed, stream uint64, limit int) direction {
	return direction{params: p, dice: newDice(seed, stream), limit: limit}
}

func (d *direction) set(p Params) {
	d.params, d.seen = p, 0
}

// verdict is what a direction has decided about a datagram.
type verdict struct {
	lost, corrupt, duplicate bool
	due, copyDue             int64
}

// judge decides, with the same number of throws each time.
func (d *direction) judge(now int64, size int) verdict {
	f, p := d.dice.throw(), &d.params
	every := d.strikes()
	switch {
	case p.MTU > 0 && size > p.MTU:
		d.counts.TooLarge++
		return verdict{lost: true}
	case every:
		d.counts.LostEvery++
		return verdict{lost: true}
	case hits(f.loss, p.Loss):
		d.counts.Lost++
		return verdict{lost: true}
	}
	v := verdict{corrupt: hits(f.corrupt, p.Corrupt), duplicate: hits(f.duplicate, p.Duplicate)}
	v.due = d.due(now, f.jitter)
	d.last = max(d.last, v.due)
	if hits(f.reorder, p.Reorder) {
		by := p.ReorderBy
		if by == 0 {
			by = defaultReorderBy
		}
		v.due += 1 + within(f.hold, int64(by))
		d.counts.Reordered++
	}
	d.latest = max(d.latest, v.due)
	if v.duplicate {
		v.copyDue = d.due(now, f.copyJitter)
		d.last = max(d.last, v.copyDue)
		d.latest = max(d.latest, v.copyDue)
	}
	return v
}

// strikes reports whether LossEvery takes this datagram: the first since the
// parameters were set, and each n-th after it.
func (d *direction) strikes() bool {
	n := d.params.LossEvery
	if n <= 0 {
		return false
	}
	hit := d.seen%n == 0
	d.seen++
	return hit
}

// due returns when a datagram with this jitter arrives.
func (d *direction) due(now int64, jitter uint64) int64 {
	p := &d.params
	delay := int64(p.Delay)
	if p.Jitter > 0 {
		delay += within(jitter, 2*int64(p.Jitter)) - int64(p.Jitter)
	}
	at := max(now+max(delay, 0), d.floor)
	if p.Ordered {
		at = max(at, d.last)
	}
	return at
}

// hold keeps a datagram until it is due. It is false when there is no room.
func (d *direction) hold(peer address.Addr, b []byte, due int64) bool {
	if len(d.queue.heap) >= d.limit {
		d.counts.QueueFull++
		return false
	}
	it := d.queue.take()
	it.event = link.Event{Kind: link.Datagram, Addr: peer, N: copy(it.buf[:], b)}
	d.queue.push(it, due)
	return true
}

// follow keeps an event until all that came before it has passed; what comes
// after it will pass later. It is false when there is nothing to wait for, or
// no room to do so.
func (d *direction) follow(e link.Event) bool {
	if len(d.queue.heap) == 0 || len(d.queue.heap) >= d.limit {
		return false
	}
	it := d.queue.take()
	it.event = e
	it.event.N = 0
	d.floor = d.latest
	d.queue.push(it, d.latest)
	return true
}

func (d *direction) snapshot() Counts {
	c := d.counts
	c.Waiting = len(d.queue.heap)
	return c
}

func (d *direction) corrupt(b []byte) {
	if d.dice.flip(b, d.params.CorruptFrom) {
		d.counts.Corrupted++
	}
}

// forget drops what of a peer waits. Its news goes too.
func (d *direction) forget(peer address.Addr) {
	kept := d.queue.heap[:0]
	for _, it := range d.queue.heap {
		if it.event.Addr == peer {
			d.queue.give(it)
			continue
		}
		kept = append(kept, it)
	}
	clear(d.queue.heap[len(kept):])
	d.queue.heap = kept
	d.queue.order()
}
