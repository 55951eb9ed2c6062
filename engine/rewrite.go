package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
)

// A state file that could not be written, as on a full disk, is written anew from the table.
const (
	rewriteEvery = 5000 // ms
	// rewritePerCall records take less than a millisecond.
	rewritePerCall = 1024
)

// rewrite belongs to control, except for complete.
type rewrite struct {
	complete   atomic.Bool // there is a state file with all changes
	onComplete func()      // nil: not called

	active bool
	at     int64  // ms; when the next attempt begins
	record int    // records of recovery before this one are in the new file
	slot   uint32 // and allocations in slots of the table before this one
}

// Without a state file f is nil.
func (c *control) setStateFile(f *statefile.File) {
	c.stateFile = f
	c.rewrite.complete.Store(f != nil && !f.Incomplete())
}

func (c *control) isUnwritten(h table.Handle) bool {
	return c.rewrite.active && h.Slot() >= c.rewrite.slot
}

// 0: the record has no place in the new state file yet.
func (c *control) awaitedPlace(i int) statefile.Place {
	if c.rewrite.active && i >= c.rewrite.record {
		return 0
	}
	return c.recovery.records[i].Place
}

func (c *control) rewriteSome(now int64) {
	f, r := c.stateFile, &c.rewrite
	if !f.Incomplete() {
		return
	}
	if r.complete.Swap(false) || r.active && !f.Rewriting() {
		r.active, r.at = false, now+rewriteEvery
	}
	if !r.active {
		if now < r.at {
			return
		}
		r.at = now + rewriteEvery
		allocations, _, _ := c.shared.table.Counts()
		if f.Rewrite(allocations+c.recovery.missing+len(c.migrations.running)) != nil {
			return
		}
		for _, v := range c.migrations.running {
			v.Place = 0
		}
		r.active, r.record, r.slot = true, 0, 0
	}
	for range rewritePerCall {
		if !c.rewriteNext() {
			if f.Complete() {
				r.active = false
				r.complete.Store(true)
				if r.onComplete != nil {
					r.onComplete()
				}
			}
			return
		}
	}
	c.backlog = true
}

// rewriteNext reports false if the new state file has all records.
func (c *control) rewriteNext() bool {
	r := &c.rewrite
	switch {
	case r.record < len(c.recovery.records):
		i := r.record
		r.record++
		if !c.recovery.returned[i] {
			lost := &c.recovery.records[i]
			lost.Place = c.stateFile.Add(&lost.Record)
		}
	case r.slot < c.shared.table.Slots():
		h := c.shared.table.HandleAt(r.slot)
		r.slot++
		if _, ok := c.shared.table.At(h); ok {
			c.addRecord(h)
		}
	default:
		c.addMigrationRecords()
		return false
	}
	return true
}
