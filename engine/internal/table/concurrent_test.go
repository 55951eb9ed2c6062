package table

import (
	"bytes"
	"math"
	"math/rand/v2"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// Every result of a reader was true at some instant between its call and the return.
func TestContract2SnapshotsWereTrue(t *testing.T) {
	changes := 100_000
	if testkit.RaceEnabled || testing.Short() {
		changes = 50_000
	}
	t.Run("few", func(t *testing.T) { checkReaders(t, newRecorder(rand.Uint64(), 12, 5), changes) })
	t.Run("many", func(t *testing.T) {
		s := newRecorder(rand.Uint64(), 1<<14, 3000)
		checkReaders(t, s, changes)
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

func checkReaders(t *testing.T, s *recorder, changes int) {
	t.Helper()
	observations := make([][]observation, 3)
	var wg sync.WaitGroup
	for i := range observations {
		wg.Go(func() { observations[i] = s.read(s.seed+uint64(i), 150_000) })
	}
	s.write(t, changes)
	wg.Wait()

	var during, hits [looks]int
	for _, seen := range observations {
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

// waitForReader returns when some goroutine is inside snapshot, or the answer is there already. The
// caller has made the sequence number of a record odd, so the reader should stay.
func waitForReader(answers <-chan answer) (a answer, inside bool) {
	buf := make([]byte, 1<<20)
	if !testkit.Poll(testkit.WaitLimit, func() bool {
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

// TestContract1MissIsRetried holds a reader on its way through cells while the shard grows and its
// endpoint is bound: it has to look at the new cells.
func TestContract1MissIsRetried(t *testing.T) {
	const others = minLines * lineCells
	table := NewTable(0)
	shard, eps := shardEndpoints(table, others+1)
	wanted, old := eps[others], shard.cells.Load()
	var handles []Handle
	for i := range eps {
		handles = append(handles, reserve(t, table, Spec{ID: testID(i), Role: RoleHost}))
	}

	trap := table.identity(reserve(t, table, Spec{ID: testID(-5), Role: RoleHost}).slot())
	hash := table.hashEndpoint(wanted)
	cell := &old.line(hash)[0]
	cell.Store(makeCell(hash, uint32(others)+1))
	trap.state.Add(1)
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
	trap.state.Add(1)
	if a := <-answers; !a.ok || a.e.Handle != handles[others] || a.e.Endpoint != wanted {
		t.Errorf("found %+v, want %x", a, handles[others])
	}
}

func TestContract1RecordsNeverMove(t *testing.T) {
	t.Parallel()
	const n = 20 * SlabRecords
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

// TestContract1BoundIsFound: of all misses while an allocation moves, ends and begins again, each
// comes with a change of the record.
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

// A history is all that was ever true of a table, and when. Time is the number of changes begun and
// ended; an observation must have been true at one of the times of its look-up.

// span is a time through which a key led to e, or to nothing if e is zero.
type span struct {
	from, to int64
	e        Entry
}

type past[K comparable] map[K][]span

func (p past[K]) set(key K, e Entry, began, ended int64) {
	spans := p[key]
	if len(spans) == 0 {
		spans = append(spans, span{})
	}
	spans[len(spans)-1].to = ended
	p[key] = append(spans, span{from: began, to: math.MaxInt64, e: e})
}

func (p past[K]) held(key K, before, after int64, cond func(Entry) bool) bool {
	spans := p[key]
	if len(spans) == 0 {
		return cond(Entry{})
	}
	first := sort.Search(len(spans), func(i int) bool { return before <= spans[i].to })
	for _, s := range spans[first:] {
		if s.from > after {
			return false
		}
		if cond(s.e) {
			return true
		}
	}
	return false
}

// left reports whether key, which led to e at some time from before to between,
// may have ceased to at some time up to after.
func (p past[K]) left(key K, e Entry, before, between, after int64) bool {
	spans := p[key]
	first := sort.Search(len(spans), func(i int) bool { return before <= spans[i].to })
	for i := first; i+1 < len(spans) && spans[i].from <= between; i++ {
		if spans[i].e == e && spans[i+1].from <= after {
			return true
		}
	}
	return false
}

// recorder is the writer of a table under test. Only the atomics are read while it writes.
type recorder struct {
	seed  uint64
	max   int // allocations
	room  int // endpoints
	table *Table
	r     *rand.Rand
	clock atomic.Int64 // odd during a change
	born  atomic.Int64 // number of the last allocation
	done  atomic.Bool

	live      []*Entry
	byOwner   map[endpoint.Endpoint]*Entry
	endpoints past[endpoint.Endpoint]
	ids       past[proto.AllocationID]
	handles   past[Handle]
}

func newRecorder(seed uint64, max, endpoints int) *recorder {
	return &recorder{
		seed: seed, max: max, room: endpoints,
		table: NewTable(max), r: rand.New(rand.NewPCG(seed, 0)),
		byOwner: make(map[endpoint.Endpoint]*Entry), endpoints: make(past[endpoint.Endpoint]),
		ids: make(past[proto.AllocationID]), handles: make(past[Handle]),
	}
}

func (s *recorder) change(do func()) (began, ended int64) {
	began = s.clock.Add(1)
	do()
	return began, s.clock.Add(1)
}

// becomes notes that the allocation of e becomes next; ended with next zero.
func (s *recorder) becomes(e *Entry, next Entry, began, ended int64) {
	if e.Endpoint != next.Endpoint && !e.Endpoint.IsZero() {
		s.endpoints.set(e.Endpoint, Entry{}, began, ended)
		delete(s.byOwner, e.Endpoint)
	}
	if !next.Endpoint.IsZero() {
		s.endpoints.set(next.Endpoint, next, began, ended)
		s.byOwner[next.Endpoint] = e
	}
	key := next
	if next == (Entry{}) {
		key = *e
	}
	s.ids.set(key.ID, next, began, ended)
	s.handles.set(key.Handle, next, began, ended)
	*e = next
}

func (s *recorder) write(t *testing.T, n int) {
	defer s.done.Store(true)
	for i := range n {
		fewer := i / (n / 4) % 2 * 30 // in each second quarter more go than come
		switch k := s.r.IntN(100); {
		case len(s.live) < 2 || k < 45-fewer:
			s.reserve(t)
		case k < 65-fewer:
			s.bind(s.any())
		case k < 70-fewer:
			s.mark(s.any())
		case k < 85-fewer:
			s.link(s.any(), s.any())
		default:
			s.end(s.r.IntN(len(s.live)))
		}
	}
}

func (s *recorder) any() *Entry { return s.live[s.r.IntN(len(s.live))] }

func (s *recorder) reserve(t *testing.T) {
	if len(s.live) == s.max {
		return
	}
	n := s.born.Load() + 1
	e := Entry{ID: testID(int(n)), Role: Role(1 + s.r.IntN(2))}
	var err error
	began, ended := s.change(func() { e.Handle, err = s.table.Reserve(Spec{ID: e.ID, Role: e.Role}, 1) })
	if err != nil {
		t.Error(err)
		return
	}
	owner := new(Entry)
	s.becomes(owner, e, began, ended)
	s.live = append(s.live, owner)
	s.born.Store(n)
}

func (s *recorder) bind(e *Entry) {
	next := *e
	next.Endpoint = testEndpoint(s.r.IntN(s.room))
	began, ended := s.change(func() { s.table.Bind(e.Handle, next.Endpoint) })
	if owner := s.byOwner[next.Endpoint]; owner != nil && owner != e {
		nowhere := *owner
		nowhere.Endpoint = endpoint.Endpoint{}
		s.becomes(owner, nowhere, began, ended)
	}
	s.becomes(e, next, began, ended)
}

func (s *recorder) mark(e *Entry) {
	next := *e
	next.Flags, next.Nonce = e.Flags|EverBound, uint16(s.r.Uint32())
	do := func() { s.table.RecordBind(e.Handle, next.Nonce) }
	if flags := Flags(s.r.IntN(16)); e.Flags&flags != 0 {
		next.Flags, next.Nonce = e.Flags&^flags, e.Nonce
		do = func() { s.table.ClearFlags(e.Handle, flags) }
	}
	began, ended := s.change(do)
	s.becomes(e, next, began, ended)
}

func (s *recorder) link(joiner, host *Entry) {
	if joiner.Role != RoleJoiner || host.Role != RoleHost {
		return
	}
	next := *joiner
	next.Link = host.Handle
	do := func() { s.table.Link(joiner.Handle, host.Handle) }
	if joiner.Link != 0 {
		next.Link = 0
		do = func() { s.table.Unlink(joiner.Handle) }
	}
	began, ended := s.change(do)
	s.becomes(joiner, next, began, ended)
}

// end ends an allocation and lets its slot be used at once: without grace,
// which is harder on the readers than the contract.
func (s *recorder) end(i int) {
	e := s.live[i]
	s.live[i] = s.live[len(s.live)-1]
	s.live = s.live[:len(s.live)-1]
	h := e.Handle
	began, ended := s.change(func() {
		s.table.End(h)
		s.table.Recycle(h)
	})
	if e.Link != 0 {
		unlinked := *e
		unlinked.Link = 0
		s.becomes(e, unlinked, began, ended)
	}
	s.becomes(e, Entry{}, began, ended)
}

type observation struct {
	before, between, after int64
	look                   look
	endpoint               endpoint.Endpoint
	id                     proto.AllocationID
	from                   Entry // of At: the handle in it
	got                    Entry
	ok                     bool
}

func (x *observation) duringChange() bool { return x.before != x.after || x.before%2 == 1 }

type look uint8

const (
	lookEndpoint look = iota
	lookID
	lookHandle
	lookPeer
	lookAgain // the endpoint, or the id, that the table has just returned for a handle
	looks
)

// read notes at least a thousand observations: it may be scheduled after all is written.
func (s *recorder) read(seed uint64, most int) (observations []observation) {
	r := rand.New(rand.NewPCG(seed, 1))
	var known [64]Entry // to look up again, long after they have ended
	for i := 0; (i < 1000 || !s.done.Load()) && len(observations) < most; i++ {
		x := observation{look: look(r.IntN(int(looks))), from: known[r.IntN(len(known))]}
		x.endpoint = testEndpoint(r.IntN(s.room))
		x.id = testID(int(s.born.Load()) + 1 - r.IntN(min(64, 2*s.max)))
		if x.look == lookPeer && r.IntN(4) > 0 {
			x.id = known[r.IntN(len(known))].ID
			if host, ok := s.table.At(x.from.Link); ok {
				x.id = host.ID
				if r.IntN(2) == 0 {
					x.from, x.id = host, x.from.ID
				}
			}
		}
		s.look(&x)
		// An observation without a change is less of a test.
		if x.duringChange() || i%8 == 0 {
			observations = append(observations, x)
		}
		if x.ok {
			known[r.IntN(len(known))] = x.got
			s.table.Activity(x.got.Handle).RecordReceive(Tick(i))
			s.table.AllowRelay(x.got.Handle, 1, Tick(i))
		}
	}
	return observations
}

func (s *recorder) look(x *observation) {
	x.before = s.clock.Load()
	switch x.look {
	case lookEndpoint:
		x.got, x.ok = byEndpoint(s.table, x.endpoint)
	case lookID:
		x.got, x.ok = s.table.ByID(x.id)
	case lookHandle:
		x.got, x.ok = s.table.At(x.from.Handle)
	case lookPeer:
		x.got, x.ok = peerOf(s.table, &x.from, x.id)
	case lookAgain:
		x.from, x.ok = s.table.At(x.from.Handle)
		x.between = s.clock.Load()
		if x.endpoint = x.from.Endpoint; !x.endpoint.IsZero() {
			x.got, _ = byEndpoint(s.table, x.endpoint)
		} else {
			x.got, _ = s.table.ByID(x.from.ID)
		}
	}
	x.after = s.clock.Load()
}

func (s *recorder) wasTrue(x *observation) bool {
	same := func(e Entry) bool { return e == x.got }
	switch x.look {
	case lookEndpoint:
		return s.endpoints.held(x.endpoint, x.before, x.after, same)
	case lookID:
		return s.ids.held(x.id, x.before, x.after, same)
	case lookHandle:
		return s.handles.held(x.from.Handle, x.before, x.after, same)
	case lookAgain:
		return !x.ok || x.got == x.from || s.handles.left(x.from.Handle, x.from, x.before, x.between, x.after)
	}
	linked := func(e Entry) bool { return e.ID == x.id && e != Entry{} }
	if x.from.Role != RoleJoiner {
		linked = func(e Entry) bool { return e.Link == x.from.Handle && e != Entry{} }
		if x.ok {
			return linked(x.got) && s.ids.held(x.id, x.before, x.after, same)
		}
		return s.ids.held(x.id, x.before, x.after, func(e Entry) bool { return !linked(e) })
	}
	if x.ok {
		return linked(x.got) && s.handles.held(x.from.Link, x.before, x.after, same)
	}
	return s.handles.held(x.from.Link, x.before, x.after, func(e Entry) bool { return !linked(e) })
}
