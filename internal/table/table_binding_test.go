package table

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestTableBinding: what workers know of BINDs is set and cleared one flag at a
// time, and touches nothing else of the record.
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

// TestTableBindingEnds: a slot's next owner has neither flags nor nonce, and
// what ended takes none.
func TestTableBindingEnds(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	h := bind(t, table, Spec{ID: testID(1), Role: RoleHost}, testEndpoint(1))
	table.RecordBind(h, 9)
	table.SetFlags(h, BindConfirmed|ExpiryDeferred|Recovered)
	if e, ok := table.End(h); !ok || e.Nonce != 9 || !e.Is(EverBound|BindConfirmed|ExpiryDeferred|Recovered) {
		t.Errorf("the end of it tells %+v, %v", e, ok)
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

// TestContract2BindingsAreWhole: flags, nonce and endpoint are of one snapshot.
// While an allocation moves, and only between two moves is it told, no reader
// sees it told at an endpoint with the nonce of another.
func TestContract2BindingsAreWhole(t *testing.T) {
	t.Parallel()
	moves := 60_000
	if testkit.RaceEnabled || testing.Short() {
		moves = 15_000
	}
	table := NewTable(0)
	h := reserve(t, table, Spec{ID: testID(0), Role: RoleJoiner})
	var done atomic.Bool
	var told atomic.Int64
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
					told.Add(1)
					if !e.Is(EverBound) || e.Endpoint != testEndpoint(int(e.Nonce)) {
						t.Errorf("told with nonce %d at %v", e.Nonce, e.Endpoint)
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
		for told.Load() == 0 && !t.Failed() { // the readers have begun
			continue
		}
	}
	done.Store(true)
	wg.Wait()
}
