package table

import (
	"flag"
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

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// cacheLine is the unit in which processors take memory away from each other.
const cacheLine = 64

// accountSize is 16 bytes for the match, 12 for a lost endpoint and the gate of links, 52 for
// six ticks, the place in the state file, the two words of the wheel, the two of a host's
// links and the two of a player, and 16 for counts and marks, on memory that no worker touches.
const accountSize = 96

// largeSize is that of two counts, which no datagram but a large one needs.
const largeSize = 8

// ownerSize is that of the tenant and the player.
const ownerSize = 24

const gateSize = 4

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
		{reflect.TypeFor[owner](), ownerSize},
		{reflect.TypeFor[Account](), accountSize},
		{reflect.TypeFor[line](), cacheLine},
		{reflect.TypeFor[shard](), 16},
		{reflect.TypeFor[Slab](), SlabRecords * 2 * cacheLine},
		{reflect.TypeFor[coldSlab](), SlabRecords * (largeSize + 2*gateSize + ownerSize + accountSize)},
	} {
		if got := c.typ.Size(); got != c.size {
			t.Errorf("%v has %d bytes, want %d", c.typ, got, c.size)
		}
	}
}

// Words that the worker of an owner writes share no cache line with those that others read for each
// datagram, nor with another allocation's; the counts of large messages have lines for themselves.
func TestContract3ActivityHasItsOwnLine(t *testing.T) {
	t.Parallel()
	for _, typ := range []reflect.Type{reflect.TypeFor[Slab](), reflect.TypeFor[coldSlab]()} {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Offset%cacheLine != 0 || f.Type.Size()%cacheLine != 0 {
				t.Errorf("%s of %v begins at %d and has %d bytes, want whole lines", f.Name, typ, f.Offset, f.Type.Size())
			}
		}
	}
	for range 4 {
		for _, slab := range []any{new(Slab), new(coldSlab)} {
			if at := reflect.ValueOf(slab).Pointer(); at%cacheLine != 0 {
				t.Errorf("a %T lies at %#x, not at the beginning of a line", slab, at)
			}
		}
	}
	if at := reflect.ValueOf(newCells(minLines).lines).Pointer(); at%cacheLine != 0 {
		t.Errorf("cells lie at %#x, not at the beginning of a line", at)
	}
}

// TestTableLines: what control changes with each allocation shares no cache line with what
// workers read for each datagram.
func TestTableLines(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	lines := make(map[uintptr]string)
	each := func(p any, begin uintptr, do func(line uintptr)) {
		v := reflect.ValueOf(p)
		for at := (v.Pointer() + begin) / cacheLine; at <= (v.Pointer()+v.Type().Elem().Size()-1)/cacheLine; at++ {
			do(at)
		}
	}
	read := func(name string, p any) { each(p, 0, func(line uintptr) { lines[line] = name }) }
	written := func(name string, p any, begin uintptr) {
		each(p, begin, func(line uintptr) {
			if lines[line] != "" {
				t.Errorf("%s is on the line of %s", name, lines[line])
			}
		})
	}
	read("secret", &table.secret)
	read("slabs", &table.slabs)
	for _, x := range []*index{&table.byEndpoint, &table.byID} {
		read("shards", x)
		for i := range x.shards {
			read("cells", x.shards[i].cells.Load())
		}
	}
	next, _ := reflect.TypeFor[writer]().FieldByName("next")
	written("next", &table.w, next.Offset)
	for _, x := range []*index{&table.byEndpoint, &table.byID} {
		for i := range x.shards {
			written("counts", x.shards[i].counts, 0)
		}
	}
}

// TestContract3WritesOfARelay: within a tick a RELAY changes the sender's quota gate and count
// alone, so a worker that reads a record finds it in its cache while another one relays.
func TestContract3WritesOfARelay(t *testing.T) {
	t.Parallel()
	table, quota := NewTable(2), NewQuota(1000, 1<<20)
	host := bind(t, table, Spec{ID: testID(0), Role: RoleHost}, testEndpoint(0))
	joiner := bind(t, table, Spec{ID: testID(1), Role: RoleJoiner}, testEndpoint(1))
	table.Link(joiner, host)
	relay := func(now int64) string {
		before := words(table)
		relayOne(t, table, quota, testEndpoint(1), testID(0), now)
		after := words(table)
		var changed []string
		for i := range after {
			if after[i] != before[i] {
				changed = append(changed, after[i].name)
			}
		}
		return strings.Join(changed, ", ")
	}
	const from, to = " of slot 1", " of slot 0"
	first := "path" + to + ", heard" + from + ", relayed" + from + ", quotaGate" + from + ", received" + from + ", sent" + from
	const further = "quotaGate" + from + ", sent" + from
	for _, c := range []struct {
		now  int64
		want string
	}{
		{60_000, first}, {60_000, further}, {60_249, further},
		{60_250, first}, {60_251, further}, {60_200, further}, // a worker that is late
		{120_000, first}, {120_001, further},
	} {
		if got := relay(c.now); got != c.want {
			t.Errorf("at %d ms a RELAY changes %s, want %s", c.now, got, c.want)
		}
	}
}

func relayOne(t *testing.T, table *Table, quota Quota, ep endpoint.Endpoint, to proto.AllocationID, now int64) {
	t.Helper()
	var sender, peer Entry
	tick := Tick(now / TickMillis)
	if !table.FindByEndpoint(ep, &sender) {
		t.Fatal("no sender")
	}
	source := table.Activity(sender.Handle)
	if !source.HasHeard(tick) {
		table.RecordMessage(&sender, tick, 0)
	}
	if !table.FindPeer(&sender, &to, &peer) || !source.TakeQuota(quota, 100, now) {
		t.Fatal("no peer, or no quota")
	}
	if !table.HasRelayed(peer.Handle, tick) && !table.AllowRelay(peer.Handle, 100, tick) {
		t.Fatal("the path is limited")
	}
	source.RecordRelay(tick)
	source.CountRelay(100)
}

type word struct{ name, value string }

func words(table *Table) (all []word) {
	hot, cold := reflect.ValueOf(table.slabs[0].Load()).Elem(), reflect.ValueOf(table.cold[0].Load()).Elem()
	for slot := range 2 {
		for _, part := range []reflect.Value{
			hot.Field(0).Index(slot), hot.Field(1).Index(slot), cold.Field(0).Index(slot), cold.Field(1).Index(slot), cold.Field(2).Index(slot),
		} {
			for j := range part.NumField() {
				name := fmt.Sprintf("%s of slot %d", part.Type().Field(j).Name, slot)
				all = append(all, word{name, fmt.Sprint(part.Field(j))})
			}
		}
	}
	return all
}

// TestLinesOfARelay: a RELAY touches three lines of records.
func TestLinesOfARelay(t *testing.T) {
	t.Parallel()
	lines := make(map[string]bool)
	touch := func(whose string, record reflect.Type, fields ...string) {
		for _, name := range fields {
			f, ok := record.FieldByName(name)
			if !ok {
				t.Fatalf("%v has no %s", record, name)
			}
			for at := f.Offset / cacheLine; at <= (f.Offset+f.Type.Size()-1)/cacheLine; at++ {
				lines[fmt.Sprint(whose, record, at)] = true
			}
		}
	}
	snapshot := []string{"state", "meta", "id", "endpoint", "link"}
	touch("sender's ", reflect.TypeFor[identity](), snapshot...)
	touch("sender's ", reflect.TypeFor[Activity](), "heard", "relayed", "quotaGate", "counterIndex", "sent")
	touch("peer's ", reflect.TypeFor[identity](), append(snapshot, "path")...)
	if len(lines) != 3 {
		t.Errorf("a RELAY touches %v, want 3 lines", lines)
	}
}

// TestSlabsHoldNoPointers: memory without pointers costs the collector nothing.
func TestSlabsHoldNoPointers(t *testing.T) {
	t.Parallel()
	for _, typ := range []reflect.Type{reflect.TypeFor[Slab](), reflect.TypeFor[coldSlab](), reflect.TypeFor[line]()} {
		if path := findPointer(typ); path != "" {
			t.Errorf("%v holds a pointer at %v%s", typ, typ, path)
		}
	}
	// The walk itself must be able to fail.
	if path := findPointer(reflect.TypeFor[[2]struct{ M map[int]int }]()); path != "[].M (map)" {
		t.Errorf("the pointer of a map was found at %q", path)
	}
}

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
	maxHeapPerAllocation = 304       // bytes
	maxResident          = 512 << 20 // bytes, of the whole process
)

var long = flag.Bool("long", false, "a table of the default size")

// TestMillion fills a table to its limit twice, and measures memory and stops of the collector.
func TestMillion(t *testing.T) {
	if testkit.RaceEnabled || testing.Short() {
		t.Skip("a million allocations take seconds, and under the race detector minutes and gigabytes")
	}
	n := DefaultMaxAllocations
	if !*long {
		n /= 2
	}
	debug.FreeOSMemory() // of the tests before
	before := heapAlloc()
	table := NewTable(n)
	fill(t, table, n)
	resident := residentBytes(t)
	perAllocation := float64(heapAlloc()-before) / float64(n)
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
	if again := float64(heapAlloc()-before) / float64(n); again > maxHeapPerAllocation {
		t.Errorf("%.1f B of heap for each the second time, want %d at the most", again, maxHeapPerAllocation)
	}
	runtime.KeepAlive(table)
}

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

// reportCollector reports only: on a shared machine no bound would hold.
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
