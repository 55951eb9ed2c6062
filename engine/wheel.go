package engine

import "github.com/ferryrelay/ferry/internal/table"

// wheelBuckets is the number of ticks that the timer wheel spans, 256 s. What
// is due later is looked at once per turn.
const wheelBuckets = 1024

// wheel finds what is overdue without looking at everything: each allocation
// is in the bucket of the tick at which it would expire if nothing more
// happened. The lists run through the accounts, so the wheel has no memory of
// its own per allocation. It belongs to the control goroutine.
type wheel struct {
	table *table.Table
	heads [wheelBuckets]uint32 // slot+1
	sizes [wheelBuckets]int
	now   table.Tick // the last tick that was begun
}

// put files h under the tick at, or as late as the wheel reaches. What is
// overdue goes under the next tick.
func (w *wheel) put(h table.Handle, at table.Tick) {
	if at <= w.now {
		at = w.now + 1
	}
	at = min(at, w.now+wheelBuckets-1)
	bucket := uint32(at % wheelBuckets)
	a := w.table.Account(h)
	a.Bucket, a.Prev, a.Next = bucket+1, 0, w.heads[bucket]
	if a.Next != 0 {
		w.table.AccountAt(a.Next - 1).Prev = h.Slot() + 1
	}
	w.heads[bucket] = h.Slot() + 1
	w.sizes[bucket]++
}

// first returns the first slot of a bucket, plus one; 0 if it is empty. The
// others follow by Account.Next.
func (w *wheel) first(at table.Tick) uint32 { return w.heads[at%wheelBuckets] }

// remove takes h out, if it is in.
func (w *wheel) remove(h table.Handle) {
	a := w.table.Account(h)
	if a.Bucket == 0 {
		return
	}
	if a.Next != 0 {
		w.table.AccountAt(a.Next - 1).Prev = a.Prev
	}
	if a.Prev != 0 {
		w.table.AccountAt(a.Prev - 1).Next = a.Next
	} else {
		w.heads[a.Bucket-1] = a.Next
	}
	w.sizes[a.Bucket-1]--
	a.Bucket, a.Next, a.Prev = 0, 0, 0
}

// due takes out and returns one allocation that is filed under a tick up to
// now, or false when there is none.
func (w *wheel) due(now table.Tick) (table.Handle, bool) {
	for {
		if head := w.heads[w.now%wheelBuckets]; head != 0 {
			h := w.table.HandleAt(head - 1)
			w.remove(h)
			return h, true
		}
		if w.now >= now {
			return 0, false
		}
		w.now++
	}
}
