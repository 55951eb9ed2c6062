package table

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// testID returns the n-th of a row of ids that look as random as real ones.
func testID(n int) (id proto.AllocationID) {
	binary.LittleEndian.PutUint64(id[:8], (uint64(n)+1)*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(id[8:], (uint64(n)+1)*0xBF58476D1CE4E5B9)
	return id
}

// testEndpoint returns the n-th of a row of endpoints: 16 ports of each of a
// row of IPv4 addresses, as from behind a carrier's translator.
func testEndpoint(n int) endpoint.Endpoint {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24|uint32(n/16))
	return endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom4(a), uint16(40_000+n%16)), 0, 0)
}

func bind(t testing.TB, table *Table, s Spec, ep endpoint.Endpoint) Handle {
	t.Helper()
	h := reserve(t, table, s)
	if displaced := table.Bind(h, ep); displaced != 0 {
		t.Fatalf("%v was bound to %x", ep, displaced)
	}
	return h
}

func byEndpoint(table *Table, ep endpoint.Endpoint) (e Entry, ok bool) {
	if !table.FindByEndpoint(ep, &e) {
		return Entry{}, false
	}
	return e, true
}

func peerOf(table *Table, from *Entry, to proto.AllocationID) (e Entry, ok bool) {
	if !table.FindPeer(from, &to, &e) {
		return Entry{}, false
	}
	return e, true
}

func at(t testing.TB, table *Table, id proto.AllocationID) Entry {
	t.Helper()
	e, ok := table.ByID(id)
	if !ok {
		t.Fatalf("%v is not in the table", id)
	}
	return e
}

func reserve(t testing.TB, table *Table, s Spec) Handle {
	t.Helper()
	h, err := table.Reserve(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func wantCounts(t testing.TB, table *Table, allocations, bound, links int) {
	t.Helper()
	if a, b, l := table.Counts(); a != allocations || b != bound || l != links {
		t.Errorf("%d allocations, %d bound, %d links, want %d, %d, %d", a, b, l, allocations, bound, links)
	}
}

func TestTableReserve(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	s := Spec{
		ID: testID(1), Role: RoleHost, Match: testID(1), Player: [16]byte{7}, Tenant: 5,
		Epoch: 2900, MaxConnections: 8,
	}
	h, err := table.Reserve(s, 42)
	if err != nil {
		t.Fatal(err)
	}
	want := Entry{Handle: h, ID: s.ID, Role: RoleHost}
	if e := at(t, table, s.ID); e != want {
		t.Errorf("by id %+v, want %+v", e, want)
	}
	if e, ok := table.At(h); !ok || e != want {
		t.Errorf("by handle %+v, %v, want %+v", e, ok, want)
	}
	account := Account{
		Match: s.Match, ReservedAt: 42, Epoch: 2900, MaxConnections: 8,
	}
	if a := table.Account(h); *a != account || table.AccountAt(h.Slot()) != a {
		t.Errorf("account %+v, want %+v", *a, account)
	}
	if received, active := table.LastSeen(h); received != 42 || active != 42 {
		t.Errorf("timestamps %d, %d, want 42", received, active)
	}
	if got := table.HandleAt(h.Slot()); got != h {
		t.Errorf("handle of the slot %x, want %x", got, h)
	}
	wantCounts(t, table, 1, 0, 0)
	for name, ok := range map[string]bool{
		"zero endpoint": second(byEndpoint(table, endpoint.Endpoint{})),
		"zero id":       second(table.ByID(proto.AllocationID{})),
		"zero handle":   second(table.At(0)),
		"another id":    second(table.ByID(testID(2))),
	} {
		if ok {
			t.Errorf("%s leads to an allocation", name)
		}
	}
}

func second(_ Entry, ok bool) bool { return ok }

func TestTableBind(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	a, b := reserve(t, table, Spec{ID: testID(1), Role: RoleHost}), reserve(t, table, Spec{ID: testID(2), Role: RoleJoiner})
	table.Link(b, a)
	steps := []struct {
		name      string
		h         Handle
		to        endpoint.Endpoint
		displaced Handle
		ofA, ofB  endpoint.Endpoint
	}{
		{"first", a, testEndpoint(1), 0, testEndpoint(1), endpoint.Endpoint{}},
		{"again", a, testEndpoint(1), 0, testEndpoint(1), endpoint.Endpoint{}},
		{"the other", b, testEndpoint(2), 0, testEndpoint(1), testEndpoint(2)},
		{"move", a, testEndpoint(3), 0, testEndpoint(3), testEndpoint(2)},
		{"take over", b, testEndpoint(3), a, endpoint.Endpoint{}, testEndpoint(3)},
		{"take back", a, testEndpoint(3), b, testEndpoint(3), endpoint.Endpoint{}},
	}
	for _, s := range steps {
		if got := table.Bind(s.h, s.to); got != s.displaced {
			t.Errorf("%s: displaced %x, want %x", s.name, got, s.displaced)
		}
		bound := 0
		for _, want := range []Entry{
			{Handle: a, ID: testID(1), Role: RoleHost, Endpoint: s.ofA},
			{Handle: b, ID: testID(2), Role: RoleJoiner, Endpoint: s.ofB, Link: a},
		} {
			if e := at(t, table, want.ID); e != want {
				t.Errorf("%s: %+v, want %+v", s.name, e, want)
			}
			if want.Endpoint.IsZero() {
				continue
			}
			bound++
			if e, ok := byEndpoint(table, want.Endpoint); !ok || e != want {
				t.Errorf("%s: %v leads to %+v, %v, want %+v", s.name, want.Endpoint, e, ok, want)
			}
		}
		wantCounts(t, table, 2, bound, 1)
	}
	for _, left := range []int{1, 2} {
		if e, ok := byEndpoint(table, testEndpoint(left)); ok {
			t.Errorf("%v, which was left, still leads to %+v", testEndpoint(left), e)
		}
	}
}

func TestTablePeer(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	var h [5]Handle
	for i, role := range []Role{RoleHost, RoleHost, RoleJoiner, RoleJoiner, RoleJoiner} {
		h[i] = reserve(t, table, Spec{ID: testID(i), Role: role})
	}
	table.Link(h[2], h[0])
	table.Link(h[3], h[0])
	table.Link(h[4], h[1])
	check := func(pairs ...[2]int) {
		t.Helper()
		for from := range h {
			for to := range h {
				want := false
				for _, p := range pairs {
					want = want || p == [2]int{from, to} || p == [2]int{to, from}
				}
				e := at(t, table, testID(from))
				peer, ok := peerOf(table, &e, testID(to))
				if ok != want || ok && peer != at(t, table, testID(to)) {
					t.Errorf("peer %d of %d: %+v, %v, want %v", to, from, peer, ok, want)
				}
			}
		}
		wantCounts(t, table, len(h), 0, len(pairs))
	}
	check([2]int{2, 0}, [2]int{3, 0}, [2]int{4, 1})
	if !table.Unlink(h[3]) || table.Unlink(h[3]) {
		t.Error("a link closes once")
	}
	check([2]int{2, 0}, [2]int{4, 1})
	table.Link(h[3], h[1])
	check([2]int{2, 0}, [2]int{4, 1}, [2]int{3, 1})
	if got := table.Account(h[1]).Links; got != 2 {
		t.Errorf("%d links of the second host, want 2", got)
	}
}

func TestContract4SlotIsNotReusedBeforeRecycle(t *testing.T) {
	t.Parallel()
	table := NewTable(3)
	var h [3]Handle
	for i := range h {
		h[i] = reserve(t, table, Spec{ID: testID(i), Role: RoleHost})
	}
	full := func(when string) {
		t.Helper()
		if _, err := table.Reserve(Spec{ID: testID(9), Role: RoleHost}, 1); err != ErrFull {
			t.Errorf("%s: %v, want ErrFull", when, err)
		}
		if _, ok := table.ByID(testID(9)); ok {
			t.Errorf("%s: the refused allocation is in the table", when)
		}
	}
	full("full")
	if _, ok := table.End(h[1]); !ok {
		t.Fatal("not ended")
	}
	wantCounts(t, table, 2, 0, 0)
	full("a slot waits for grace")
	table.Recycle(h[1])
	fresh := reserve(t, table, Spec{ID: testID(3), Role: RoleJoiner})
	if fresh.slot() != h[1].slot() || fresh.generation() == h[1].generation() {
		t.Errorf("reused as %x after %x, want the same slot with another generation", fresh, h[1])
	}
	full("full again")
}

func TestContract4StaleHandlesNeverResolve(t *testing.T) {
	t.Parallel()
	table := NewTable(2)
	joiner := reserve(t, table, Spec{ID: testID(0), Role: RoleJoiner})
	var stale []Handle
	for i := 1; i <= 100; i++ {
		host := bind(t, table, Spec{ID: testID(i), Role: RoleHost}, testEndpoint(i))
		linked := at(t, table, testID(0))
		if peer, ok := peerOf(table, &linked, testID(i)); ok {
			t.Fatalf("the link to an ended host leads to %+v", peer)
		}
		if table.Unlink(joiner) {
			t.Fatal("the link to an ended host could be closed")
		}
		table.Link(joiner, host)
		for _, h := range stale {
			if e, ok := table.At(h); ok || e != (Entry{}) {
				t.Fatalf("stale %x leads to %+v", h, e)
			}
			if e, ok := table.End(h); ok {
				t.Fatalf("stale %x ended %+v", h, e)
			}
		}
		if e, ok := table.End(host); !ok || e.Handle != host || e.Endpoint != testEndpoint(i) || e.ID != testID(i) {
			t.Fatalf("end of %x: %+v, %v", host, e, ok)
		}
		if _, ok := table.At(host); ok {
			t.Fatalf("%x is there after its end", host)
		}
		wantCounts(t, table, 1, 0, 0)
		table.Recycle(host)
		stale = append(stale, host)
	}
}

// Generations of a slot start again after 2^32 at 1: with 0 a handle could be the zero Handle.
func TestContract4GenerationSkipsZero(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	first := reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
	if first.generation() != 1 {
		t.Errorf("first generation %d, want 1", first.generation())
	}
	table.End(first)
	table.identity(first.slot()).setMeta(1<<32-2, RoleNone)
	table.Recycle(first)
	last := reserve(t, table, Spec{ID: testID(2), Role: RoleHost})
	if last.generation() != 1<<32-1 {
		t.Fatalf("generation %d, want the last one", last.generation())
	}
	table.End(last)
	table.Recycle(last)
	next := reserve(t, table, Spec{ID: testID(3), Role: RoleHost})
	if next.generation() != 1 || next == 0 {
		t.Errorf("after the last generation comes %d, want 1", next.generation())
	}
	for _, h := range []Handle{0, last, makeHandle(0, 0)} {
		if e, ok := table.At(h); ok {
			t.Errorf("stale %x leads to %+v", h, e)
		}
	}
	if e := at(t, table, testID(3)); e.Handle != next || e.Role != RoleHost {
		t.Errorf("%+v, want %x", e, next)
	}
}

// TestContract5EndClosesAllLinksAtOnce: one store into the host's own record closes all links.
func TestContract5EndClosesAllLinksAtOnce(t *testing.T) {
	t.Parallel()
	const joiners = 100
	table := NewTable(0)
	host := bind(t, table, Spec{ID: testID(0), Role: RoleHost}, testEndpoint(0))
	sequences := make(map[Handle]uint32)
	for i := 1; i <= joiners; i++ {
		h := bind(t, table, Spec{ID: testID(i), Role: RoleJoiner}, testEndpoint(i))
		table.Link(h, host)
		sequences[h] = table.identity(h.slot()).state.Load()
	}
	wantCounts(t, table, joiners+1, joiners+1, joiners)
	table.End(host)
	wantCounts(t, table, joiners, joiners, 0)
	for i := 1; i <= joiners; i++ {
		e := at(t, table, testID(i))
		if peer, ok := peerOf(table, &e, testID(0)); ok {
			t.Errorf("joiner %d still has its host: %+v", i, peer)
		}
		if got := table.identity(e.Handle.slot()).state.Load(); got != sequences[e.Handle] {
			t.Errorf("the record of joiner %d was written", i)
		}
	}
	// The next owner of the slot inherits none of its joiners.
	table.Recycle(host)
	next := reserve(t, table, Spec{ID: testID(joiners + 1), Role: RoleHost})
	if next.slot() != host.slot() {
		t.Fatalf("the slot %d was not reused", host.slot())
	}
	e := at(t, table, testID(joiners+1))
	for i := 1; i <= joiners; i++ {
		if _, ok := peerOf(table, &e, testID(i)); ok {
			t.Errorf("the next of the slot is linked to joiner %d", i)
		}
	}
	if got := table.Account(next).Links; got != 0 {
		t.Errorf("the next begins with %d links", got)
	}
}

func TestTableEndOfJoiner(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	for i := 1; i <= 2; i++ {
		table.Link(bind(t, table, Spec{ID: testID(i), Role: RoleJoiner}, testEndpoint(i)), host)
	}
	table.End(at(t, table, testID(1)).Handle)
	wantCounts(t, table, 2, 1, 1)
	if got := table.Account(host).Links; got != 1 {
		t.Errorf("%d links of the host, want 1", got)
	}
	e := at(t, table, testID(0))
	if second(peerOf(table, &e, testID(1))) || !second(peerOf(table, &e, testID(2))) {
		t.Error("the host must keep joiner 2 and lose joiner 1")
	}
	if _, ok := byEndpoint(table, testEndpoint(1)); ok {
		t.Error("an ended allocation has an endpoint")
	}
}

func TestTableBinding(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	h := bind(t, table, Spec{ID: testID(1), Role: RoleJoiner}, testEndpoint(1))
	table.Link(h, host)
	want := Entry{Handle: h, Link: host, ID: testID(1), Role: RoleJoiner, Endpoint: testEndpoint(1)}
	for i, s := range []struct {
		do    func()
		flags Flags
		nonce uint16
	}{
		{func() {}, 0, 0},
		{func() { table.RecordBind(h, 7) }, EverBound, 7},
		{func() { table.SetFlags(h, BindConfirmed) }, EverBound | BindConfirmed, 7},
		{func() { table.SetFlags(h, BindConfirmed) }, EverBound | BindConfirmed, 7},
		{func() { table.SetFlags(h, ExpiryDeferred|Recovered) }, EverBound | BindConfirmed | ExpiryDeferred | Recovered, 7},
		{func() { table.ClearFlags(h, BindConfirmed) }, EverBound | ExpiryDeferred | Recovered, 7},
		{func() { table.ClearFlags(h, BindConfirmed) }, EverBound | ExpiryDeferred | Recovered, 7},
		{func() { table.RecordBind(h, 65_535) }, EverBound | ExpiryDeferred | Recovered, 65_535},
		{func() { table.RecordBind(h, 0) }, EverBound | ExpiryDeferred | Recovered, 0},
		{func() { table.ClearFlags(h, EverBound|ExpiryDeferred) }, Recovered, 0},
		{func() { table.SetFlags(host, EverBound|BindConfirmed) }, Recovered, 0}, // another one's
		{func() { table.Unlink(h); table.Link(h, host) }, Recovered, 0},
	} {
		s.do()
		want.Flags, want.Nonce = s.flags, s.nonce
		if e := at(t, table, testID(1)); e != want {
			t.Errorf("step %d: %+v, want %+v", i, e, want)
		}
		if e, ok := byEndpoint(table, testEndpoint(1)); !ok || e != want {
			t.Errorf("step %d: by endpoint %+v, %v, want %+v", i, e, ok, want)
		}
	}
	for _, c := range []struct {
		has, want Flags
		is        bool
	}{
		{0, 0, true}, {0, BindConfirmed, false}, {BindConfirmed, BindConfirmed, true}, {BindConfirmed, BindConfirmed | EverBound, false},
		{BindConfirmed | EverBound | Recovered, BindConfirmed | EverBound, true},
	} {
		if e := (Entry{Flags: c.has}); e.Is(c.want) != c.is {
			t.Errorf("%b is %b: %v, want %v", c.has, c.want, !c.is, c.is)
		}
	}
}

func TestTableBindingEnds(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	h := bind(t, table, Spec{ID: testID(1), Role: RoleHost}, testEndpoint(1))
	table.RecordBind(h, 9)
	table.SetFlags(h, BindConfirmed|ExpiryDeferred|Recovered)
	if e, ok := table.End(h); !ok || e.Nonce != 9 || !e.Is(EverBound|BindConfirmed|ExpiryDeferred|Recovered) {
		t.Errorf("End returns %+v, %v", e, ok)
	}
	table.SetFlags(h, BindConfirmed)
	table.ClearFlags(h, EverBound)
	table.Recycle(h)
	next := reserve(t, table, Spec{ID: testID(2), Role: RoleJoiner})
	table.SetFlags(h, BindConfirmed) // the stale handle
	if e := at(t, table, testID(2)); e != (Entry{Handle: next, ID: testID(2), Role: RoleJoiner}) {
		t.Errorf("a fresh allocation is %+v", e)
	}
}

// TestContract2BindingsAreWhole: no reader sees an allocation that moves confirmed at an endpoint
// with the nonce of another.
func TestContract2BindingsAreWhole(t *testing.T) {
	t.Parallel()
	moves := 60_000
	if testkit.RaceEnabled || testing.Short() {
		moves = 15_000
	}
	table := NewTable(0)
	h := reserve(t, table, Spec{ID: testID(0), Role: RoleJoiner})
	var done atomic.Bool
	var confirmed atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for last := uint16(0); !done.Load(); {
				e, ok := table.ByID(testID(0))
				if !ok || e.Handle != h || e.Role != RoleJoiner {
					t.Errorf("found %+v, %v", e, ok)
					return
				}
				if e.Nonce < last {
					t.Errorf("nonce %d seen after %d", e.Nonce, last)
					return
				}
				last = e.Nonce
				if e.Is(BindConfirmed) {
					confirmed.Add(1)
					if !e.Is(EverBound) || e.Endpoint != testEndpoint(int(e.Nonce)) {
						t.Errorf("confirmed with nonce %d at %v", e.Nonce, e.Endpoint)
						return
					}
				}
			}
		})
	}
	for n := 1; n <= moves; n++ {
		table.ClearFlags(h, BindConfirmed)
		table.RecordBind(h, uint16(n))
		table.Bind(h, testEndpoint(n))
		table.SetFlags(h, BindConfirmed)
		for confirmed.Load() == 0 && !t.Failed() { // the readers have begun
			continue
		}
	}
	done.Store(true)
	wg.Wait()
}

func TestTableDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	table := NewTable(0)
	host := bind(t, table, Spec{ID: testID(0), Role: RoleHost}, testEndpoint(0))
	joiner := bind(t, table, Spec{ID: testID(1), Role: RoleJoiner}, testEndpoint(1))
	single := bind(t, table, Spec{ID: testID(2), Role: RoleJoiner}, testEndpoint(2))
	table.Link(joiner, host)
	hostEntry, joinerEntry := at(t, table, testID(0)), at(t, table, testID(1))
	now, moves, quota := int64(60_000), 0, NewQuota(1000, 512<<10)
	for name, do := range map[string]func(){
		"ByEndpoint":       func() { byEndpoint(table, testEndpoint(0)) },
		"ByEndpoint, miss": func() { byEndpoint(table, testEndpoint(9)) },
		"ByID":             func() { table.ByID(testID(0)) },
		"ByID, miss":       func() { table.ByID(testID(9)) },
		"At":               func() { table.At(host) },
		"Peer of joiner":   func() { peerOf(table, &joinerEntry, testID(0)) },
		"Peer of host":     func() { peerOf(table, &hostEntry, testID(1)) },
		"RecordReceive":    func() { now++; table.Activity(host).RecordReceive(Tick(now)) },
		"RecordNotice":     func() { now++; table.Activity(host).RecordNotice(Tick(now)) },
		"RecordMessage":    func() { now++; e, _ := table.At(host); table.RecordMessage(&e, Tick(now), 0) },
		"TakeNotConnected": func() { now += 200; table.TakeNotConnected(host, testID(9), now) },
		"TakeMismatch":     func() { now += 200; table.TakeMismatch(host, Rate{IntervalMicros: 1000, Burst: 1}, now) },
		"TakeQuota":        func() { now++; table.Activity(host).TakeQuota(quota, 100, now) },
		"RecordRelay":      func() { now++; table.Activity(host).RecordRelay(Tick(now)) },
		"AllowRelay":       func() { now++; table.AllowRelay(host, 60, Tick(now)) },
		"validation": func() {
			table.BeginPath(host, UnvalidatedPath(100))
			table.AllowRelay(host, 60, Tick(now))
			e, _ := table.At(host)
			table.RecordMessage(&e, Tick(now), 0)
		},
		"RecordBind and flags": func() {
			table.RecordBind(host, 5)
			table.SetFlags(host, BindConfirmed)
			table.ClearFlags(host, BindConfirmed)
		},
		"Link and Unlink": func() { table.Link(single, host); table.Unlink(single) },
		"Bind, moving":    func() { moves++; table.Bind(single, testEndpoint(2+moves%2)) },
		"Bind, taking over": func() {
			table.Bind(host, testEndpoint(1))
			table.Bind(joiner, testEndpoint(0))
			table.Bind(host, testEndpoint(0))
			table.Bind(joiner, testEndpoint(1))
		},
		"Reserve to Recycle": func() {
			h, _ := table.Reserve(Spec{ID: testID(9), Role: RoleHost}, 1)
			table.Bind(h, testEndpoint(9))
			table.End(h)
			table.Recycle(h)
		},
	} {
		if n := testing.AllocsPerRun(1000, do); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
