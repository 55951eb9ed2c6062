package table

import (
	"math/bits"
	"sync/atomic"
)

const (
	shardBits  = 6 // 64 shards: one grows at a time, so a growth copies 1/64 of the index
	shardCount = 1 << shardBits

	lineCells = 8 // one cache line
	minLines  = 8

	// tombstone marks a freed cell in a line that others had to be placed beyond. Its tag is zero,
	// which no entry has.
	tombstone = 1<<32 - 1
)

// index is a sharded open-addressing hash index from a 64-bit hash to slots. It is a hint: a
// reader compares the key inside the record. Control alone writes; readers take no lock.
type index struct {
	shards [shardCount]shard
}

// Any goroutine reads the pointers of a shard, which change only when it is rebuilt.
type shard struct {
	cells  atomic.Pointer[cells]
	counts *cellCounts
}

// cellCounts are control's. It writes them with each entry, so they lie apart from the shards,
// which workers read for each datagram.
type cellCounts struct {
	used int // cells that are not empty, tombstones included
	live int // cells that lead to a slot
}

// cells is one version of a shard: power-of-two many lines. An entry is in the line that its hash
// names, or, if that was full, in one of the next. A reader goes past a line only if it has no
// empty cell; so a line that was full once never gets an empty cell again, and beyond one that has
// an empty cell nothing lies, and removal leaves no tombstone.
type cells struct {
	lines []line
}

// A cell is the tag of a hash above slot+1, zero when it is empty, or a tombstone.
type line [lineCells]atomic.Uint64

func newCells(lines int) *cells { return &cells{lines: make([]line, lines)} }

// The n-th line after that of a hash is hash+n.
func (c *cells) line(at uint64) *line { return &c.lines[at&uint64(len(c.lines)-1)] }

// tagOf is never zero.
func tagOf(hash uint64) uint32 { return uint32(hash>>32) | 1 }

func makeCell(hash uint64, slot uint32) uint64 { return uint64(tagOf(hash))<<32 | uint64(slot+1) }

// match returns a bit for each cell with the tag, without a branch that depends on their content:
// a mispredicted branch would wait for memory.
func (l *line) match(tag uint32) (found uint) {
	for i := lineCells - 1; i >= 0; i-- {
		var hit uint
		if uint32(l[i].Load()>>32) == tag {
			hit = 1
		}
		found = found<<1 | hit
	}
	return found
}

// slot reports false if the cell has changed since it carried the tag.
func (l *line) slot(found uint, tag uint32) (uint32, bool) {
	word := l[bits.TrailingZeros(found)%lineCells].Load()
	return uint32(word) - 1, uint32(word>>32) == tag
}

func (l *line) hasEmpty() bool {
	for i := range l {
		if l[i].Load() == 0 {
			return true
		}
	}
	return false
}

func (x *index) init() {
	counts := new([shardCount]cellCounts)
	for i := range x.shards {
		x.shards[i].counts = &counts[i]
		x.shards[i].cells.Store(newCells(minLines))
	}
}

func (x *index) prepare(entries int) {
	for i := range x.shards {
		s := &x.shards[i]
		fresh := newCells(s.linesFor(entries/shardCount + 1))
		for j := range fresh.lines {
			fresh.lines[j][0].Store(0)
		}
		s.cells.Store(fresh)
	}
}

// The bits of the shard are neither those of the line (low bits) nor, alone, those of the tag.
func (x *index) shard(hash uint64) *shard {
	return &x.shards[bits.RotateLeft64(hash, shardBits)%shardCount]
}

// insert calls rehash for each slot that is in the shard when that grows.
func (s *shard) insert(hash uint64, slot uint32, rehash func(slot uint32) uint64) {
	c := s.cells.Load()
	// A quarter of the cells stays empty, so that probes end and stay short.
	if (s.counts.used+1)*4 > len(c.lines)*lineCells*3 {
		c = s.rebuild(c, rehash)
	}
	if c.place(hash, slot, len(c.lines)) {
		s.counts.used++
	}
	s.counts.live++
}

// place reports whether the cell was empty rather than a tombstone.
func (c *cells) place(hash uint64, slot uint32, probes int) (fresh bool) {
	for n := range probes {
		line := c.line(hash + uint64(n))
		for i := range line {
			word := line[i].Load()
			if word == 0 || word == tombstone {
				line[i].Store(makeCell(hash, slot))
				return word == 0
			}
		}
	}
	return false
}

// linesFor returns how many lines so many entries half fill, and no fewer than there are.
func (s *shard) linesFor(entries int) int {
	size := len(s.cells.Load().lines)
	for entries*2 > size*lineCells {
		size *= 2
	}
	return size
}

// rebuild swaps in cells without tombstones, twice as many if more than half of the present ones
// are live. Readers of the old cells look again.
func (s *shard) rebuild(old *cells, rehash func(slot uint32) uint64) *cells {
	size := s.linesFor(s.counts.live + 1)
	fresh := newCells(size)
	for i := range old.lines {
		for j := range old.lines[i] {
			word := old.lines[i][j].Load()
			if word != 0 && word != tombstone {
				slot := uint32(word) - 1
				fresh.place(rehash(slot), slot, size)
			}
		}
	}
	s.counts.used = s.counts.live
	s.cells.Store(fresh)
	return fresh
}

func (s *shard) remove(hash uint64, slot uint32) bool {
	c := s.cells.Load()
	freed, ok := c.remove(hash, slot, len(c.lines))
	if ok {
		s.counts.live--
	}
	if freed {
		s.counts.used--
	}
	return ok
}

// remove reports whether there was a cell, and whether it is empty now rather than a tombstone.
// While an allocation moves, its slot has two cells, so the tag is compared as well; if even the
// tags are equal, either cell may go.
func (c *cells) remove(hash uint64, slot uint32, probes int) (freed, ok bool) {
	cell := makeCell(hash, slot)
	for n := range probes {
		line := c.line(hash + uint64(n))
		last := line.hasEmpty()
		for i := range line {
			if line[i].Load() != cell {
				continue
			}
			if last {
				line[i].Store(0)
			} else {
				line[i].Store(tombstone)
			}
			return last, true
		}
		if last {
			break
		}
	}
	return false, false
}
