package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// usageRig is projects with the traffic of workers that the test sets.
type usageRig struct {
	projects
	relayed [maxUsageRows]uint64 // bytes
}

type usageAllocation struct {
	tenant uint64
	row    uint32
	bound  bool
}

func newUsageRig() *usageRig {
	r := &usageRig{projects: newProjects()}
	r.traffic = func(row uint32) trafficCount { return trafficCount{r.relayed[row], r.relayed[row]} }
	return r
}

// usageTenant is the name of a tenant: three environments to a project.
func usageTenant(hash uint64) alloc.Tenant {
	return alloc.Tenant{Project: fmt.Sprint(hash / 3), Environment: fmt.Sprint(hash % 3)}
}

func (r *usageRig) reserve(tenant uint64) *usageAllocation {
	a := &usageAllocation{tenant: tenant, row: r.indexOf(tenant)}
	r.owner(a).addAllocations(1, false)
	r.setName(tenant, usageTenant(tenant))
	return a
}

func (r *usageRig) owner(a *usageAllocation) owner {
	return owner{&r.projects, r.tenantOf(a.tenant), a.row}
}

func (r *usageRig) end(a *usageAllocation, now int64) {
	if a.bound {
		r.owner(a).addPlayers(-1, now)
	}
	r.owner(a).addAllocations(-1, false)
}

func (r *usageRig) sum(now int64) (sum Usage) {
	for _, u := range r.usage(now) {
		sum.Allocations += u.Allocations
		sum.Players += u.Players
		sum.PlayerSeconds += u.PlayerSeconds
		sum.Datagrams += u.Datagrams
		sum.Bytes += u.Bytes
	}
	return sum
}

func (r *usageRig) project(t *testing.T, name string) privateapi.ProjectUsage {
	t.Helper()
	all := r.list([]string{name})
	if len(all) != 1 {
		t.Fatalf("project %s: %+v", name, all)
	}
	return all[0]
}

// TestUsageOfManyTenants: with more tenants than rows, the counts of each project are exact,
// no sum ever decreases, nothing is lost, and what ends leaves no memory.
func TestUsageOfManyTenants(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	const tenants, steps = 3 * maxUsageRows, 60_000
	r, rng := newUsageRig(), rand.New(rand.NewPCG(1, 2))
	var live []*usageAllocation
	var last Usage
	sent, millis, players := uint64(0), uint64(0), 0
	allocations, bound := make(map[string]int), make(map[string]int)
	for now := range int64(steps) {
		millis += uint64(players)
		switch n := rng.IntN(8); {
		case n < 3 && len(live) < 1800 || len(live) == 0:
			a := r.reserve(rng.Uint64N(tenants))
			live = append(live, a)
			allocations[usageTenant(a.tenant).Project]++
		case n < 5:
			a := live[rng.IntN(len(live))]
			if !a.bound {
				a.bound = true
				r.owner(a).addPlayers(1, now)
				bound[usageTenant(a.tenant).Project]++
				players++
			}
		case n < 6:
			a := live[rng.IntN(len(live))]
			r.relayed[a.row] += 100
			sent += 100
		default:
			i := rng.IntN(len(live))
			a := live[i]
			r.end(a, now)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			project := usageTenant(a.tenant).Project
			allocations[project]--
			if a.bound {
				bound[project]--
				players--
			}
		}
		if now%200 != 0 {
			continue
		}
		sum := r.sum(now)
		want := Usage{Allocations: len(live), Players: players, PlayerSeconds: sum.PlayerSeconds, Datagrams: sent, Bytes: sent}
		if sum != want || sum.PlayerSeconds < last.PlayerSeconds || math.Abs(sum.PlayerSeconds-float64(millis)/1000) > 1e-6 {
			t.Fatalf("step %d: %+v, want %+v and %v seconds", now, sum, want, float64(millis)/1000)
		}
		last = sum
		for _, u := range r.list(nil) {
			if u.Allocations != allocations[u.Project] || u.Players != bound[u.Project] {
				t.Fatalf("step %d: %+v, want %d allocations, %d players", now, u, allocations[u.Project], bound[u.Project])
			}
		}
	}
	if r.rows[0].Allocations == 0 {
		t.Error("the rows were never all taken: the test shows nothing")
	}
	for _, a := range live {
		r.end(a, steps)
	}
	if n := len(r.tenants); n >= maxUsageRows || len(r.byName) > n || len(r.rows) != maxUsageRows {
		t.Errorf("%d tenants, %d projects and %d rows are left", n, len(r.byName), len(r.rows))
	}
	if sum := r.sum(steps); sum.Bytes != sent || sum.Allocations != 0 || sum.Players != 0 {
		t.Errorf("at the end: %+v, want %d bytes", sum, sent)
	}
}

// TestRowsAreReused: the tenant that has been idle for the longest time loses its row, and
// no tenant with an allocation does.
func TestRowsAreReused(t *testing.T) {
	t.Parallel()
	r := newUsageRig()
	var all []*usageAllocation
	for tenant := range uint64(maxUsageRows - 1) {
		a := r.reserve(tenant)
		r.relayed[a.row] += 1000
		all = append(all, a)
	}
	late := r.reserve(5000)
	if late.row != 0 {
		t.Fatalf("a tenant lost row %d while it had an allocation", late.row)
	}
	r.end(all[7], 1)
	r.end(all[3], 2)
	if row := r.indexOf(7); row != all[7].row {
		t.Errorf("an idle tenant has row %d, and had %d", row, all[7].row)
	}
	all[7] = r.reserve(7)
	r.end(all[7], 3)
	if a := r.reserve(6000); a.row != all[3].row {
		t.Errorf("a new tenant has row %d, want that of the tenant that was idle first, %d", a.row, all[3].row)
	}
	if u := r.usage(4); u[all[3].row].Bytes != 0 || u[all[3].row].Name != usageTenant(6000) || u[0].Bytes != 1000 {
		t.Errorf("%+v, and the others %+v", u[all[3].row], u[0])
	}
	if a := r.reserve(5000); a.row != all[7].row { // one of its allocations has no row, and one has
		t.Errorf("row %d", a.row)
	}
}

// TestBytesWithoutRow: the bytes of a project whose allocations have no row are never too
// low, and never decrease while it has allocations.
func TestBytesWithoutRow(t *testing.T) {
	t.Parallel()
	r := newUsageRig()
	for tenant := range uint64(maxUsageRows - 1) {
		r.reserve(tenant)
	}
	other := r.reserve(5000)
	r.relayed[0] += 10
	late := r.reserve(6000)
	name := usageTenant(6000).Project
	if u := r.project(t, name); u.Bytes != 0 || u.Allocations != 1 {
		t.Errorf("before it has relayed: %+v", u)
	}
	r.relayed[0] += 100
	if u := r.project(t, name); u.Bytes != 100 {
		t.Errorf("%+v, want at least its 100 bytes", u)
	}
	if u := r.project(t, "0"); u.Bytes != 0 || u.Allocations != 3 {
		t.Errorf("a project with rows: %+v", u)
	}
	second := r.reserve(6001) // of the same project
	r.end(late, 1)
	r.relayed[0] += 1000
	if u := r.project(t, name); u.Bytes != 1100 || u.Allocations != 1 {
		t.Errorf("its second tenant relayed: %+v", u)
	}
	r.end(second, 2)
	r.relayed[0] += 10_000
	if all := r.list([]string{name}); len(all) != 0 {
		t.Errorf("after its end: %+v", all)
	}
	r.end(other, 3)
}

// TestSentOfAllocations: bytes are exact also beyond what the table counts, and in the next process.
func TestSentOfAllocations(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Timeouts: Timeouts{Idle: time.Hour}})
	a, b := udp("192.0.2.1:7000"), udp("198.51.100.1:7000")
	host := r.host(a, 2)
	joiner := r.joiner(b, host)
	r.advance(5 * time.Second)
	want := trafficCount{}
	for size := range 10 {
		pkt := relayMessage(joiner.id, host.id, size)
		if o := r.feed(b, pkt); o != outRelayed {
			t.Fatalf("outcome %v", o)
		}
		want.datagrams++
		want.bytes += uint64(len(pkt))
	}
	of := func(card *mReservation) (sent trafficCount) {
		page := r.control.list(&Filter{ID: proto.AllocationID(card.id)}, 0, 1).found
		if len(page) != 1 || page[0].Player != alloc.HashPlayer(alloc.Tenant{Project: "p"}, card.player) {
			t.Fatalf("listed: %+v", page)
		}
		return trafficCount{page[0].SentDatagrams, page[0].SentBytes}
	}
	if of(joiner) != want || of(host) != (trafficCount{}) {
		t.Errorf("sent %+v, want %+v, and of the host %+v", of(joiner), want, of(host))
	}
	activity := r.shared.table.Activity(r.entry(joiner).Handle)
	const large = 5 << 30
	for i := range 100 { // 500 GiB: seven overflows
		activity.CountRelay(large)
		want.datagrams++
		want.bytes += large
		if i%3 == 0 {
			r.control.sent(r.entry(joiner).Handle) // as control does when the allocation is due
		}
	}
	if of(joiner) != want {
		t.Errorf("sent %+v, want %+v", of(joiner), want)
	}
	handed := r.control.handSent()
	r.control.sentTotals = make(sentTotals)
	r.control.takeSent(handed)
	activity.CountRelay(7)
	want.datagrams, want.bytes = want.datagrams+1, want.bytes+7
	r.feed(b, message(11, joiner.id)) // CLOSE
	if len(r.ended) != 1 || len(r.control.sentTotals) != 0 {
		t.Fatalf("%d ended, %d are followed", len(r.ended), len(r.control.sentTotals))
	}
	if e := r.ended[0]; (trafficCount{e.SentDatagrams, e.SentBytes}) != want || !e.EverBound || e.Age != 5*time.Second {
		t.Errorf("ended: %+v, want %+v", e, want)
	}
}
