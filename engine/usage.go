package engine

import (
	"context"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// maxUsageRows: each worker has 44 bytes for each row. A power of two, so that an index needs no
// bounds check. Row 0 is that of the others.
const maxUsageRows = 1024

// Usage is what one tenant has used since it got its counters. There are counters for 1,023
// tenants. One without live allocations, the longest first, loses them when another tenant needs
// them; what it had used then counts for the others, so that no sum ever decreases.
type Usage struct {
	// Tenant is alloc.Tenant.Hash. After a restart Name is known from the first BIND of the
	// tenant.
	Tenant uint64
	Name   alloc.Tenant
	// Others marks the sum, without Tenant and Name, of tenants that lost their counters and of
	// allocations that were reserved while none were free.
	Others bool
	// Allocations, Hosts and Players are live; Players were bound.
	Allocations, Hosts, Players int
	// PlayerSeconds is the time from the first BIND of each allocation to its end, or to now.
	PlayerSeconds float64
	// Datagrams and Bytes count its players' RELAYs that were forwarded, without UDP and IP
	// headers.
	Datagrams, Bytes uint64
}

// Usage returns what tenants have used, the others first. Errors: those of every call, see
// [Server].
func (s *Server) Usage(ctx context.Context) (all []Usage, err error) {
	err = s.onControl(ctx, func(c *control) error { all = c.projects.usage(c.shared.clock()); return nil })
	return all, err
}

func (s private) Projects(ctx context.Context, names ...string) (all []privateapi.ProjectUsage, err error) {
	err = s.onControl(ctx, func(c *control) error { all = c.projects.list(names); return nil })
	return all, err
}

// traffic includes the fast path.
func (s *Server) traffic(row uint32) (sum trafficCount) {
	for _, w := range s.workers {
		datagrams, bytes := w.traffic.read(row)
		sum.datagrams += datagrams
		sum.bytes += bytes
	}
	if s.cfg.FastPath != nil {
		datagrams, bytes := s.cfg.fastPath().Traffic(row)
		sum.datagrams += datagrams
		sum.bytes += bytes
	}
	return sum
}

type trafficCount struct{ datagrams, bytes uint64 }

// projects belongs to control. The counts of allocations and players are exact. Traffic and player
// time are counted in rows, of which there is a fixed number; the row of an allocation is its
// CounterIndex, and does not change.
type projects struct {
	tenants map[uint64]*tenant  // those with an allocation or a row, by hash
	byName  map[string]*project // those of tenants whose names are known
	rows    []usageRow          // 0: that of the others, and head of the list of idle rows
	// traffic never decreases.
	traffic func(row uint32) trafficCount
}

type tenant struct {
	hash    uint64
	name    alloc.Tenant
	project *project // nil: the name is not known
	row     uint32   // of its next allocations; 0: none
	use     liveCounts
}

type project struct {
	liveCounts
	tenants int
	bytes   uint64 // of rows that its tenants lost, and of row 0 while it had allocations there
	before  uint64 // bytes of row 0 when its allocations there began
}

type liveCounts struct {
	allocations, players int
	others               int // allocations in row 0
}

type usageRow struct {
	Usage               // Datagrams and Bytes are those of tenants that lost their rows
	tenant *tenant      // nil: the others
	before trafficCount // of the workers when the tenant got the row
	at     int64        // ms; when millis was last advanced
	millis uint64
	// next and previous link the rows without live allocations, in the order in which they became
	// idle; 0 is the head of the ring. They are 0 in other rows.
	next, previous uint32
}

func newProjects() projects {
	return projects{
		tenants: make(map[uint64]*tenant), byName: make(map[string]*project),
		rows:    []usageRow{{Usage: Usage{Others: true}}},
		traffic: func(uint32) trafficCount { return trafficCount{} },
	}
}

// indexOf returns the row of the tenant, else a new one, else that of the tenant that has been
// idle for the longest time, else 0.
func (p *projects) indexOf(hash uint64) uint32 {
	if t := p.tenants[hash]; t != nil && t.row != 0 {
		return t.row
	}
	row := p.freeRow()
	if row == 0 {
		return 0
	}
	t := p.tenantOf(hash)
	t.row = row
	p.rows[row] = usageRow{Usage: Usage{Tenant: hash}, tenant: t, before: p.rows[row].before}
	p.addIdle(row) // until its allocation is counted
	return row
}

func (p *projects) tenantOf(hash uint64) *tenant {
	t := p.tenants[hash]
	if t == nil {
		t = &tenant{hash: hash}
		p.tenants[hash] = t
	}
	return t
}

func (p *projects) freeRow() uint32 {
	if len(p.rows) < maxUsageRows {
		p.rows = append(p.rows, usageRow{})
		return uint32(len(p.rows) - 1)
	}
	row := p.rows[0].next
	if row != 0 {
		p.takeRow(row)
	}
	return row
}

// What a worker has not published yet for the former tenant, a millisecond of traffic at most,
// counts for the next one.
func (p *projects) takeRow(row uint32) {
	p.removeIdle(row)
	r, others := &p.rows[row], &p.rows[0]
	now := p.traffic(row)
	used := trafficCount{now.datagrams - r.before.datagrams, now.bytes - r.before.bytes}
	r.before = now
	others.Datagrams += used.datagrams
	others.Bytes += used.bytes
	others.millis += r.millis
	t := r.tenant
	t.row = 0
	if t.project != nil {
		t.project.bytes += used.bytes
	}
	p.forget(t)
}

// The project goes with its last tenant.
func (p *projects) forget(t *tenant) {
	if t.use.allocations > 0 || t.row != 0 {
		return
	}
	delete(p.tenants, t.hash)
	if t.project == nil {
		return
	}
	if t.project.tenants--; t.project.tenants == 0 {
		delete(p.byName, t.name.Project)
	}
}

// For row 0 relayed includes the tenants that lost theirs.
func (p *projects) relayed(row uint32) trafficCount {
	now, r := p.traffic(row), &p.rows[row]
	return trafficCount{now.datagrams - r.before.datagrams + r.Datagrams, now.bytes - r.before.bytes + r.Bytes}
}

func (p *projects) addIdle(row uint32) {
	last := p.rows[0].previous
	p.rows[row].previous, p.rows[row].next = last, 0
	p.rows[last].next, p.rows[0].previous = row, row
}

func (p *projects) removeIdle(row uint32) {
	r := &p.rows[row]
	p.rows[r.previous].next, p.rows[r.next].previous = r.next, r.previous
	r.previous, r.next = 0, 0
}

func (p *projects) setName(hash uint64, name alloc.Tenant) {
	t := p.tenants[hash]
	if t == nil || t.project != nil {
		return
	}
	t.name, t.project = name, p.byName[name.Project]
	if t.project == nil {
		t.project = new(project)
		p.byName[name.Project] = t.project
	}
	t.project.tenants++
	p.add(t.project, t.use)
}

// add follows row 0 while the project has allocations there.
func (p *projects) add(to *project, more liveCounts) {
	had := to.others > 0
	to.allocations += more.allocations
	to.players += more.players
	to.others += more.others
	switch has := to.others > 0; {
	case has && !had:
		to.before = p.traffic(0).bytes
	case had && !has:
		to.bytes += p.traffic(0).bytes - to.before
	}
}

// Row 0 is left out if it is empty.
func (p *projects) usage(now int64) (all []Usage) {
	for i := range p.rows {
		r := &p.rows[i]
		r.advance(now)
		u, relayed := r.Usage, p.relayed(uint32(i))
		u.Datagrams, u.Bytes, u.PlayerSeconds = relayed.datagrams, relayed.bytes, float64(r.millis)/1000
		if r.tenant != nil {
			u.Name = r.tenant.name
		}
		if !u.Others || u.Datagrams > 0 || u.PlayerSeconds > 0 || u.Allocations > 0 {
			all = append(all, u)
		}
	}
	return all
}

func (p *projects) list(names []string) (all []privateapi.ProjectUsage) {
	bytes := make(map[*project]uint64)
	for i := range p.rows {
		if t := p.rows[i].tenant; t != nil && t.project != nil && isNamed(names, t.name.Project) {
			bytes[t.project] += p.relayed(uint32(i)).bytes
		}
	}
	others := p.traffic(0).bytes
	add := func(name string, of *project) {
		u := privateapi.ProjectUsage{Project: name, Allocations: of.allocations, Players: of.players, Bytes: bytes[of] + of.bytes}
		if of.others > 0 {
			u.Bytes += others - of.before
		}
		all = append(all, u)
	}
	if len(names) == 0 {
		for name, of := range p.byName {
			add(name, of)
		}
	}
	for _, name := range names {
		if of := p.byName[name]; of != nil {
			add(name, of)
		}
	}
	return all
}

func isNamed(names []string, project string) bool {
	return len(names) == 0 || slices.Contains(names, project)
}

func (r *usageRow) advance(now int64) {
	r.millis += uint64(r.Players) * uint64(max(now-r.at, 0))
	r.at = now
}

type owner struct {
	all    *projects
	tenant *tenant
	row    uint32
}

func (c *control) project(h table.Handle) owner {
	return owner{&c.projects, c.projects.tenantOf(c.shared.table.Tenant(h)), c.shared.table.Activity(h).CounterIndex()}
}

func (o owner) addAllocations(more int, hosts bool) {
	r := &o.all.rows[o.row]
	if o.row != 0 && r.Allocations == 0 {
		o.all.removeIdle(o.row)
	}
	r.Allocations += more
	if hosts {
		r.Hosts += more
	}
	if o.row != 0 && r.Allocations == 0 {
		o.all.addIdle(o.row)
	}
	counts := liveCounts{allocations: more}
	if o.row == 0 {
		counts.others = more
	}
	o.add(counts)
	o.all.forget(o.tenant)
}

func (o owner) addPlayers(more int, now int64) {
	r := &o.all.rows[o.row]
	r.advance(now)
	r.Players += more
	o.add(liveCounts{players: more})
}

func (o owner) add(more liveCounts) {
	o.tenant.use.allocations += more.allocations
	o.tenant.use.players += more.players
	o.tenant.use.others += more.others
	if o.tenant.project != nil {
		o.all.add(o.tenant.project, more)
	}
}

// sentTotals continues the counts of [table.Activity.Sent] where they begin again at zero. It
// belongs to control.
type sentTotals map[table.Handle]sentTotal

type sentTotal struct{ last, total trafficCount } // last: of Activity.Sent

// From these counts on an allocation is in sentTotals: control looks again within the idle limit,
// before the other three quarters are used.
const (
	followedDatagrams = table.SentDatagramsLimit / 4
	followedBytes     = table.SentBytesLimit / 4
)

// sent must be called before three quarters of the limits of [table.Activity.Sent] pass.
func (c *control) sent(h table.Handle) trafficCount {
	var now trafficCount
	now.datagrams, now.bytes = c.shared.table.Activity(h).Sent()
	s, followed := c.sentTotals[h]
	if !followed && now.datagrams < followedDatagrams && now.bytes < followedBytes {
		return now
	}
	more := now.packed() - s.last.packed()
	s.last = now
	s.total.datagrams += more / table.SentBytesLimit
	s.total.bytes += more % table.SentBytesLimit
	c.sentTotals[h] = s
	return s.total
}

// packed is as the table has it: an overflow of the bytes is in the datagrams, and a difference
// undoes it.
func (t trafficCount) packed() uint64 { return t.datagrams*table.SentBytesLimit + t.bytes }

func (c *control) handSent() (all []handedSent) {
	for h := range c.sentTotals {
		if e, ok := c.shared.table.At(h); ok {
			sent := c.sent(h)
			all = append(all, handedSent{e.ID, sent.datagrams, sent.bytes})
		}
	}
	return all
}

func (c *control) takeSent(all []handedSent) {
	for _, a := range all {
		if e, ok := c.shared.table.ByID(a.ID); ok {
			var last trafficCount
			last.datagrams, last.bytes = c.shared.table.Activity(e.Handle).Sent()
			c.sentTotals[e.Handle] = sentTotal{last, trafficCount{a.Datagrams, a.Bytes}}
		}
	}
}

type handedSent struct {
	ID               proto.AllocationID
	Datagrams, Bytes uint64
}

func (c *control) countAdded(h table.Handle, role alloc.Role) {
	c.project(h).addAllocations(1, role == alloc.RoleHost)
	if role == alloc.RoleHost {
		c.seats.taken.Add(c.seatsOf(h))
	}
	c.addToPlayer(h)
}

func (c *control) countEnded(e *table.Entry) {
	o := c.project(e.Handle)
	if e.Is(table.EverBound) {
		o.addPlayers(-1, c.shared.clock())
	}
	o.addAllocations(-1, e.Role == table.RoleHost)
	if e.Role == table.RoleHost {
		c.seats.taken.Add(-c.seatsOf(e.Handle))
	}
	c.removeFromPlayer(e.Handle)
}
