package quota

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func ask(project string) alloc.Ask {
	return alloc.Ask{Caller: alloc.Caller{Tenant: alloc.Tenant{Project: project, Environment: "e"}}}
}

func made(project string, n uint64) alloc.Made {
	return alloc.Made{Ask: ask(project), ID: idOf(n)}
}

func idOf(n uint64) (id proto.AllocationID) {
	binary.LittleEndian.PutUint64(id[:], n)
	return id
}

func TestGuard(t *testing.T) {
	use := Usage{}
	var fails error
	g, err := NewGuard(Config{
		Limits: map[string]Limits{
			"a": {Allocations: 3}, "p": {Players: 2}, "b": {BytesPerSecond: 100}, "off": {Inactive: true}, "free": {},
		},
		Usage: func(context.Context, string) (Usage, error) { return use, fails },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		project string
		use     Usage
		want    error
	}{
		{"a", Usage{Allocations: 2, Players: 99, BytesPerSecond: 1 << 40}, nil},
		{"a", Usage{Allocations: 3}, alloc.ErrProjectQuota},
		{"p", Usage{Allocations: 99, Players: 1}, nil},
		{"p", Usage{Players: 2}, alloc.ErrProjectQuota},
		{"b", Usage{BytesPerSecond: 99}, nil},
		{"b", Usage{BytesPerSecond: 100}, alloc.ErrProjectQuota},
		{"off", Usage{}, alloc.ErrProjectInactive},
		{"free", Usage{Allocations: 1 << 30}, nil},
		{"unknown", Usage{Allocations: 1 << 30}, nil},
	} {
		use = c.use
		if err := g.Admit(t.Context(), ask(c.project)); !errors.Is(err, c.want) || err == nil != (c.want == nil) {
			t.Errorf("%s with %+v: %v, want %v", c.project, c.use, err, c.want)
		}
	}
	use, fails = Usage{Allocations: 99}, errors.New("the store is gone")
	if err := g.Admit(t.Context(), ask("a")); err != nil {
		t.Errorf("nobody can say: %v", err)
	}
	if got, want := g.Stats(), (Stats{Refused: 4, Unknown: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestGuardRefusesConfig(t *testing.T) {
	usage := func(context.Context, string) (Usage, error) { return Usage{}, nil }
	for name, cfg := range map[string]Config{
		"nobody to ask": {Limits: map[string]Limits{"a": {Players: 1}}},
		"negative":      {Limits: map[string]Limits{"a": {Players: -1}}, Usage: usage},
		"no name":       {Limits: map[string]Limits{"": {Players: 1}}, Usage: usage},
	} {
		if _, err := NewGuard(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTallyCounts compares a tally with the obvious way to count, for some
// thousand events in any order.
func TestTallyCounts(t *testing.T) {
	clock := time.Unix(1000, 0)
	tally := NewTally(map[string]Limits{"a": {}, "b": {}}, 10*time.Second, func() time.Time { return clock })
	type known struct {
		project string
		bound   bool
		until   time.Time
	}
	live := map[uint64]known{}
	random := rand.New(rand.NewPCG(1, 2))
	projects := []string{"a", "b", "nobody counts it"}
	for i := range uint64(5000) {
		clock = clock.Add(time.Duration(random.IntN(200)) * time.Millisecond)
		some := max(i, 40) - uint64(random.IntN(40))
		switch random.IntN(4) {
		case 0, 1:
			m := made(projects[random.IntN(3)], i)
			tally.Reserved(m)
			live[i] = known{project: m.Caller.Tenant.Project, until: clock.Add(15 * time.Second)}
		case 2:
			tally.Bound(idOf(some))
			if k, ok := live[some]; ok {
				k.bound = true
				live[some] = k
			}
		case 3:
			tally.Ended(idOf(some))
			delete(live, some)
		}
		want := map[string]Usage{}
		for n, k := range live {
			if !k.bound && !k.until.After(clock) {
				delete(live, n)
				continue
			}
			u := want[k.project]
			u.Allocations++
			if k.bound {
				u.Players++
			}
			want[k.project] = u
		}
		for _, project := range projects[:2] {
			if got, _ := tally.Usage(t.Context(), project); got != want[project] {
				t.Fatalf("step %d, %s: %+v, want %+v", i, project, got, want[project])
			}
		}
	}
	if got, _ := tally.Usage(t.Context(), projects[2]); got != (Usage{}) {
		t.Errorf("a project without limits: %+v", got)
	}
}

// TestTallyForgets: an end that is told before the reservation leaves nothing
// for ever.
func TestTallyForgets(t *testing.T) {
	clock := time.Unix(1000, 0)
	tally := NewTally(map[string]Limits{"a": {}}, 10*time.Second, func() time.Time { return clock })
	tally.Ended(idOf(1))
	tally.Reserved(made("a", 1))
	tally.Reserved(made("a", 1))
	if u, _ := tally.Usage(t.Context(), "a"); u.Allocations != 1 {
		t.Errorf("told twice: %+v", u)
	}
	clock = clock.Add(15 * time.Second)
	if u, _ := tally.Usage(t.Context(), "a"); u != (Usage{}) || len(tally.live) != 0 || len(tally.waiting) != 0 {
		t.Errorf("after its time: %+v, %d live", u, len(tally.live))
	}
}
