package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// listingStep is how many slots control looks at per question: some 30 µs,
	// so that a listing of a million delays nobody.
	listingStep = 256
	// maxListing bounds a page.
	maxListing = 1000
)

// Allocation is what an operator sees of an allocation. It holds the player's
// address, and neither key nor connection data.
type Allocation struct {
	ID    proto.AllocationID
	Match proto.AllocationID // id of the host
	Role  alloc.Role
	// Tenant is alloc.Tenant.Hash; Name is empty where it is not known, see
	// [Usage].
	Tenant uint64
	Name   alloc.Tenant
	// Kind is the way by which its owner is reached, KindNone while it is not
	// bound. Endpoint is its address; not valid for DTLS and WebSocket, whose
	// sessions have none of their own.
	Kind     endpoint.Kind
	Endpoint netip.AddrPort
	// EverBound: it was bound at some time.
	EverBound bool
	// Recovered: it came back after a restart, at which its Age begins.
	Recovered bool
	// Age is the time since it was reserved, Heard since it last sent, Active
	// since it last sent or received. All count in units of 250 ms.
	Age, Heard, Active time.Duration
	// Links are the open links of a host, or 1 for a joiner that has its.
	Links int
	// MaxConnections is how many players a host asked for.
	MaxConnections int
	// LargeDrops counts the RELAYs to its owner that were dropped, since they were
	// larger than the owner's way carries; see DropReceiverSize.
	LargeDrops uint32
}

// Filter says which allocations are listed. Zero fields let all through.
type Filter struct {
	Tenant uint64
	Role   alloc.Role
	// Match is the id of a host: it and the joiners of its match.
	Match proto.AllocationID
	// Bound lists those that have an endpoint, Unbound those that have none.
	Bound, Unbound bool
	Kind           endpoint.Kind
}

// Cursor is where a listing goes on; 0 is its begin, and its end.
type Cursor uint32

// Allocations lists live allocations, limit at most, of which 0 and all beyond
// 1,000 mean 1,000. It returns where the next page begins, 0 if there is none.
// Those that live throughout a listing are in it exactly once, others may be.
// Error: alloc.ErrUnavailable when the relay does not run.
func (s *Server) Allocations(ctx context.Context, f Filter, at Cursor, limit int) ([]Allocation, Cursor, error) {
	var page []Allocation
	if limit <= 0 || limit > maxListing {
		limit = maxListing
	}
	for {
		var step listed // New each time: control may still write to it when the context has ended.
		if err := s.ask(ctx, func(c *control) { step = c.list(&f, at, limit-len(page)) }); err != nil {
			return nil, 0, err
		}
		page, at = append(page, step.found...), step.next
		if at == 0 || len(page) == limit {
			return page, at, nil
		}
	}
}

// listed is what control found in one step, and where the next one begins; 0:
// there is none.
type listed struct {
	found []Allocation
	next  Cursor
}

// Allocation tells about one. Errors: alloc.ErrNotFound, alloc.ErrUnavailable.
func (s *Server) Allocation(ctx context.Context, id proto.AllocationID) (Allocation, error) {
	var found []Allocation
	err := s.ask(ctx, func(c *control) {
		if e, ok := c.shared.table.ByID(id); ok {
			found = append(found, c.describe(&e, tick(c.shared.clock())))
		}
	})
	switch {
	case err != nil:
		return Allocation{}, err
	case len(found) == 0:
		return Allocation{}, alloc.ErrNotFound
	}
	return found[0], nil
}

// list looks at a step of slots from at on and returns at most room of those
// that f lets through.
func (c *control) list(f *Filter, at Cursor, room int) (l listed) {
	now, slots := tick(c.shared.clock()), Cursor(c.shared.table.Slots())
	at = min(at, slots) // A cursor may come from anywhere.
	for end := min(at+listingStep, slots); at < end && len(l.found) < room; at++ {
		e, ok := c.shared.table.At(c.shared.table.HandleAt(uint32(at)))
		if ok && c.passes(f, &e) {
			l.found = append(l.found, c.describe(&e, now))
		}
	}
	if at < slots {
		l.next = at
	}
	return l
}

func (c *control) passes(f *Filter, e *table.Entry) bool {
	a, bound := c.shared.table.Account(e.Handle), !e.Endpoint.IsZero()
	switch {
	case f.Tenant != 0 && a.Tenant != f.Tenant,
		f.Role != alloc.RoleNone && alloc.Role(e.Role) != f.Role,
		f.Match != proto.AllocationID{} && a.Match != f.Match,
		f.Bound && !bound, f.Unbound && bound,
		f.Kind != endpoint.KindNone && e.Endpoint.Kind() != f.Kind:
		return false
	}
	return true
}

func (c *control) describe(e *table.Entry, now table.Tick) Allocation {
	a := c.shared.table.Account(e.Handle)
	heard, active := c.shared.table.Activity(e.Handle).Stamps()
	d := Allocation{
		ID: e.ID, Match: a.Match, Role: alloc.Role(e.Role), Tenant: a.Tenant,
		Kind: e.Endpoint.Kind(), Endpoint: e.Endpoint.AddrPort(),
		EverBound: e.Is(table.EverBound), Recovered: e.Is(table.Rebuilt),
		Age: since(a.Reserved, now), Heard: since(heard, now), Active: since(active, now),
		Links: int(a.Links), MaxConnections: int(a.MaxConnections),
		LargeDrops: c.shared.table.LargeMessages(e.Handle).Drops(),
	}
	if p := c.project(e.Handle); p.Tenant == a.Tenant {
		d.Name = p.Name
	}
	if e.Role == table.RoleJoiner {
		if _, linked := c.shared.table.At(e.Link); linked {
			d.Links = 1
		}
	}
	return d
}

// since returns the time from then to now. A worker's clock may be ahead.
func since(then, now table.Tick) time.Duration {
	if then >= now {
		return 0
	}
	return time.Duration(now-then) * table.TickMillis * time.Millisecond
}
