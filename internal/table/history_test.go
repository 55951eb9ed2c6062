package table

import (
	"math"
	"math/rand/v2"
	"sort"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// A history is all that was ever true of a table, and when. One goroutine, the
// scribe, changes the table and writes the history; readers note what they
// see, and between which two times. Time is the number of changes begun and
// ended, so what a reader saw must have been true at one of its times.

// span is a time through which a key led to e, or to nothing if e is zero.
type span struct {
	from, to int64
	e        Entry
}

// past is the history of keys of one kind. Before its first span a key led to
// nothing.
type past[K comparable] map[K][]span

// set notes that from some time between began and ended on, key leads to e.
func (p past[K]) set(key K, e Entry, began, ended int64) {
	spans := p[key]
	if len(spans) == 0 {
		spans = append(spans, span{})
	}
	spans[len(spans)-1].to = ended
	p[key] = append(spans, span{from: began, to: math.MaxInt64, e: e})
}

// held reports whether what key led to fulfilled what at some time from before
// to after.
func (p past[K]) held(key K, before, after int64, what func(Entry) bool) bool {
	spans := p[key]
	if len(spans) == 0 {
		return what(Entry{})
	}
	first := sort.Search(len(spans), func(i int) bool { return before <= spans[i].to })
	for _, s := range spans[first:] {
		if s.from > after {
			return false
		}
		if what(s.e) {
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

// scribe is the writer of a table under test. Only the atomics are read while
// it writes.
type scribe struct {
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

// newScribe returns the scribe of a table for max allocations, whose owners
// take a number of endpoints from each other.
func newScribe(seed uint64, max, endpoints int) *scribe {
	return &scribe{
		seed: seed, max: max, room: endpoints,
		table: NewTable(max), r: rand.New(rand.NewPCG(seed, 0)),
		byOwner: make(map[endpoint.Endpoint]*Entry), endpoints: make(past[endpoint.Endpoint]),
		ids: make(past[proto.AllocationID]), handles: make(past[Handle]),
	}
}

// change runs do as one change and returns its time.
func (s *scribe) change(do func()) (began, ended int64) {
	began = s.clock.Add(1)
	do()
	return began, s.clock.Add(1)
}

// becomes notes that the allocation of e becomes next; ended with next zero.
func (s *scribe) becomes(e *Entry, next Entry, began, ended int64) {
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

// write makes n changes. The number of allocations rises and falls, so that
// the index grows and slots are reused.
func (s *scribe) write(t *testing.T, n int) {
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

func (s *scribe) any() *Entry { return s.live[s.r.IntN(len(s.live))] }

func (s *scribe) reserve(t *testing.T) {
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

func (s *scribe) bind(e *Entry) {
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

// mark changes flags and nonce, which are in the record but in no index.
func (s *scribe) mark(e *Entry) {
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

// link opens the link of a joiner, or closes it if it has one.
func (s *scribe) link(joiner, host *Entry) {
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
// which is harder on the readers than what they are promised.
func (s *scribe) end(i int) {
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

// sight is what one look-up of a reader gave.
type sight struct {
	before, between, after int64
	look                   look
	endpoint               endpoint.Endpoint
	id                     proto.AllocationID
	from                   Entry // of At: the handle in it
	got                    Entry
	ok                     bool
}

func (x *sight) duringChange() bool { return x.before != x.after || x.before%2 == 1 }

type look uint8

const (
	lookEndpoint look = iota
	lookID
	lookHandle
	lookPeer
	lookAgain // the endpoint, or the id, that the table has just told of a handle
	looks
)

// read looks things up until the scribe is done, or most sights are noted, and
// a thousand times in any case: a reader may be scheduled after all is written.
func (s *scribe) read(seed uint64, most int) (sights []sight) {
	r := rand.New(rand.NewPCG(seed, 1))
	var known [64]Entry // what to look at again, long after it has ended
	for i := 0; (i < 1000 || !s.done.Load()) && len(sights) < most; i++ {
		x := sight{look: look(r.IntN(int(looks))), from: known[r.IntN(len(known))]}
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
		// What was seen while nothing changed is less of a test.
		if x.duringChange() || i%8 == 0 {
			sights = append(sights, x)
		}
		if x.ok {
			known[r.IntN(len(known))] = x.got
			s.table.Activity(x.got.Handle).RecordReceive(Tick(i))
			s.table.Activity(x.got.Handle).RecordActivity(Tick(i))
		}
	}
	return sights
}

func (s *scribe) look(x *sight) {
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

// wasTrue reports whether x agrees with the history. It is called when the
// scribe is done.
func (s *scribe) wasTrue(x *sight) bool {
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
