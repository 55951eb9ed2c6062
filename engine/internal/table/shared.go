package table

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Memory is where a table keeps what a program in the kernel uses as well.
type Memory struct {
	// Slab returns the slabs of the records, see [NewTableIn].
	Slab func(i int) *Slab
	// IDs are the lines of an index from ids to slots for the program, which needs no
	// endpoints: it compares the one in the record. Their number is a power of two; with a
	// line for each four allocations half of the cells are used. Nil: there is none.
	IDs []Line
	// IDSecret is the key of that index, of random numbers. The program knows it.
	IDSecret [2]uint64
}

// Line is a line of an index. It is zero at first.
type Line = line

// sharedProbes is how many lines a program looks at: a loop in the kernel is bounded, and
// an id for which these have no cell is left to workers.
const sharedProbes = 4

// sharedIDs is an index from ids to slots that does not grow. Its rules for readers are
// those of index, but for its hash, which needs no product of 128 bits. Control alone
// writes.
type sharedIDs struct {
	cells  cells
	secret [2]uint64
}

func (s *sharedIDs) hash(id proto.AllocationID) uint64 {
	h := endpoint.Mix64(binary.LittleEndian.Uint64(id[:8]) ^ s.secret[0])
	h = endpoint.Mix64(h ^ h>>32 ^ binary.LittleEndian.Uint64(id[8:]) ^ s.secret[1])
	return h ^ h>>32
}

// insert adds the slot of an id, if there is room near its place.
func (s *sharedIDs) insert(id proto.AllocationID, slot uint32) {
	s.cells.place(s.hash(id), slot, sharedProbes)
}

// remove removes the slot of an id, if it was added.
func (s *sharedIDs) remove(id proto.AllocationID, slot uint32) {
	s.cells.remove(s.hash(id), slot, sharedProbes)
}
