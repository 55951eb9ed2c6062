package quota

import (
	"context"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// lateness is how long after its bind time-out a reservation still counts whose
// end nobody has told of.
const lateness = 5 * time.Second

// Tally counts the allocations of some projects on one machine, by what it is
// told. A million allocations take some 60 MB, none of it pointers; allocations
// of other projects take nothing.
type Tally struct {
	horizon  time.Duration
	now      func() time.Time
	projects map[string]int32 // to its place in counts

	mu      sync.Mutex // guards the following fields
	counts  []Usage
	live    map[proto.AllocationID]counted
	waiting []waiting // reserved and perhaps not bound, oldest first
}

// counted is how an allocation counts.
type counted struct {
	project int32
	bound   bool
}

// waiting says when an unbound allocation counts no more. Its end is told
// anyway, but may have been told before its reservation was.
type waiting struct {
	id    proto.AllocationID
	until int64 // nanoseconds since 1970
}

// NewTally returns a tally of the projects in limits. Unbound allocations last
// for bindTimeout. A nil clock is time.Now.
func NewTally(limits map[string]Limits, bindTimeout time.Duration, now func() time.Time) *Tally {
	t := &Tally{
		horizon: bindTimeout + lateness, now: now,
		projects: make(map[string]int32), live: make(map[proto.AllocationID]counted),
	}
	if t.now == nil {
		t.now = time.Now
	}
	for project := range limits {
		t.projects[project] = int32(len(t.counts))
		t.counts = append(t.counts, Usage{})
	}
	return t
}

// Reserved counts an allocation.
func (t *Tally) Reserved(m alloc.Made) {
	project, ok := t.projects[m.Caller.Tenant.Project]
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lapse()
	if _, twice := t.live[m.ID]; twice {
		return
	}
	t.live[m.ID] = counted{project: project}
	t.counts[project].Allocations++
	t.waiting = append(t.waiting, waiting{m.ID, t.now().Add(t.horizon).UnixNano()})
}

// Bound counts the allocation's player.
func (t *Tally) Bound(id proto.AllocationID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.live[id]
	if !ok || c.bound {
		return
	}
	c.bound = true
	t.live[id] = c
	t.counts[c.project].Players++
}

// Ended counts the allocation no more.
func (t *Tally) Ended(id proto.AllocationID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(id)
}

// drop forgets an allocation. The caller holds mu.
func (t *Tally) drop(id proto.AllocationID) {
	c, ok := t.live[id]
	if !ok {
		return
	}
	delete(t.live, id)
	t.counts[c.project].Allocations--
	if c.bound {
		t.counts[c.project].Players--
	}
}

// Usage returns what a project uses. It never fails.
func (t *Tally) Usage(_ context.Context, project string) (Usage, error) {
	at, ok := t.projects[project]
	if !ok {
		return Usage{}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lapse()
	return t.counts[at], nil
}

// lapse drops what was not bound in time. The caller holds mu.
func (t *Tally) lapse() {
	now, n := t.now().UnixNano(), 0
	for n < len(t.waiting) && t.waiting[n].until <= now {
		if id := t.waiting[n].id; !t.live[id].bound {
			t.drop(id)
		}
		n++
	}
	t.waiting = t.waiting[n:]
}
