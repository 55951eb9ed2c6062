package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// listingStep slots take some 30 µs, so that a listing of a million allocations delays no
	// player.
	listingStep = 256
	maxListing  = 1000
)

// Allocation describes a live allocation for an operator. It contains the player's address, but no
// key.
type Allocation struct {
	ID    proto.AllocationID
	Match proto.AllocationID // id of the host
	Role  alloc.Role
	// Tenant is alloc.Tenant.Hash. Name is empty if it is not known, see [Usage].
	Tenant uint64
	Name   alloc.Tenant
	Player alloc.PlayerHash // alloc.HashPlayer of the player for whom it was reserved
	// Transport is the name of the [Transport] of its endpoint, or "udp4", "udp6" or "dtls", empty
	// while it is not bound. Endpoint is its UDP address, also below DTLS, and for other transports its
	// address with port 0 if the transport has a method ClientAddress; invalid: not known.
	Transport string
	Endpoint  netip.AddrPort
	EverBound bool
	// Recovered: it came back after a restart, when its Age began.
	Recovered bool
	// Age is the time since it was reserved, SinceReceived since its owner last sent, SinceActive
	// since it last sent or received, in steps of 250 ms.
	Age, SinceReceived, SinceActive time.Duration
	// Links is the number of open links; at most 1 for a joiner.
	Links int
	// AwaitedLinks are its links of before the restart that may still come back, with a RELAY; of
	// a joiner whose links are not known, 1.
	AwaitedLinks   int
	MaxConnections int
	// SentDatagrams and SentBytes count the RELAYs of its owner that were forwarded since it was
	// reserved, or came back, without UDP and IP headers.
	SentDatagrams, SentBytes uint64
	// LargeDrops counts the RELAYs to its owner that were larger than its transport carries.
	LargeDrops uint32
	// LargeMessages counts those that passed, but that not every client takes, see [Records].
	LargeMessages uint32
}

// Filter selects allocations. A zero field selects all.
type Filter struct {
	Tenant uint64
	// Project selects all environments of a project. An allocation whose project is not known is
	// of none.
	Project string
	Role    alloc.Role
	ID      proto.AllocationID
	// Match is the id of a host: it and its joiners.
	Match proto.AllocationID
	// Player is alloc.HashPlayer of the player for whom it was reserved.
	Player alloc.PlayerHash
	// Individual selects those of one player, not of many that share a token, see alloc.Caller.
	Individual bool
	// Bound selects those with an endpoint, and Unbound those that are reserved only, or whose
	// endpoint was taken over.
	Bound, Unbound bool
	// Transport is that of [Allocation].
	Transport string
}

// Allocations returns a page of at most limit live allocations that match f, and the cursor of the
// next page, 0 if there is none. The first page has the cursor 0. A limit of 0 or above 1,000
// means 1,000. An allocation that lives during all of a listing is in it once. Errors: those of
// every call, see [Server].
func (s *Server) Allocations(ctx context.Context, f Filter, at uint32, limit int) ([]Allocation, uint32, error) {
	var page []Allocation
	if limit <= 0 || limit > maxListing {
		limit = maxListing
	}
	for {
		var step listPage
		if err := s.onControl(ctx, func(c *control) error { step = c.list(&f, at, limit-len(page)); return nil }); err != nil {
			return nil, 0, err
		}
		page, at = append(page, step.found...), step.next
		if at == 0 || len(page) == limit {
			return page, at, nil
		}
	}
}

// The next cursor is 0 if there is none.
type listPage struct {
	found []Allocation
	next  uint32
}

func (c *control) list(f *Filter, at uint32, room int) (l listPage) {
	now, slots := tick(c.shared.clock()), uint32(c.shared.table.Slots())
	if f.ID != (proto.AllocationID{}) {
		if e, ok := c.shared.table.ByID(f.ID); ok && c.matches(f, &e) {
			l.found = append(l.found, c.describe(&e, now))
		}
		return l
	}
	at = min(at, slots) // A cursor may come from anywhere.
	for end := min(at+listingStep, slots); at < end && len(l.found) < room; at++ {
		e, ok := c.shared.table.At(c.shared.table.HandleAt(at))
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
	case f.Tenant != 0 && c.shared.table.Tenant(e.Handle) != f.Tenant,
		f.Project != "" && c.tenantName(c.shared.table.Tenant(e.Handle)).Project != f.Project,
		f.Role != alloc.RoleNone && alloc.Role(e.Role) != f.Role,
		f.Match != proto.AllocationID{} && a.Match != f.Match,
		f.Player != alloc.PlayerHash{} && c.shared.table.Player(e.Handle) != f.Player,
		f.Individual && !e.Is(table.Individual),
		f.Bound && !bound, f.Unbound && bound,
		f.Transport != "" && c.shared.rules.transports[e.Endpoint.Kind()] != f.Transport:
		return false
	}
	return true
}

func (c *control) describe(e *table.Entry, now table.Tick) Allocation {
	a := c.shared.table.Account(e.Handle)
	received, active := c.shared.table.LastSeen(e.Handle)
	large := c.shared.table.LargeMessages(e.Handle)
	d := Allocation{
		ID: e.ID, Match: a.Match, Role: alloc.Role(e.Role), Tenant: c.shared.table.Tenant(e.Handle), Player: c.shared.table.Player(e.Handle),
		Transport: c.shared.rules.transports[e.Endpoint.Kind()], Endpoint: c.clientOf(e.Endpoint),
		EverBound: e.Is(table.EverBound), Recovered: e.Is(table.Recovered),
		Age: since(a.ReservedAt, now), SinceReceived: since(received, now), SinceActive: since(active, now),
		Links: int(a.Links), AwaitedLinks: int(a.AwaitedLinks), MaxConnections: int(a.MaxConnections),
		LargeDrops: large.Drops(), LargeMessages: large.Forwarded(),
	}
	sent := c.sent(e.Handle)
	d.SentDatagrams, d.SentBytes = sent.datagrams, sent.bytes
	d.Name = c.tenantName(d.Tenant)
	if e.Role == table.RoleJoiner {
		if _, linked := c.shared.table.At(e.Link); linked {
			d.Links = 1
		} else if d.Recovered && !a.LinkBlocked {
			d.AwaitedLinks = 1
		}
	}
	return d
}

func (s private) Presence(ctx context.Context, id proto.AllocationID) (p privateapi.Presence, role alloc.Role, err error) {
	err = s.onControl(ctx, func(c *control) error { p, role = c.findPresence(id); return nil })
	return p, role, err
}

func (c *control) findPresence(id proto.AllocationID) (p privateapi.Presence, role alloc.Role) {
	if _, live := c.shared.table.ByID(id); live {
		return privateapi.Live, role
	}
	if !c.mayExist(id, c.shared.clock()) {
		return privateapi.Absent, role
	}
	if i, ok := c.recovery.awaitedRecord(id); ok {
		return privateapi.Awaited, roleFromFlags(c.recovery.records[i].Flags)
	}
	return privateapi.MayComeBack, role
}

func (c *control) tenantName(hash uint64) alloc.Tenant {
	if t := c.projects.tenants[hash]; t != nil {
		return t.name
	}
	return alloc.Tenant{}
}

// since is not below zero: a worker's clock may be ahead.
func since(then, now table.Tick) time.Duration {
	if then >= now {
		return 0
	}
	return time.Duration(now-then) * table.TickMillis * time.Millisecond
}
