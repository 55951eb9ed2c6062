package engine

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// listingStep is how many slots control reads per call: some 30 µs, so that a
	// listing of a million allocations does not delay players.
	listingStep = 256
	// maxListing is the most allocations of a page.
	maxListing = 1000
)

// Allocation describes a live allocation for an operator. It contains the player's
// address, but no key and no connection data.
type Allocation struct {
	ID    proto.AllocationID
	Match proto.AllocationID // id of the host
	Role  alloc.Role
	// Tenant is alloc.Tenant.Hash. Name is empty if it is not known, see [Usage].
	Tenant uint64
	Name   alloc.Tenant
	// Kind is the kind of its endpoint, KindNone while it is not bound. Endpoint is
	// its UDP address, and invalid for sessions of DTLS and WebSocket.
	Kind     Kind
	Endpoint netip.AddrPort
	// EverBound: a BIND of it was accepted.
	EverBound bool
	// Recovered: it came back after a restart, when its Age began.
	Recovered bool
	// Age is the time since it was reserved, SinceReceived since its owner last sent,
	// and SinceActive since its owner last sent or received, in steps of 250 ms.
	Age, SinceReceived, SinceActive time.Duration
	// Links is the number of open links; at most 1 for a joiner.
	Links int
	// MaxConnections is the number of joiners that a host requested.
	MaxConnections int
	// LargeDrops counts the RELAYs to its owner that were dropped because they were
	// larger than the owner's transport carries, see [DropReceiverSize].
	LargeDrops uint32
}

// Filter selects allocations. A zero field selects all.
type Filter struct {
	Tenant uint64
	Role   alloc.Role
	// ID selects one allocation.
	ID proto.AllocationID
	// Match is the id of a host: it and the joiners of its match.
	Match   proto.AllocationID
	Binding Binding
	Kind    Kind
}

// Binding selects allocations by whether they are bound to an endpoint.
type Binding uint8

const (
	AnyBinding  Binding = iota // bound or not
	OnlyBound                  // bound to an endpoint
	OnlyUnbound                // not bound: reserved only, or its endpoint was taken over
)

// Cursor is the position at which a listing continues; 0 is its beginning and its end.
type Cursor uint32

// Allocations returns a page of at most limit live allocations that match f, and the
// cursor of the next page, 0 if there is none. A limit of 0 or above 1,000 means 1,000.
// An allocation that is alive during all of a listing is in it exactly once. Error:
// alloc.ErrUnavailable if the relay does not run.
func (s *Server) Allocations(ctx context.Context, f Filter, at Cursor, limit int) ([]Allocation, Cursor, error) {
	var page []Allocation
	if limit <= 0 || limit > maxListing {
		limit = maxListing
	}
	for {
		var step listPage // New each time: control may still write to it when the context has ended.
		if err := s.onControl(ctx, func(c *control) { step = c.list(&f, at, limit-len(page)) }); err != nil {
			return nil, 0, err
		}
		page, at = append(page, step.found...), step.next
		if at == 0 || len(page) == limit {
			return page, at, nil
		}
	}
}

// listPage is the result of one step, and the cursor of the next one, 0 if there is
// none.
type listPage struct {
	found []Allocation
	next  Cursor
}

// list reads a step of slots from at on, and returns at most room allocations that match
// f.
func (c *control) list(f *Filter, at Cursor, room int) (l listPage) {
	now, slots := tick(c.shared.clock()), Cursor(c.shared.table.Slots())
	if f.ID != (proto.AllocationID{}) {
		if e, ok := c.shared.table.ByID(f.ID); ok && c.matches(f, &e) {
			l.found = append(l.found, c.describe(&e, now))
		}
		return l
	}
	at = min(at, slots) // A cursor may come from anywhere.
	for end := min(at+listingStep, slots); at < end && len(l.found) < room; at++ {
		e, ok := c.shared.table.At(c.shared.table.HandleAt(uint32(at)))
		if ok && c.matches(f, &e) {
			l.found = append(l.found, c.describe(&e, now))
		}
	}
	if at < slots {
		l.next = at
	}
	return l
}

func (c *control) matches(f *Filter, e *table.Entry) bool {
	a, bound := c.shared.table.Account(e.Handle), !e.Endpoint.IsZero()
	switch {
	case f.Tenant != 0 && a.Tenant != f.Tenant,
		f.Role != alloc.RoleNone && alloc.Role(e.Role) != f.Role,
		f.Match != proto.AllocationID{} && a.Match != f.Match,
		f.Binding == OnlyBound && !bound, f.Binding == OnlyUnbound && bound,
		f.Kind != endpoint.KindNone && e.Endpoint.Kind() != f.Kind:
		return false
	}
	return true
}

func (c *control) describe(e *table.Entry, now table.Tick) Allocation {
	a := c.shared.table.Account(e.Handle)
	received, active := c.shared.table.Activity(e.Handle).LastSeen()
	d := Allocation{
		ID: e.ID, Match: a.Match, Role: alloc.Role(e.Role), Tenant: a.Tenant,
		Kind: e.Endpoint.Kind(), Endpoint: e.Endpoint.AddrPort(),
		EverBound: e.Is(table.EverBound), Recovered: e.Is(table.Recovered),
		Age: since(a.ReservedAt, now), SinceReceived: since(received, now), SinceActive: since(active, now),
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

// since returns the time from then to now, not below zero: a worker's clock may be
// ahead.
func since(then, now table.Tick) time.Duration {
	if then >= now {
		return 0
	}
	return time.Duration(now-then) * table.TickMillis * time.Millisecond
}

// maxProjects is how many tenants have counters of their own, in order of appearance;
// all later ones share the counters with index 0. Each worker has 44 bytes for each. It
// is a power of two, so that an index needs no bounds check.
const maxProjects = 1024

// Usage is what one tenant has used since New.
type Usage struct {
	// Tenant is alloc.Tenant.Hash, and Name the tenant itself. After a restart the
	// name is known from the first BIND of a player of the tenant.
	Tenant uint64
	Name   alloc.Tenant
	// Others marks the sum of all tenants after the first 1,023, without Tenant and
	// Name.
	Others bool
	// Allocations is the number of live allocations, Hosts that of hosts, and Players
	// that of allocations that were bound.
	Allocations, Hosts, Players int
	// PlayerSeconds is the sum of the time from the first BIND of each allocation to
	// its end, or to now.
	PlayerSeconds float64
	// Datagrams and Bytes count the RELAYs that its players sent and the relay
	// forwarded, without UDP and IP headers.
	Datagrams, Bytes uint64
}

// Usage returns what the tenants of the projects have used, or all tenants if there is
// none, in order of appearance. The tenants beyond the first 1,023 belong to no project.
// Error: alloc.ErrUnavailable if the relay does not run.
func (s *Server) Usage(ctx context.Context, projects ...string) ([]Usage, error) {
	var rows []usageRow
	if err := s.onControl(ctx, func(c *control) { rows = c.projects.usage(projects, c.shared.clock()) }); err != nil {
		return nil, err
	}
	return s.addTraffic(rows), nil
}

// addTraffic adds what the workers relayed, and removes the row of the others if it is
// empty.
func (s *Server) addTraffic(rows []usageRow) []Usage {
	var all []Usage
	for _, row := range rows {
		u := row.usage
		for _, w := range s.workers {
			datagrams, bytes := w.traffic.read(row.index)
			u.Datagrams += datagrams
			u.Bytes += bytes
		}
		if !u.Others || u.Datagrams > 0 || u.PlayerSeconds > 0 || u.Allocations > 0 {
			all = append(all, u)
		}
	}
	return all
}

// usageRow is the usage of the tenant with that index.
type usageRow struct {
	usage Usage
	index uint32
}

// projects counts the allocations and players of each tenant. It belongs to control.
// The index of a tenant is the CounterIndex of its allocations; 0 is that of the others.
type projects struct {
	index map[uint64]uint32
	all   []project
}

type project struct {
	Usage
	at     int64 // ms; when millis was last advanced
	millis uint64
}

func newProjects() projects {
	return projects{index: make(map[uint64]uint32), all: []project{{Usage: Usage{Others: true}}}}
}

// indexOf returns the index of a tenant, a new one if there is room, else 0.
func (p *projects) indexOf(tenant uint64) uint32 {
	i, ok := p.index[tenant]
	if !ok && len(p.all) < maxProjects {
		i = uint32(len(p.all))
		p.index[tenant] = i
		p.all = append(p.all, project{Usage: Usage{Tenant: tenant}})
	}
	return i
}

// setName sets the name of a tenant.
func (p *projects) setName(tenant uint64, t alloc.Tenant) {
	if i := p.indexOf(tenant); i != 0 {
		p.all[i].Name = t
	}
}

// addPlayers changes the number of players by more.
func (p *project) addPlayers(more int, now int64) {
	p.advance(now)
	p.Players += more
}

func (p *project) advance(now int64) {
	p.millis += uint64(p.Players) * uint64(max(now-p.at, 0))
	p.at = now
}

// usage returns the rows of the tenants of those projects, or all rows.
func (p *projects) usage(only []string, now int64) (rows []usageRow) {
	for i := range p.all {
		t := &p.all[i]
		if len(only) > 0 && (t.Others || !slices.Contains(only, t.Name.Project)) {
			continue
		}
		t.advance(now)
		row := usageRow{usage: t.Usage, index: uint32(i)}
		row.usage.PlayerSeconds = float64(t.millis) / 1000
		rows = append(rows, row)
	}
	return rows
}

// project returns the counters of the tenant of a live allocation.
func (c *control) project(h table.Handle) *project {
	return &c.projects.all[c.shared.table.Activity(h).CounterIndex()]
}

// countAdded counts an allocation that was just inserted, countEnded one that ends.
func (c *control) countAdded(h table.Handle, role alloc.Role) {
	p := c.project(h)
	p.Allocations++
	if role == alloc.RoleHost {
		p.Hosts++
		c.seats.taken.Add(c.seatsOf(h))
	}
}

func (c *control) countEnded(e *table.Entry) {
	p := c.project(e.Handle)
	p.Allocations--
	if e.Role == table.RoleHost {
		p.Hosts--
		c.seats.taken.Add(-c.seatsOf(e.Handle))
	}
	if e.Is(table.EverBound) {
		p.addPlayers(-1, c.shared.clock())
	}
}
