package engine

import (
	"context"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// maxUsageRows is how many rows of counters there are. Each worker has 44 bytes for each.
// It is a power of two, so that an index needs no bounds check. Row 0 is that of the
// others.
const maxUsageRows = 1024

// Usage is what one tenant has used since it got its counters. There are counters for
// 1,023 tenants. A tenant without live allocations loses them when another tenant needs
// them, the tenant that had none for the longest time first. What it had used then counts
// for the others, so that no sum over all tenants ever decreases.
type Usage struct {
	// Tenant is alloc.Tenant.Hash, and Name the tenant itself. After a restart the
	// name is known from the first BIND of a player of the tenant.
	Tenant uint64
	Name   alloc.Tenant
	// Others marks the sum, without Tenant and Name, of tenants that lost their
	// counters and of allocations that were reserved while all were taken by tenants
	// with live allocations.
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

// Usage returns what tenants have used, the others first. Errors: those of every call, see
// [Server].
func (s *Server) Usage(ctx context.Context) (all []Usage, err error) {
	err = s.onControl(ctx, func(c *control) error { all = c.projects.usage(c.shared.clock()); return nil })
	return all, err
}

// ProjectUsage is what a project uses in all its environments. The counts are exact for
// any number of tenants.
type ProjectUsage struct {
	Project string
	// Allocations is the number of live allocations, and Players that of those that
	// were bound.
	Allocations, Players int
	// Bytes is at least what its players sent and the relay forwarded, without UDP and
	// IP headers: while an allocation of the project has no counters of its own, see
	// [Usage], it increases by the bytes of all such allocations of any project. It may
	// begin again at zero when the project has no live allocations.
	Bytes uint64
}

// Projects returns the usage of the named projects, or of all if none is named, in no
// order. It leaves out projects that have used nothing lately. Errors: those of every call, see
// [Server].
func (s *Server) Projects(ctx context.Context, names ...string) (all []ProjectUsage, err error) {
	err = s.onControl(ctx, func(c *control) error { all = c.projects.list(names); return nil })
	return all, err
}

// traffic returns what all workers and the fast path have relayed for a row since New.
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

// projects counts what tenants and their projects use. It belongs to control. The counts
// of allocations and players are exact and bounded by the live allocations. Traffic and
// player time are counted in rows, of which there is a fixed number. The row of an
// allocation is its CounterIndex, and does not change.
type projects struct {
	tenants map[uint64]*tenant  // those with an allocation or a row, by hash
	byName  map[string]*project // those of tenants whose names are known
	rows    []usageRow          // 0: that of the others, and head of the list of idle rows
	// traffic returns what the workers have relayed for a row. It never decreases.
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

// liveCounts count live allocations.
type liveCounts struct {
	allocations, players int
	others               int // allocations in row 0
}

// usageRow is a row of counters.
type usageRow struct {
	Usage               // Datagrams and Bytes are those of tenants that lost their rows
	tenant *tenant      // nil: the others
	before trafficCount // of the workers when the tenant got the row
	at     int64        // ms; when millis was last advanced
	millis uint64
	// next and previous link the rows without live allocations in a ring, in the order
	// in which they became idle; 0 is its head. They are 0 in other rows.
	next, previous uint32
}

func newProjects() projects {
	return projects{
		tenants: make(map[uint64]*tenant), byName: make(map[string]*project),
		rows:    []usageRow{{Usage: Usage{Others: true}}},
		traffic: func(uint32) trafficCount { return trafficCount{} },
	}
}

// indexOf returns the row for a new allocation of a tenant: its own, else a new one, else
// that of the tenant that has been idle for the longest time, else 0.
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

// tenantOf returns a tenant, a new one if need be.
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

// takeRow takes an idle row from its tenant. What a worker counts for the tenant and has
// not published yet, at most a millisecond of traffic, counts for the next one.
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

// forget removes a tenant that has neither an allocation nor a row, and its project with
// its last tenant.
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

// relayed returns what was relayed for a row, with that of the tenants that lost theirs
// for row 0.
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

// setName sets the name of a tenant that has an allocation.
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

// add changes the counts of a project, and follows row 0 while it has allocations there.
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

// usage returns all rows, without that of the others if it is empty.
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

// list returns the named projects, or all.
func (p *projects) list(names []string) (all []ProjectUsage) {
	bytes := make(map[*project]uint64)
	for i := range p.rows {
		if t := p.rows[i].tenant; t != nil && t.project != nil && isNamed(names, t.name.Project) {
			bytes[t.project] += p.relayed(uint32(i)).bytes
		}
	}
	others := p.traffic(0).bytes
	add := func(name string, of *project) {
		u := ProjectUsage{Project: name, Allocations: of.allocations, Players: of.players, Bytes: bytes[of] + of.bytes}
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

// owner is where a live allocation counts.
type owner struct {
	all    *projects
	tenant *tenant
	row    uint32
}

// project returns where a live allocation counts.
func (c *control) project(h table.Handle) owner {
	return owner{&c.projects, c.projects.tenantOf(c.shared.table.Tenant(h)), c.shared.table.Activity(h).CounterIndex()}
}

// addAllocations changes the number of allocations by more, and that of hosts if they are
// hosts.
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

// addPlayers changes the number of players by more.
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

// sentTotals continues the counts of [table.Activity.Sent] where they begin again at zero. It has
// the allocations that may reach that, and belongs to control.
type sentTotals map[table.Handle]sentTotal

type sentTotal struct{ last, total trafficCount } // last: of Activity.Sent

// The counts from which an allocation is in sentTotals: three quarters of the limits are left, and
// control looks again within the idle limit.
const (
	followedDatagrams = table.SentDatagramsLimit / 4
	followedBytes     = table.SentBytesLimit / 4
)

// sent returns what the owner of a live allocation has sent since it was reserved. It must be called
// before three quarters of the limits of [table.Activity.Sent] pass.
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

// packed returns the counts as the table has them: an overflow of the bytes is in the datagrams, and a
// difference of two values has it undone.
func (t trafficCount) packed() uint64 { return t.datagrams*table.SentBytesLimit + t.bytes }

// handSent returns the totals of the allocations that another process continues, and takeSent
// continues one.
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

// handedSent is what an allocation in sentTotals has sent.
type handedSent struct {
	ID               proto.AllocationID
	Datagrams, Bytes uint64
}

// countAdded counts an allocation that was just inserted, countEnded one that ends.
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
