package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/proto"
)

// listAll goes through a listing page by page.
func listAll(t *testing.T, r *enginetest.Relay, f engine.Filter, limit int) (all []engine.Allocation) {
	t.Helper()
	var at engine.Cursor
	for {
		page, next, err := r.Allocations(t.Context(), f, at, limit)
		if err != nil {
			t.Fatal(err)
		}
		if limit > 0 && len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		all = append(all, page...)
		if next == 0 {
			return all
		}
		at = next
	}
}

// TestListing: more allocations than control looks at in one step, in pages of
// any size, each of them once.
func TestListing(t *testing.T) {
	t.Parallel()
	const hosts = 700
	r := enginetest.Start(t, engine.Config{BindTimeout: time.Hour})
	want := map[proto.AllocationID]bool{}
	for range hosts {
		want[r.Host("h", 3).ID] = true
	}
	for _, limit := range []int{0, 1000, 300, 256, 7} {
		seen := map[proto.AllocationID]int{}
		for _, a := range listAll(t, r, engine.Filter{}, limit) {
			seen[a.ID]++
			if a.Role != alloc.RoleHost || a.Match != a.ID || a.MaxConnections != 3 || a.Name != enginetest.Tenant ||
				a.Tenant != enginetest.Tenant.Hash() || a.EverBound || a.Recovered || a.Kind != endpoint.KindNone || a.Endpoint.IsValid() {
				t.Fatalf("%+v", a)
			}
		}
		if len(seen) != hosts {
			t.Errorf("limit %d: %d allocations, want %d", limit, len(seen), hosts)
		}
		for id, n := range seen {
			if n != 1 || !want[id] {
				t.Errorf("limit %d: %v is listed %d times", limit, id, n)
			}
		}
	}
	if page, next, err := r.Allocations(t.Context(), engine.Filter{}, 1<<32-1, 10); err != nil || len(page) != 0 || next != 0 {
		t.Errorf("beyond the end: %d, next %d, %v", len(page), next, err)
	}
	if page, next, err := r.Allocations(t.Context(), engine.Filter{Binding: engine.OnlyBound}, 0, 0); err != nil || len(page) != 0 || next != 0 {
		t.Errorf("nobody is bound: %d, next %d, %v", len(page), next, err)
	}
}

// TestListingFilters: a match and somebody else's host, seen through each
// filter.
func TestListingFilters(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	other := alloc.Tenant{Project: "other"}
	res, err := r.ReserveHost(t.Context(), alloc.HostRequest{Tenant: other, MaxConnections: 9})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		filter engine.Filter
		want   []proto.AllocationID
	}{
		"all":          {engine.Filter{}, []proto.AllocationID{host.Cred.ID, p.Cred.ID, res.ID}},
		"hosts":        {engine.Filter{Role: alloc.RoleHost}, []proto.AllocationID{host.Cred.ID, res.ID}},
		"joiners":      {engine.Filter{Role: alloc.RoleJoiner}, []proto.AllocationID{p.Cred.ID}},
		"match":        {engine.Filter{Match: host.Cred.ID}, []proto.AllocationID{host.Cred.ID, p.Cred.ID}},
		"players":      {engine.Filter{Match: host.Cred.ID, Role: alloc.RoleJoiner}, []proto.AllocationID{p.Cred.ID}},
		"bound":        {engine.Filter{Binding: engine.OnlyBound}, []proto.AllocationID{host.Cred.ID, p.Cred.ID}},
		"not bound":    {engine.Filter{Binding: engine.OnlyUnbound}, []proto.AllocationID{res.ID}},
		"tenant":       {engine.Filter{Tenant: other.Hash()}, []proto.AllocationID{res.ID}},
		"by UDP":       {engine.Filter{Kind: endpoint.KindUDP4}, []proto.AllocationID{host.Cred.ID, p.Cred.ID}},
		"by WebSocket": {engine.Filter{Kind: endpoint.KindWS}, nil},
	} {
		got := map[proto.AllocationID]bool{}
		for _, a := range listAll(t, r, c.filter, 0) {
			got[a.ID] = true
		}
		for _, id := range c.want {
			if !got[id] {
				t.Errorf("%s: %v is missing", name, id)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %d allocations, want %d", name, len(got), len(c.want))
		}
	}
	for _, id := range []proto.AllocationID{host.Cred.ID, p.Cred.ID} {
		page, next, err := r.Allocations(t.Context(), engine.Filter{ID: id}, 0, 0)
		if err != nil || len(page) != 1 || next != 0 {
			t.Fatalf("%v: %v, %d allocations, next %d", id, err, len(page), next)
		}
		if a := page[0]; a.ID != id || a.Links != 1 || !a.EverBound || a.Kind != endpoint.KindUDP4 || !a.Endpoint.Addr().IsLoopback() || a.Match != proto.AllocationID(host.Cred.ID) {
			t.Errorf("%+v", a)
		}
	}
}

// TestListingEnds: what does not live, and a relay that does not run.
func TestListingEnds(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{})
	if page, _, err := r.Allocations(t.Context(), engine.Filter{ID: proto.AllocationID{1}}, 0, 0); err != nil || len(page) != 0 {
		t.Errorf("an id without an allocation: %v, %v", page, err)
	}
	r.Stop()
	ctx := context.Background()
	_, _, err := r.Allocations(ctx, engine.Filter{}, 0, 0)
	_, err2 := r.Usage(ctx)
	for _, err := range []error{err, err2, r.End(ctx, proto.AllocationID{1}), r.Kick(ctx, proto.AllocationID{1}), r.SetMaxSeats(ctx, 1)} {
		if !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
	}
}
