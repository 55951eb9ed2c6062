package engine

import (
	"context"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/table"
)

// maxProjects is how many tenants are counted apart, in order of appearance;
// all that come later are counted as one. Each worker has 44 bytes for each.
// It is a power of two, so that an index needs no check.
const maxProjects = 1024

// Usage is what one tenant has used since the server was made.
type Usage struct {
	// Tenant is alloc.Tenant.Hash, and Name what it is the hash of. Who comes back
	// after a restart brings it along.
	Tenant uint64
	Name   alloc.Tenant
	// Others marks the sum of all tenants beyond the first 1,023: it has neither
	// Tenant nor Name.
	Others bool
	// Allocations live now, Hosts among them, and Players who have bound theirs.
	Allocations, Hosts, Players int
	// PlayerSeconds adds up the time between the first BIND of an allocation and
	// its end, or now.
	PlayerSeconds float64
	// Datagrams and Bytes count what was relayed for its players: the relay
	// messages as they came, without UDP and IP headers.
	Datagrams, Bytes uint64
}

// Usage returns what every tenant has used, in order of appearance. Error:
// alloc.ErrUnavailable when the relay does not run.
func (s *Server) Usage(ctx context.Context) ([]Usage, error) {
	var all []Usage
	if err := s.ask(ctx, func(c *control) { all = c.projects.usage(c.shared.clock()) }); err != nil {
		return nil, err
	}
	return s.carried(all), nil
}

// Used returns how many allocations a project has now, in all its environments
// together, and how many players have bound theirs. It costs control a look at
// 1,023 names at most. Tenants beyond these, see [Usage], are in no project.
// Error: alloc.ErrUnavailable when the relay does not run.
func (s *Server) Used(ctx context.Context, project string) (allocations, players int, err error) {
	var u struct{ allocations, players int }
	err = s.ask(ctx, func(c *control) { u.allocations, u.players = c.projects.used(project) })
	if err != nil {
		return 0, 0, err
	}
	return u.allocations, u.players, nil
}

// carried adds what the workers relayed, and leaves the others out where there
// are none.
func (s *Server) carried(all []Usage) []Usage {
	kept := all[:0]
	for i := range all {
		for _, w := range s.workers {
			datagrams, bytes := w.traffic.read(uint32(i))
			all[i].Datagrams += datagrams
			all[i].Bytes += bytes
		}
		if !all[i].Others || all[i].Datagrams > 0 || all[i].PlayerSeconds > 0 || all[i].Allocations > 0 {
			kept = append(kept, all[i])
		}
	}
	return kept
}

// projects counts allocations and players of each tenant. It belongs to
// control. The index of a tenant is its tally in the table; 0 is the others'.
type projects struct {
	index map[uint64]uint32
	all   []project
}

type project struct {
	Usage
	at     int64 // ms; up to when playerMillis counts
	millis uint64
}

func newProjects() projects {
	return projects{index: make(map[uint64]uint32), all: []project{{Usage: Usage{Others: true}}}}
}

// tally returns the index of a tenant, which is a new one if there is room.
func (p *projects) tally(tenant uint64) uint32 {
	i, ok := p.index[tenant]
	if !ok && len(p.all) < maxProjects {
		i = uint32(len(p.all))
		p.index[tenant] = i
		p.all = append(p.all, project{Usage: Usage{Tenant: tenant}})
	}
	return i
}

// name notes what a tenant is called.
func (p *projects) name(tenant uint64, t alloc.Tenant) {
	if i := p.tally(tenant); i != 0 {
		p.all[i].Name = t
	}
}

// used adds up the tenants of a project.
func (p *projects) used(project string) (allocations, players int) {
	for i := range p.all[1:] {
		if t := &p.all[1+i]; t.Name.Project == project {
			allocations += t.Allocations
			players += t.Players
		}
	}
	return allocations, players
}

// players notes that a tenant has so many players more.
func (p *project) players(more int, now int64) {
	p.advance(now)
	p.Players += more
}

func (p *project) advance(now int64) {
	p.millis += uint64(p.Players) * uint64(max(now-p.at, 0))
	p.at = now
}

func (p *projects) usage(now int64) []Usage {
	all := make([]Usage, len(p.all))
	for i := range p.all {
		p.all[i].advance(now)
		all[i] = p.all[i].Usage
		all[i].PlayerSeconds = float64(p.all[i].millis) / 1000
	}
	return all
}

// project returns the tenant of a live allocation, as control counts it.
func (c *control) project(h table.Handle) *project {
	return &c.projects.all[c.shared.table.Activity(h).Tally()]
}

// enrol counts an allocation that was just entered, and strike one that ends.
func (c *control) enrol(h table.Handle, role alloc.Role) {
	p := c.project(h)
	p.Allocations++
	if role == alloc.RoleHost {
		p.Hosts++
		c.seats.taken.Add(c.seatsOf(h))
	}
}

func (c *control) strike(e *table.Entry) {
	p := c.project(e.Handle)
	p.Allocations--
	if e.Role == table.RoleHost {
		p.Hosts--
		c.seats.taken.Add(-c.seatsOf(e.Handle))
	}
	if e.Is(table.EverBound) {
		p.players(-1, c.shared.clock())
	}
}

// traffic counts what one worker relayed for each tenant, in plain words, and
// publishes what changed, when its worker does. It belongs to its worker but for pub.
type traffic struct {
	rows    [maxProjects]carried
	touched []uint32
	pub     [maxProjects]struct{ datagrams, bytes atomic.Uint64 }
}

type carried struct {
	datagrams, bytes uint64
	touched          bool
}

func newTraffic() *traffic { return &traffic{touched: make([]uint32, 0, maxProjects)} }

func (t *traffic) add(tally uint32, size int) {
	r := &t.rows[tally%maxProjects]
	r.datagrams++
	r.bytes += uint64(size)
	if !r.touched {
		t.touch(r, tally)
	}
}

//go:noinline
func (t *traffic) touch(r *carried, tally uint32) {
	r.touched = true
	t.touched = append(t.touched, tally%maxProjects)
}

func (t *traffic) publish() {
	for _, i := range t.touched {
		r, p := &t.rows[i], &t.pub[i]
		r.touched = false
		p.datagrams.Store(r.datagrams)
		p.bytes.Store(r.bytes)
	}
	t.touched = t.touched[:0]
}

func (t *traffic) read(tally uint32) (datagrams, bytes uint64) {
	p := &t.pub[tally%maxProjects]
	return p.datagrams.Load(), p.bytes.Load()
}
