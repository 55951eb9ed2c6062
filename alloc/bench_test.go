package alloc

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/engine/sock"
	"github.com/ferryrelay/ferry/proto"
)

// benchSizes are the numbers of bound allocations at which a look-up is timed.
var benchSizes = []int{1_000, 100_000, 1_000_000}

// benchSink keeps the compiler from dropping what nobody uses.
var benchSink struct {
	entry Entry
	ok    bool
}

// bench is a full table: half of the allocations are hosts, each with one
// joiner that is linked to it. All numbers are in one random order.
type bench struct {
	table   *Table
	keys    []sock.Endpoint
	hosts   []Entry
	joiners []Entry
}

func newBench(b *testing.B, n int) *bench {
	b.Helper()
	x := &bench{table: NewTable(n)}
	for i := range n {
		bind(b, x.table, Spec{ID: testID(i), Role: Role(1 + i%2)}, testEndpoint(i))
	}
	for i := 0; i+1 < n; i += 2 {
		host, joiner := at(b, x.table, testID(i)), at(b, x.table, testID(i+1))
		x.table.Link(joiner.Handle, host.Handle)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, i := range r.Perm(n) {
		x.keys = append(x.keys, testEndpoint(i))
	}
	for _, i := range r.Perm(n / 2) {
		x.hosts = append(x.hosts, at(b, x.table, testID(2*i)))
		x.joiners = append(x.joiners, at(b, x.table, testID(2*i+1)))
	}
	return x
}

func BenchmarkByEndpoint(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("table/%d", n), func(b *testing.B) {
			x := newBench(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				key := &x.keys[i%n]
				benchSink.entry, benchSink.ok = x.table.ByEndpoint(*key)
			}
		})
		b.Run(fmt.Sprintf("rwmutex/%d", n), func(b *testing.B) { benchMutexMap(b, n) })
		b.Run(fmt.Sprintf("syncmap/%d", n), func(b *testing.B) { benchSyncMap(b, n) })
	}
}

// benchEntry is what the maps that we compare with point to.
type benchEntry struct {
	endpoint sock.Endpoint
	id       proto.AllocationID
	rest     [24]byte
}

var benchFound *benchEntry

func shuffledKeys(n int) (keys []sock.Endpoint) {
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		keys = append(keys, testEndpoint(i))
	}
	return keys
}

func benchMutexMap(b *testing.B, n int) {
	var mu sync.RWMutex
	m := make(map[sock.Endpoint]*benchEntry)
	for i := range n {
		m[testEndpoint(i)] = &benchEntry{endpoint: testEndpoint(i), id: testID(i)}
	}
	keys := shuffledKeys(n)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		mu.RLock()
		e := m[keys[i%n]]
		mu.RUnlock()
		benchFound, benchSink.entry.ID, benchSink.entry.Endpoint = e, e.id, e.endpoint
	}
}

func benchSyncMap(b *testing.B, n int) {
	var m sync.Map
	for i := range n {
		m.Store(testEndpoint(i), &benchEntry{endpoint: testEndpoint(i), id: testID(i)})
	}
	keys := shuffledKeys(n)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v, _ := m.Load(keys[i%n])
		e := v.(*benchEntry)
		benchFound, benchSink.entry.ID, benchSink.entry.Endpoint = e, e.id, e.endpoint
	}
}

func BenchmarkByID(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := newBench(b, n)
			for i := 0; b.Loop(); i++ {
				benchSink.entry, benchSink.ok = x.table.ByID(x.hosts[i%len(x.hosts)].ID)
			}
		})
	}
}

func BenchmarkPeer(b *testing.B) {
	for _, n := range benchSizes {
		x := newBench(b, n)
		b.Run(fmt.Sprintf("joiner-to-host/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				k := i % len(x.hosts)
				benchSink.entry, benchSink.ok = x.table.Peer(&x.joiners[k], x.hosts[k].ID)
			}
		})
		b.Run(fmt.Sprintf("host-to-joiner/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				k := i % len(x.hosts)
				benchSink.entry, benchSink.ok = x.table.Peer(&x.hosts[k], x.joiners[k].ID)
			}
		})
	}
}

// BenchmarkChurn is the life of one allocation, in a table that holds others.
func BenchmarkChurn(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := newBench(b, n)
			spare := NewTable(n + 1)
			for i := range n {
				bind(b, spare, Spec{ID: testID(i), Role: RoleHost}, testEndpoint(i))
			}
			x.table = spare
			b.ReportAllocs()
			for i := n; b.Loop(); i++ {
				h, err := spare.Reserve(Spec{ID: testID(i), Role: RoleHost}, 1)
				if err != nil {
					b.Fatal(err)
				}
				spare.Bind(h, testEndpoint(i))
				spare.End(h)
				spare.Recycle(h)
			}
		})
	}
}
