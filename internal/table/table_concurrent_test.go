package table

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestContract2SnapshotsWereTrue: while one goroutine reserves, binds, moves,
// links, ends and reuses slots at once, all that readers are told was true at
// some instant between their question and the answer.
func TestContract2SnapshotsWereTrue(t *testing.T) {
	changes := 100_000
	if testkit.RaceEnabled || testing.Short() {
		changes = 50_000
	}
	t.Run("few", func(t *testing.T) { witness(t, newScribe(rand.Uint64(), 12, 5), changes) })
	t.Run("many", func(t *testing.T) {
		s := newScribe(rand.Uint64(), 1<<14, 3000)
		witness(t, s, changes)
		grown := 0
		for i := range s.table.byID.shards {
			if len(s.table.byID.shards[i].cells.Load().lines) > minLines {
				grown++
			}
		}
		if grown == 0 {
			t.Error("the index did not grow")
		}
	})
}

// witness lets three readers look while s writes, and compares what they saw
// with the history.
func witness(t *testing.T, s *scribe, changes int) {
	t.Helper()
	sights := make([][]sight, 3)
	var wg sync.WaitGroup
	for i := range sights {
		wg.Go(func() { sights[i] = s.read(s.seed+uint64(i), 150_000) })
	}
	s.write(t, changes)
	wg.Wait()

	var during, hits [looks]int
	for _, seen := range sights {
		for i := range seen {
			x := &seen[i]
			if !s.wasTrue(x) {
				t.Fatalf("seed %d: never true from time %d to %d: %+v", s.seed, x.before, x.after, *x)
			}
			if x.ok {
				hits[x.look]++
			}
			if x.duringChange() {
				during[x.look]++
			}
		}
	}
	t.Logf("seed %d: hits by kind %v, looks during a change %v", s.seed, hits, during)
	for kind := range looks {
		if hits[kind] == 0 {
			t.Errorf("no look of kind %d found anything", kind)
		}
	}
}

// TestContract2NoTornReads: all words of a record are written together, over
// and over, and none is ever seen with a word of another time.
func TestContract2NoTornReads(t *testing.T) {
	t.Parallel()
	writes := uint64(300_000)
	if testkit.RaceEnabled || testing.Short() {
		writes = 100_000
	}
	var r identity
	r.write(func(r *identity) { r.setMeta(0, RoleHost) })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for last, e := uint64(0), (Entry{}); last < writes; {
				r.snapshot(0, &e)
				n := uint64(e.Link)
				if e != tornEntry(n) {
					t.Errorf("torn: %+v", e)
					return
				}
				if n < last {
					t.Errorf("write %d seen after write %d", n, last)
					return
				}
				last = n
			}
		})
	}
	for n := range writes + 1 {
		e := tornEntry(n)
		r.write(func(r *identity) {
			r.setMeta(uint32(n), e.Role)
			r.setBinding(e.Flags, e.Nonce)
			r.setID(e.ID)
			r.setEndpoint(e.Endpoint)
			r.link.Store(n)
		})
	}
	wg.Wait()
}

// tornEntry is what the n-th write makes of a record: each word tells n.
func tornEntry(n uint64) Entry {
	if n == 0 {
		return Entry{Role: RoleHost}
	}
	return Entry{
		Handle: Handle(n), Link: Handle(n), ID: testID(int(n)), Endpoint: testEndpoint(int(n)), Role: Role(1 + n%2),
		Flags: Flags(n), Nonce: uint16(n),
	}
}

type answer struct {
	e  Entry
	ok bool
}

// waitForReader returns when some goroutine is inside snapshot, or when the
// answer is there already, and reports which. The caller has made the sequence
// number of a record odd, so the reader should stay.
func waitForReader(answers <-chan answer) (a answer, inside bool) {
	buf := make([]byte, 1<<20)
	if !testkit.Poll(testkit.Patience, func() bool {
		n := runtime.Stack(buf, true)
		if inside = bytes.Contains(buf[:n], []byte("table.(*identity).snapshot(")); inside {
			return true
		}
		select {
		case a = <-answers:
			return true
		default:
			return false
		}
	}) {
		panic("no reader is inside snapshot, and none has answered")
	}
	return a, inside
}

// TestContract2ReaderWaitsForTheWriter: a reader that comes in the middle of a
// write sees neither half of it.
func TestContract2ReaderWaitsForTheWriter(t *testing.T) {
	table := NewTable(0)
	h := bind(t, table, Spec{ID: testID(1), Role: RoleJoiner}, testEndpoint(1))
	answers := make(chan answer)
	want := at(t, table, testID(1))
	table.identity(h.slot()).write(func(r *identity) {
		r.id[0].Store(^uint64(0))
		go func() {
			e, ok := table.At(h)
			answers <- answer{e, ok}
		}()
		if a, inside := waitForReader(answers); !inside {
			t.Fatalf("saw half a write: %+v", a)
		}
		r.setID(testID(2))
		r.link.Store(77)
	})
	want.ID, want.Link = testID(2), 77
	if a := <-answers; !a.ok || a.e != want {
		t.Errorf("after the write %+v, want %+v", a, want)
	}
}

// shardEndpoints returns n endpoints that are in one shard of the table.
func shardEndpoints(table *Table, n int) (shard *shard, eps []endpoint.Endpoint) {
	for i := 0; len(eps) < n; i++ {
		ep := testEndpoint(i)
		of := table.byEndpoint.shard(table.hashEndpoint(ep))
		if shard == nil {
			shard = of
		}
		if of == shard {
			eps = append(eps, ep)
		}
	}
	return shard, eps
}

// TestContract1MissIsRetried holds a reader on its way through cells, lets the
// shard grow and the endpoint it looks for be bound, and lets it go on: its
// cells do not know the endpoint, so it has to look at the new ones.
func TestContract1MissIsRetried(t *testing.T) {
	const others = minLines * lineCells
	table := NewTable(0)
	shard, eps := shardEndpoints(table, others+1)
	wanted, old := eps[others], shard.cells.Load()
	var handles []Handle
	for i := range eps {
		handles = append(handles, reserve(t, table, Spec{ID: testID(i), Role: RoleHost}))
	}

	// A false lead in the line of the endpoint, to a record in mid-write.
	trap := table.identity(reserve(t, table, Spec{ID: testID(-5), Role: RoleHost}).slot())
	hash := table.hashEndpoint(wanted)
	cell := &old.line(hash)[0]
	cell.Store(makeCell(hash, uint32(others)+1))
	trap.seq.Add(1)
	answers := make(chan answer)
	go func() {
		e, ok := byEndpoint(table, wanted)
		answers <- answer{e, ok}
	}()
	if a, inside := waitForReader(answers); !inside {
		t.Fatalf("did not wait for the record in mid-write: %+v", a)
	}
	cell.Store(0)

	for i, ep := range eps {
		table.Bind(handles[i], ep)
	}
	if shard.cells.Load() == old {
		t.Fatal("the shard did not grow")
	}
	if slots := old.find(hash); len(slots) != 0 {
		t.Fatalf("the old cells lead to %v", slots)
	}
	trap.seq.Add(1)
	if a := <-answers; !a.ok || a.e.Handle != handles[others] || a.e.Endpoint != wanted {
		t.Errorf("found %+v, want %x", a, handles[others])
	}
}

// TestContract1RecordsNeverMove: a record stays where it is while the table
// grows, and so do the account and the stamps that belong to it.
func TestContract1RecordsNeverMove(t *testing.T) {
	t.Parallel()
	const n = 20 * chunkSlots
	table := NewTable(n)
	h := bind(t, table, Spec{ID: testID(0), Role: RoleHost}, testEndpoint(0))
	identity, activity, account := table.identity(h.slot()), table.Activity(h), table.Account(h)
	lines := len(table.byID.shards[0].cells.Load().lines)
	for i := 1; i < n; i++ {
		bind(t, table, Spec{ID: testID(i), Role: RoleHost}, testEndpoint(i))
	}
	if grown := len(table.byID.shards[0].cells.Load().lines); grown <= lines {
		t.Fatal("the index did not grow")
	}
	if identity != table.identity(h.slot()) || activity != table.Activity(h) || account != table.Account(h) {
		t.Error("a record has moved")
	}
	if e, ok := byEndpoint(table, testEndpoint(0)); !ok || e.Handle != h {
		t.Errorf("found %+v, %v, want %x", e, ok, h)
	}
}

// TestContract1BoundIsFound: what a record says is what the index finds, for
// as long as the record says it. Of all misses while an allocation moves, and
// ends, and begins again, each comes with a change of the record.
func TestContract1BoundIsFound(t *testing.T) {
	changes := 300_000
	if testkit.RaceEnabled || testing.Short() {
		changes = 60_000
	}
	table := NewTable(1)
	first := reserve(t, table, Spec{ID: testID(-1), Role: RoleHost})
	table.End(first)
	table.Recycle(first)
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !done.Load() {
				e, ok := table.At(table.HandleAt(0))
				if !ok {
					continue
				}
				_, found := table.ByID(e.ID)
				if now, _ := table.At(e.Handle); !found && now.Handle == e.Handle {
					t.Errorf("not found by id: %+v", e)
				}
				if _, found = byEndpoint(table, e.Endpoint); found || e.Endpoint.IsZero() {
					continue
				}
				if now, _ := table.At(e.Handle); now == e {
					t.Errorf("not found by endpoint: %+v", e)
				}
			}
		})
	}
	for n := 0; n < changes && !t.Failed(); n += 4 {
		h := reserve(t, table, Spec{ID: testID(n), Role: RoleHost})
		for i := range 4 {
			table.Bind(h, testEndpoint(n+i))
		}
		table.End(h)
		table.Recycle(h)
	}
	done.Store(true)
	wg.Wait()
}
