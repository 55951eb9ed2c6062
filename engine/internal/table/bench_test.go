package table

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

var benchSizes = []int{1_000, 100_000, 1_000_000}

// benchSink keeps the compiler from dropping unused results.
var benchSink struct {
	entry Entry
	ok    bool
}

type bench struct {
	table   *Table
	keys    []endpoint.Endpoint
	hosts   []Entry
	joiners []Entry
}

func newBench(b *testing.B, n int) *bench {
	b.Helper()
	x := &bench{table: NewTable(n)}
	fill(b, x.table, n)
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
				benchSink.ok = x.table.FindByEndpoint(x.keys[i%n], &benchSink.entry)
			}
		})
		b.Run(fmt.Sprintf("rwmutex/%d", n), func(b *testing.B) { benchMutexMap(b, n) })
		b.Run(fmt.Sprintf("syncmap/%d", n), func(b *testing.B) { benchSyncMap(b, n) })
	}
}

func shuffledKeys(n int) (keys []endpoint.Endpoint) {
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		keys = append(keys, testEndpoint(i))
	}
	return keys
}

func benchMutexMap(b *testing.B, n int) {
	var mu sync.RWMutex
	m := make(map[endpoint.Endpoint]*Entry)
	for i := range n {
		m[testEndpoint(i)] = &Entry{Endpoint: testEndpoint(i), ID: testID(i)}
	}
	keys := shuffledKeys(n)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		mu.RLock()
		e := m[keys[i%n]]
		mu.RUnlock()
		benchSink.entry = *e
	}
}

func benchSyncMap(b *testing.B, n int) {
	var m sync.Map
	for i := range n {
		m.Store(testEndpoint(i), &Entry{Endpoint: testEndpoint(i), ID: testID(i)})
	}
	keys := shuffledKeys(n)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v, _ := m.Load(keys[i%n])
		benchSink.entry = *v.(*Entry)
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
				benchSink.ok = x.table.FindPeer(&x.joiners[k], &x.hosts[k].ID, &benchSink.entry)
			}
		})
		b.Run(fmt.Sprintf("host-to-joiner/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				k := i % len(x.hosts)
				benchSink.ok = x.table.FindPeer(&x.hosts[k], &x.joiners[k].ID, &benchSink.entry)
			}
		})
	}
}

func BenchmarkChurn(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := NewTable(n + 1)
			fill(b, table, n)
			b.ReportAllocs()
			for i := n; b.Loop(); i++ {
				h, err := table.Reserve(Spec{ID: testID(i), Role: RoleHost}, 1)
				if err != nil {
					b.Fatal(err)
				}
				table.Bind(h, testEndpoint(i))
				table.End(h)
				table.Recycle(h)
			}
		})
	}
}
