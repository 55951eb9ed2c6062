package table

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// DefaultMaxAllocations is how many allocations a table holds unless told
// otherwise: one million of them stay within 512 MiB of memory.
const DefaultMaxAllocations = 1_000_000

// Table knows every allocation, by the endpoint it is bound to and by its id.
//
// Methods in this file may be called by any goroutine at any time and take no
// lock. Those in writer.go belong to the one control goroutine.
type Table struct {
	secret     [4]uint64
	chunks     []atomic.Pointer[chunk]
	byEndpoint index
	byID       index

	w writer
}

// NewTable returns an empty table for at most max allocations; zero or less
// means [DefaultMaxAllocations]. Memory is taken as allocations come.
func NewTable(max int) *Table {
	if max <= 0 {
		max = DefaultMaxAllocations
	}
	t := &Table{chunks: make([]atomic.Pointer[chunk], (max+chunkSlots-1)/chunkSlots)}
	var seed [32]byte
	rand.Read(seed[:])
	for i := range t.secret {
		t.secret[i] = binary.LittleEndian.Uint64(seed[i*8:])
	}
	t.byEndpoint.init()
	t.byID.init()
	t.w.max = max
	return t
}

// FindByEndpoint stores the allocation that is bound to ep in e and reports whether
// there is one; if not, e is undefined. It writes to the caller's entry because a
// processor stalls on an entry that is copied right after it was written.
func (t *Table) FindByEndpoint(ep endpoint.Endpoint, e *Entry) bool {
	hash := t.hashEndpoint(ep)
	tag, shard := tagOf(hash), t.byEndpoint.shard(hash)
	for c := shard.cells.Load(); ; {
		for at := hash; ; at++ {
			line := c.line(at)
			for found := line.match(tag); found != 0; found &= found - 1 {
				slot, ok := line.slot(found, tag)
				if ok && t.identity(slot).snapshot(slot, e) && e.Endpoint == ep {
					return true
				}
			}
			if line.open() {
				break
			}
		}
		// A miss counts only on the cells that are current.
		current := shard.cells.Load()
		if current == c {
			return false
		}
		c = current
	}
}

// ByID returns the allocation with that id, bound or not.
func (t *Table) ByID(id proto.AllocationID) (e Entry, ok bool) {
	if !t.findID(&id, &e) {
		return Entry{}, false
	}
	return e, true
}

func (t *Table) findID(id *proto.AllocationID, e *Entry) bool {
	hash := t.hashID(*id)
	tag, shard := tagOf(hash), t.byID.shard(hash)
	for c := shard.cells.Load(); ; {
		for at := hash; ; at++ {
			line := c.line(at)
			for found := line.match(tag); found != 0; found &= found - 1 {
				slot, ok := line.slot(found, tag)
				if ok && t.identity(slot).snapshot(slot, e) && e.ID == *id {
					return true
				}
			}
			if line.open() {
				break
			}
		}
		current := shard.cells.Load()
		if current == c {
			return false
		}
		c = current
	}
}

// At returns the allocation that h names, unless it has ended.
func (t *Table) At(h Handle) (e Entry, ok bool) {
	if !t.findAt(h, &e) {
		return Entry{}, false
	}
	return e, true
}

func (t *Table) findAt(h Handle, e *Entry) bool {
	return h != 0 && t.identity(h.slot()).snapshot(h.slot(), e) && e.Handle == h
}

// FindPeer stores the allocation with id to in e and reports whether it and from
// are linked; if not, e is undefined.
func (t *Table) FindPeer(from *Entry, to *proto.AllocationID, e *Entry) bool {
	if from.Role == RoleJoiner {
		return t.findAt(from.Link, e) && e.ID == *to
	}
	return t.findID(to, e) && e.Link == from.Handle
}

func (t *Table) identity(slot uint32) *identity {
	return &t.chunks[slot/chunkSlots].Load().identities[slot%chunkSlots]
}

// Activity returns what workers note of the allocation h. It is that of whoever
// has the slot: see point 4 of the contract.
func (t *Table) Activity(h Handle) *Activity {
	slot := h.slot()
	return &t.chunks[slot/chunkSlots].Load().activities[slot%chunkSlots]
}

// LargeMessages returns what workers note of large messages to the owner of h, as
// Activity does.
func (t *Table) LargeMessages(h Handle) *LargeMessages {
	slot := h.slot()
	return &t.chunks[slot/chunkSlots].Load().large[slot%chunkSlots]
}

// hashEndpoint and hashID are seeded per table, so that nobody outside can
// choose endpoints that collide.
func (t *Table) hashEndpoint(ep endpoint.Endpoint) uint64 {
	return t.mix(fold(ep.Hi^t.secret[0], ep.Lo^t.secret[1]), ep.Tail^t.secret[2])
}

func (t *Table) hashID(id proto.AllocationID) uint64 {
	a, b := binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])
	return t.mix(a^t.secret[1], b^t.secret[2])
}

// mix folds a and b, and the result with itself: where only one of them
// varies, as in a row of ports, a single product would be as even as its
// factor happens to be.
func (t *Table) mix(a, b uint64) uint64 {
	h := fold(a, b)
	return fold(h, h^t.secret[3])
}

// fold mixes two words: the halves of their 128-bit product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
