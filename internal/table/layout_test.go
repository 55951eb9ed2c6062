package table

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// cacheLine is the unit in which processors take memory away from each other.
const cacheLine = 64

// accountSize is 40 bytes for match, player and tenant, 16 for a lost endpoint and the
// gate of links, 36 for five ticks, the place in the state file and the three words of
// the wheel, and 12 for counts and marks, on memory that no worker touches.
const accountSize = 104

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

// TestContract3TimestampsHaveLinesOfTnextOwn: words that workers write share no cache
// line with those that they read for each datagram, nor with another allocation's, but
// for the counts of large messages, which have lines for themselves.
func TestContract3TimestampsHaveLinesOfTnextOwn(t *testing.T) {
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

// The memory that a full table of default size may take, as the documentation
// promises.
const (
	maxHeapPerAllocation = 300       // bytes
	maxResident          = 512 << 20 // bytes, of the whole process
)

// TestMillion fills a table to its limit, looks everything up, ends everything
// and fills it again. It measures the cost in memory and in stops of
// the collector.
func TestMillion(t *testing.T) {
	if testkit.RaceEnabled || testing.Short() {
		t.Skip("a million allocations take seconds, and under the race detector minutes and gigabytes")
	}
	const n = DefaultMaxAllocations
	debug.FreeOSMemory() // of the tests before
	before := heapAlloc()
	table := NewTable(0)
	fill(t, table, n)
	resident := residentBytes(t)
	perAllocation := float64(heapAlloc()-before) / n
	t.Logf("%.1f B of heap for each bound allocation, %d MiB resident, %d MiB after a collection",
		perAllocation, resident>>20, residentBytes(t)>>20)
	if perAllocation > maxHeapPerAllocation {
		t.Errorf("%.1f B of heap for each, want %d at the most", perAllocation, maxHeapPerAllocation)
	}
	if resident > maxResident {
		t.Errorf("%d MiB resident, want %d at the most", resident>>20, maxResident>>20)
	}
	wantCounts(t, table, n, n, n/2)
	if _, err := table.Reserve(Spec{ID: testID(n), Role: RoleHost}, 1); err != ErrFull {
		t.Errorf("one more: %v, want ErrFull", err)
	}
	reportCollector(t, table)

	for i := range n {
		e, ok := table.ByID(testID(i))
		if bound, found := byEndpoint(table, testEndpoint(i)); !ok || !found || bound != e {
			t.Fatalf("allocation %d: %+v, %v by id, %+v, %v by endpoint", i, e, ok, bound, found)
		}
	}
	for i := range n {
		h := at(t, table, testID(i)).Handle
		table.End(h)
		table.Recycle(h)
	}
	wantCounts(t, table, 0, 0, 0)
	fill(t, table, n)
	wantCounts(t, table, n, n, n/2)
	if again := float64(heapAlloc()-before) / n; again > maxHeapPerAllocation {
		t.Errorf("%.1f B of heap for each the second time, want %d at the most", again, maxHeapPerAllocation)
	}
	runtime.KeepAlive(table)
}

// fill binds n allocations, hosts and joiners in turn, each joiner linked to
// the host before it.
func fill(t testing.TB, table *Table, n int) {
	t.Helper()
	var host Handle
	for i := range n {
		h := bind(t, table, Spec{ID: testID(i), Role: Role(1 + i%2)}, testEndpoint(i))
		if i%2 == 0 {
			host = h
			continue
		}
		table.Link(h, host)
	}
}

// reportCollector says how long collections take, and how long they stop the
// process, while table is full. On a shared machine no bound would hold.
func reportCollector(t *testing.T, table *Table) {
	t.Helper()
	const rounds = 10
	before := gcPauses(t)
	start := time.Now()
	for range rounds {
		runtime.GC()
	}
	took := time.Since(start) / rounds
	after := gcPauses(t)
	longest := 0.0
	for i := range after.Counts {
		if after.Counts[i] > before.Counts[i] {
			longest = after.Buckets[i+1]
		}
	}
	if math.IsInf(longest, 1) || longest == 0 {
		t.Errorf("no stop of a collection was counted")
	}
	t.Logf("a collection takes %v, and stops the process for %.0f µs at the most", took, longest*1e6)
	runtime.KeepAlive(table)
}

func gcPauses(t *testing.T) *metrics.Float64Histogram {
	t.Helper()
	const name = "/sched/pauses/total/gc:seconds"
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		t.Fatalf("no metric %s", name)
	}
	return sample[0].Value.Float64Histogram()
}

func heapAlloc() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// residentBytes returns the memory of this process that is in RAM.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skipf("resident memory is read from the proc file system: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatalf("VmRSS in /proc/self/status: %v", err)
	}
	return kib << 10
}
