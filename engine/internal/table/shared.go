package table

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Memory is where a table keeps what a program in the kernel uses as well.
type Memory struct {
	Slab func(i int) *Slab
	// IDs are the lines of an index from ids to slots for the program, a power of two: with a line
	// for each four allocations half of the cells are used. Nil: there is none.
	IDs []Line
	// IDSecret is its key of random numbers, which the program knows.
	IDSecret [2]uint64
}

// Line is zero at first.
type Line = line

// sharedProbes lines are looked at, since a loop in the kernel is bounded: an id without a cell
// there is left to workers.
const sharedProbes = 4

// sharedIDs does not grow. Its rules for readers are those of index, but for its hash, which needs
// no product of 128 bits. Control alone writes.
type sharedIDs struct {
	cells  cells
	secret [2]uint64
}

func (s *sharedIDs) hash(id proto.AllocationID) uint64 {
	h := endpoint.Mix64(binary.LittleEndian.Uint64(id[:8]) ^ s.secret[0])
	h = endpoint.Mix64(h ^ h>>32 ^ binary.LittleEndian.Uint64(id[8:]) ^ s.secret[1])
	return h ^ h>>32
}

func (s *sharedIDs) insert(id proto.AllocationID, slot uint32) {
	s.cells.place(s.hash(id), slot, sharedProbes)
}

func (s *sharedIDs) remove(id proto.AllocationID, slot uint32) {
	s.cells.remove(s.hash(id), slot, sharedProbes)
}
