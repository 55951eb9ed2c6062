package table

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func sharedTable(max int) *Table {
	lines := minLines
	for lines*lineCells < 2*max {
		lines *= 2
	}
	return NewTableIn(Memory{
		Slab: func(int) *Slab { return new(Slab) }, IDs: make([]Line, lines), IDSecret: [2]uint64{1<<63 + 7, 1<<62 + 5},
	}, max)
}

// findShared does what a program in the kernel does to find an allocation.
func findShared(t *Table, id proto.AllocationID) (slot uint32, ok bool) {
	s := t.w.ids
	hash := s.hash(id)
	for n := range uint64(sharedProbes) {
		line := s.cells.line(hash + n)
		for found := line.match(tagOf(hash)); found != 0; found &= found - 1 {
			if slot, ok := line.slot(found, tagOf(hash)); ok {
				var e Entry
				if t.identity(slot).snapshot(slot, &e) && e.ID == id {
					return slot, true
				}
			}
		}
		if line.hasEmpty() {
			break
		}
	}
	return 0, false
}

// TestSharedIDs: of a full table, with ids that come and go, almost every id has a cell.
func TestSharedIDs(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	const max = 50_000
	table := sharedTable(max)
	var live []Handle
	for i := range max {
		live = append(live, reserve(t, table, Spec{ID: testID(i), Role: RoleHost}))
	}
	for i := range 4 * max {
		table.End(live[i%max])
		table.Recycle(live[i%max])
		live[i%max] = reserve(t, table, Spec{ID: testID(max + i), Role: RoleHost})
	}
	missing := 0
	for _, h := range live {
		e, _ := table.At(h)
		if slot, ok := findShared(table, e.ID); !ok {
			missing++
		} else if slot != h.slot() {
			t.Fatalf("%v leads to %d, want %d", e.ID, slot, h.slot())
		}
	}
	if missing > max/10_000 {
		t.Errorf("%d of %d ids have no cell", missing, max)
	}
	for _, h := range live {
		e, _ := table.End(h)
		if _, ok := findShared(table, e.ID); ok {
			t.Fatalf("%v is still there", e.ID)
		}
	}
	for i := range table.w.ids.cells.lines {
		for j := range table.w.ids.cells.lines[i] {
			if word := table.w.ids.cells.lines[i][j].Load(); word != 0 && word != tombstone {
				t.Fatalf("a cell leads to slot %d of an empty table", uint32(word)-1)
			}
		}
	}
}

// TestSharedIDsFull: an id for which there is no room near its place is found by workers,
// and its end frees no other allocation's cell.
func TestSharedIDsFull(t *testing.T) {
	t.Parallel()
	table := NewTableIn(Memory{Slab: func(int) *Slab { return new(Slab) }, IDs: make([]Line, 1)}, 100)
	var live []Handle
	for i := range 20 {
		live = append(live, reserve(t, table, Spec{ID: testID(i), Role: RoleHost}))
	}
	shared := func() (n int) {
		for i := range 20 {
			if slot, ok := findShared(table, testID(i)); ok && slot == live[i].slot() {
				n++
			}
		}
		return n
	}
	if n := shared(); n != lineCells {
		t.Errorf("%d of 20 ids in one line, want %d", n, lineCells)
	}
	for i, h := range live {
		at(t, table, testID(i))
		if _, ok := findShared(table, testID(i)); !ok {
			table.End(h)
		}
	}
	if n := shared(); n != lineCells {
		t.Errorf("%d ids are left, want %d", n, lineCells)
	}
}
