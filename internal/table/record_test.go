package table

import (
	"reflect"
	"testing"
)

// cacheLine is the unit in which processors take memory away from each other.
const cacheLine = 64

// accountSize is 40 bytes for match, player and tenant, 36 for five ticks, the
// place in the state file and the three words of the wheel, and 12 for counts
// and marks. A held CLOSE or DISCONNECT, a link that nobody uses yet, and the
// state file made it grow from 72, on memory that no worker touches.
const accountSize = 88

// largeSize is that of a count and a mark, which no datagram but a large one needs.
const largeSize = 8

// TestRecordLayout is where the sizes in doc.go are proved.
func TestRecordLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ  reflect.Type
		size uintptr
	}{
		{reflect.TypeFor[identity](), cacheLine},
		{reflect.TypeFor[Activity](), cacheLine},
		{reflect.TypeFor[LargeMessages](), largeSize},
		{reflect.TypeFor[Account](), accountSize},
		{reflect.TypeFor[line](), cacheLine},
		{reflect.TypeFor[shard](), cacheLine},
		{reflect.TypeFor[chunk](), chunkSlots * (2*cacheLine + largeSize + accountSize)},
	} {
		if got := c.typ.Size(); got != c.size {
			t.Errorf("%v has %d bytes, want %d", c.typ, got, c.size)
		}
	}
}

// TestContract3StampsHaveLinesOfTheirOwn: what workers write shares no cache
// line with what they read for each datagram, nor with another allocation's, but
// for the counts of large messages, which have lines for themselves.
func TestContract3StampsHaveLinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[chunk]()
	for i := range typ.NumField() - 1 {
		f := typ.Field(i)
		whole := f.Type.Elem().Size() == cacheLine || f.Type.Elem() == reflect.TypeFor[LargeMessages]() && f.Type.Size()%cacheLine == 0
		if f.Offset%cacheLine != 0 || !whole {
			t.Errorf("%s begins at %d, %d bytes each, want whole lines", f.Name, f.Offset, f.Type.Elem().Size())
		}
	}
	for range 4 {
		if at := reflect.ValueOf(new(chunk)).Pointer(); at%cacheLine != 0 {
			t.Errorf("a chunk lies at %#x, not at the beginning of a line", at)
		}
	}
	if at := reflect.ValueOf(newCells(minLines).lines).Pointer(); at%cacheLine != 0 {
		t.Errorf("cells lie at %#x, not at the beginning of a line", at)
	}
}

// TestSlabsHoldNoPointers: the collector skips memory without pointers, so a
// million allocations cost it nothing.
func TestSlabsHoldNoPointers(t *testing.T) {
	t.Parallel()
	for _, typ := range []reflect.Type{reflect.TypeFor[chunk](), reflect.TypeFor[line]()} {
		if path := findPointer(typ); path != "" {
			t.Errorf("%v holds a pointer at %v%s", typ, typ, path)
		}
	}
	// The walk itself must be able to fail.
	if path := findPointer(reflect.TypeFor[[2]struct{ M map[int]int }]()); path != "[].M (map)" {
		t.Errorf("the pointer of a map was found at %q", path)
	}
}

// findPointer returns where typ holds something that the collector would
// follow, or "" if it holds nothing of the kind.
func findPointer(typ reflect.Type) string {
	switch k := typ.Kind(); {
	case k >= reflect.Bool && k <= reflect.Complex128 && k != reflect.Uintptr:
		return ""
	case k == reflect.Array:
		if path := findPointer(typ.Elem()); path != "" {
			return "[]" + path
		}
		return ""
	case k == reflect.Struct:
		for i := range typ.NumField() {
			if path := findPointer(typ.Field(i).Type); path != "" {
				return "." + typ.Field(i).Name + path
			}
		}
		return ""
	}
	return " (" + typ.Kind().String() + ")"
}
