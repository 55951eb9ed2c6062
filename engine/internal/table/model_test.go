package table

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

type modelAllocation struct {
	spec     Spec
	handle   Handle
	endpoint endpoint.Endpoint
	host     *modelAllocation // of a joiner: its host
	flags    Flags
	nonce    uint16
	nextHop  NextHop
	ended    bool
	linked   int // number of its link
}

type model struct {
	t     *testing.T
	table *Table
	max   int
	room  int // endpoints in use

	born     int
	live     []*modelAllocation
	ids      map[proto.AllocationID]*modelAllocation
	owners   map[endpoint.Endpoint]*modelAllocation
	links    int
	linkings int
	waiting  []Handle // ended, not recycled
	stale    []*modelAllocation
}

func newModel(t *testing.T, max, endpoints int) *model {
	return &model{
		t: t, table: sharedTable(max), max: max, room: endpoints,
		ids:    make(map[proto.AllocationID]*modelAllocation),
		owners: make(map[endpoint.Endpoint]*modelAllocation),
	}
}

func (m *modelAllocation) entry() Entry {
	e := Entry{
		Handle: m.handle, Endpoint: m.endpoint, ID: m.spec.ID, Role: m.spec.Role, Flags: m.flags, Nonce: m.nonce,
	}
	if m.host != nil {
		e.Link = m.host.handle
	}
	return e
}

// linked reports whether a datagram may go from a to b.
func linked(a, b *modelAllocation) bool {
	return a.host == b && !b.ended || b.host == a && !a.ended
}

func (m *model) step(op byte, x, y int) {
	m.t.Helper()
	op %= 10
	if len(m.live) == 0 && op != 7 {
		op = 0
	}
	switch op {
	case 0, 1:
		m.reserve(x)
	case 2, 3:
		m.bind(m.live[x%len(m.live)], testEndpoint(y%m.room))
	case 4:
		m.link(m.live[x%len(m.live)], m.live[y%len(m.live)])
	case 5:
		m.unlink(m.live[x%len(m.live)])
	case 6:
		m.end(x % len(m.live))
	case 7:
		m.recycle(x)
	case 8:
		m.mark(m.live[x%len(m.live)], y)
	case 9:
		a := m.live[x%len(m.live)]
		a.nextHop = NextHop(y)
		m.table.SetNextHop(a.handle, a.nextHop)
	}
}

func (m *model) reserve(x int) {
	m.t.Helper()
	m.born++
	s := Spec{ID: testID(m.born), Role: Role(1 + x%2), Match: testID(x), Tenant: uint64(x), MaxConnections: uint16(x)}
	h, err := m.table.Reserve(s, Tick(m.born))
	if full := len(m.live)+len(m.waiting) == m.max; full || err != nil {
		if !full || err != ErrFull {
			m.t.Fatalf("reserve with %d live and %d waiting: %v", len(m.live), len(m.waiting), err)
		}
		return
	}
	if e, ok := m.table.At(h); !ok || e.ID != s.ID {
		m.t.Fatalf("reserved %x is %+v", h, e)
	}
	a := &modelAllocation{spec: s, handle: h}
	m.live = append(m.live, a)
	m.ids[s.ID] = a
}

func (m *model) bind(a *modelAllocation, ep endpoint.Endpoint) {
	m.t.Helper()
	var want Handle
	if owner := m.owners[ep]; owner != nil && owner != a {
		want = owner.handle
		owner.endpoint, owner.nextHop = endpoint.Endpoint{}, 0
	}
	if a.endpoint != ep {
		a.nextHop = 0
	}
	delete(m.owners, a.endpoint)
	a.endpoint, m.owners[ep] = ep, a
	if got := m.table.Bind(a.handle, ep); got != want {
		m.t.Fatalf("bind of %x displaced %x, want %x", a.handle, got, want)
	}
}

func (m *model) mark(a *modelAllocation, y int) {
	switch flags := Flags(y >> 2 & 31); y % 3 {
	case 0:
		m.table.RecordBind(a.handle, uint16(y))
		a.flags, a.nonce = a.flags|EverBound, uint16(y)
	case 1:
		m.table.SetFlags(a.handle, flags)
		a.flags |= flags
	case 2:
		m.table.ClearFlags(a.handle, flags)
		a.flags &^= flags
	}
}

func (m *model) link(joiner, host *modelAllocation) {
	if joiner.spec.Role != RoleJoiner || host.spec.Role != RoleHost || joiner.host != nil && !joiner.host.ended {
		return
	}
	m.table.Link(joiner.handle, host.handle)
	m.linkings++
	joiner.host, joiner.linked = host, m.linkings
	m.links++
}

func (m *model) unlink(a *modelAllocation) {
	m.t.Helper()
	want := a.host != nil && !a.host.ended
	if want {
		m.links--
	}
	a.host = nil
	if got := m.table.Unlink(a.handle); got != want {
		m.t.Fatalf("unlink of %x: %v, want %v", a.handle, got, want)
	}
}

func (m *model) end(i int) {
	m.t.Helper()
	a := m.live[i]
	want := a.entry()
	if a.host != nil && !a.host.ended {
		m.links--
	}
	for _, b := range m.live {
		if b.host == a {
			m.links--
		}
	}
	m.live[i] = m.live[len(m.live)-1]
	m.live = m.live[:len(m.live)-1]
	delete(m.ids, a.spec.ID)
	delete(m.owners, a.endpoint)
	a.ended = true
	if got, ok := m.table.End(a.handle); !ok || got != want {
		m.t.Fatalf("end of %+v: %+v, %v", want, got, ok)
	}
	m.waiting = append(m.waiting, a.handle)
	m.stale = append(m.stale[max(0, len(m.stale)-40):], a)
}

func (m *model) recycle(x int) {
	if len(m.waiting) == 0 {
		return
	}
	i := x % len(m.waiting)
	m.table.Recycle(m.waiting[i])
	m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
}

// check compares everything that a reader can ask; of all pairs of peers only every stride-th.
func (m *model) check(stride int) {
	m.t.Helper()
	if a, b, l := m.table.Counts(); a != len(m.live) || b != len(m.owners) || l != m.links {
		m.t.Fatalf("%d, %d, %d, want %d live, %d bound, %d links", a, b, l, len(m.live), len(m.owners), m.links)
	}
	for i, a := range m.live {
		m.checkLive(a)
		e := a.entry()
		for j := i % stride; j < len(m.live); j += stride {
			b := m.live[j]
			if got, ok := peerOf(m.table, &e, b.spec.ID); ok != linked(a, b) || ok && got != b.entry() {
				m.t.Fatalf("peer %+v of %+v: %+v, %v", b.entry(), e, got, ok)
			}
		}
	}
	for i := range m.room {
		if e, ok := byEndpoint(m.table, testEndpoint(i)); ok != (m.owners[testEndpoint(i)] != nil) {
			m.t.Fatalf("%v leads to %+v, %v", testEndpoint(i), e, ok)
		}
	}
	for _, a := range m.stale {
		if e, ok := m.table.At(a.handle); ok {
			m.t.Fatalf("stale %x leads to %+v", a.handle, e)
		}
		if e, ok := m.table.ByID(a.spec.ID); ok {
			m.t.Fatalf("id of stale %x leads to %+v", a.handle, e)
		}
		if slot, ok := findShared(m.table, a.spec.ID); ok {
			m.t.Fatalf("the shared lines lead from stale %x to %d", a.handle, slot)
		}
	}
}

func (m *model) checkLive(a *modelAllocation) {
	m.t.Helper()
	want := a.entry()
	if e, ok := m.table.ByID(a.spec.ID); !ok || e != want {
		m.t.Fatalf("by id %+v, %v, want %+v", e, ok, want)
	}
	if e, ok := m.table.At(a.handle); !ok || e != want {
		m.t.Fatalf("by handle %+v, %v, want %+v", e, ok, want)
	}
	if nextHop := m.table.NextHop(a.handle); nextHop != a.nextHop {
		m.t.Fatalf("next hop %d to %+v, want %d", nextHop, want, a.nextHop)
	}
	if slot, ok := findShared(m.table, a.spec.ID); !ok || slot != a.handle.slot() {
		m.t.Fatalf("the shared lines lead from %+v to %d, %v", want, slot, ok)
	}
	if !a.endpoint.IsZero() {
		if e, ok := byEndpoint(m.table, a.endpoint); !ok || e != want {
			m.t.Fatalf("by endpoint %+v, %v, want %+v", e, ok, want)
		}
	}
	links := uint16(0)
	if a.spec.Role == RoleHost {
		var all []*modelAllocation
		for _, b := range m.live {
			if b.host == a {
				links++
				all = append(all, b)
			}
		}
		slices.SortFunc(all, func(a, b *modelAllocation) int { return cmp.Compare(a.linked, b.linked) })
		handles := slices.Collect(m.table.LinkedJoiners(a.handle))
		if !slices.EqualFunc(handles, all, func(h Handle, b *modelAllocation) bool { return h == b.handle }) {
			m.t.Fatalf("%x are linked to %+v, want %d others", handles, want, links)
		}
	}
	if got := m.table.Account(a.handle); got.Links != links || got.Match != a.spec.Match ||
		m.table.Tenant(a.handle) != a.spec.Tenant || got.MaxConnections != a.spec.MaxConnections {
		m.t.Fatalf("account of %+v: %+v, want %d links", want, *got, links)
	}
}

// TestTableModel: the small table is full most of the time, so that slots are reused; the large one
// grows.
func TestTableModel(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	for _, c := range []struct {
		name                        string
		max, endpoints, steps, each int
		ops                         []byte // drawn from, so that some come more often
	}{
		{"small", 12, 8, 20_000, 1, []byte{0, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9}},
		{"two", 2, 2, 5_000, 1, []byte{0, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9}},
		{"large", 6000, 5000, 24_000, 6000, []byte{0, 0, 0, 0, 2, 2, 4, 4, 5, 6, 7, 8, 9}},
	} {
		if testkit.RaceEnabled {
			c.steps /= 4 // There is one goroutine: the detector finds nothing here.
		}
		t.Run(c.name, func(t *testing.T) {
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			m := newModel(t, c.max, c.endpoints)
			for i := range c.steps {
				m.step(c.ops[r.IntN(len(c.ops))], r.IntN(1<<20), r.IntN(1<<20))
				if i%c.each == c.each-1 {
					m.check(1 + c.max/20)
				}
			}
			if t.Logf("%d born, %d live", m.born, len(m.live)); m.born < c.steps/8 {
				t.Error("too few were reserved for a test")
			}
			for len(m.live) > 0 {
				m.end(0)
			}
			m.check(1)
		})
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 2, 0, 1, 2, 1, 1, 4, 1, 0, 6, 0, 0, 7, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 2, 0, 0, 8, 0, 33, 8, 0, 13, 8, 0, 5, 6, 0, 0, 7, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 1, 0, 0, 0, 0, 4, 0, 1, 6, 1, 0, 5, 0, 0, 6, 0, 0, 7, 1, 0, 7, 0, 0, 1, 1, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := newModel(t, 4, 3)
		for ; len(ops) >= 3; ops = ops[3:] {
			m.step(ops[0], int(ops[1]), int(ops[2]))
			m.check(1)
		}
	})
}
