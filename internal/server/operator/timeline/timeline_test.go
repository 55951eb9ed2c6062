package timeline

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// slow is a timeline that keeps everything and looks through it.
type slow struct {
	all    []Event
	events int // of the timeline
}

func (s *slow) add(e Event, now time.Time) {
	depth := 1
	if e.Kind >= BindRefused && e.Kind <= MessageDropped || e.Kind == CallRefused || e.Kind == LimitReached {
		depth = 8
	}
	for i := len(s.all) - 1; i >= max(0, len(s.all)-s.events) && depth > 0; i-- {
		if was := &s.all[i]; !e.ID.IsZero() && was.ID == e.ID || e.ID.IsZero() && was.Project == e.Project {
			if was.isRepeated(&e) {
				was.Last, was.Count, was.Endpoint = now, was.Count+1, e.Endpoint
				return
			}
			depth--
		}
	}
	e.First, e.Last, e.Count = now, now, 1
	s.all = append(s.all, e)
}

func (s *slow) of(id proto.AllocationID, events int) (list []Event) {
	for _, e := range s.all[max(0, len(s.all)-events):] {
		if e.ID == id {
			list = append(list, e)
		}
	}
	return list
}

func (s *slow) ofProject(project string, events, most int) (list []Event) {
	for _, e := range slices.Backward(s.all[max(0, len(s.all)-events):]) {
		if e.Project == project && len(list) < most {
			list = append(list, e)
		}
	}
	return list
}

// TestTimeline: random events, against a list of all of them.
func TestTimeline(t *testing.T) {
	testkit.OneGoroutine(t)
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		events, ids := 1+r.IntN(40), 1+r.IntN(20)
		line, model := New(events), slow{events: events}
		for i := range 300 {
			e := Event{ID: proto.AllocationID{byte(r.IntN(ids)), 1}, Kind: []Kind{Reserved, Bound, BindRefused, MessageRefused}[r.IntN(4)],
				Reason: []string{"a", "b"}[r.IntN(2)]}
			e.Project = []string{"", "p", "q"}[int(e.ID[0])%3]
			if r.IntN(5) == 0 {
				e = Event{Kind: CallRefused, Project: []string{"p", "q"}[r.IntN(2)], Reason: []string{"a", "b"}[r.IntN(2)]}
			}
			now := began.Add(time.Duration(i) * time.Second)
			line.Add(e, now)
			model.add(e, now)
			for n := range ids {
				id := proto.AllocationID{byte(n), 1}
				if got, want := line.Of(id), model.of(id, events); !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, event %d, allocation %d:\ngot  %v\nwant %v", seed, i, n, got, want)
				}
			}
			for _, project := range []string{"p", "q"} {
				most := r.IntN(30)
				if got, want := line.OfProject(project, most), model.ofProject(project, events, most); !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, event %d, project %s:\ngot  %v\nwant %v", seed, i, project, got, want)
				}
			}
		}
		if len(line.ofProject) > 2 || len(line.ofProject) > events {
			t.Fatalf("seed %d: %d projects for %d events", seed, len(line.ofProject), events)
		}
		if len(line.of) > events {
			t.Fatalf("seed %d: %d allocations for %d events", seed, len(line.of), events)
		}
	}
}

// TestRestoreUnknown: an event that only a newer version knows is left out, and explained by none.
func TestRestoreUnknown(t *testing.T) {
	t.Parallel()
	id, log := proto.AllocationID{1}, New(8)
	log.Restore([]Event{{ID: id, Kind: Reserved}, {ID: id, Kind: numKinds}, {ID: id, Kind: 255}})
	if got := log.Of(id); len(got) != 1 || got[0].Kind != Reserved {
		t.Errorf("%v", got)
	}
}

// TestRestore: a timeline that is restored in the midst is as one that had all events.
func TestRestore(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		events := 1 + r.IntN(40)
		whole, before, after := New(events), New(events), New(events)
		cut := r.IntN(100)
		for i := range 100 {
			e := Event{ID: proto.AllocationID{byte(r.IntN(9)), 1}, Kind: Kind(r.IntN(int(numKinds))), Project: "p", Reason: string(rune('a' + i))}
			whole.Add(e, began.Add(time.Duration(i)))
			if i < cut {
				before.Add(e, began.Add(time.Duration(i)))
			} else {
				after.Add(e, began.Add(time.Duration(i)))
			}
		}
		after.Restore(before.All())
		if got, want := after.All(), whole.All(); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\ngot  %v\nwant %v", seed, got, want)
		}
		for n := range 9 {
			if id := (proto.AllocationID{byte(n), 1}); !reflect.DeepEqual(after.Of(id), whole.Of(id)) {
				t.Fatalf("seed %d, allocation %d", seed, n)
			}
		}
		if !reflect.DeepEqual(after.OfProject("p", 99), whole.OfProject("p", 99)) {
			t.Fatalf("seed %d: of the project", seed)
		}
	}
}

// TestRepetition: 300,000 repetitions take one place, also if three kinds take turns and
// come from as many addresses.
func TestRepetition(t *testing.T) {
	line := New(10)
	id := proto.AllocationID{7}
	line.Add(Event{ID: id, Kind: Bound}, began)
	for i := range 300_000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 9)
		line.Add(Event{ID: id, Kind: BindRefused + Kind(i%3), Endpoint: from}, began.Add(time.Duration(i)*time.Millisecond))
	}
	all := line.Of(id)
	if len(all) != 4 || all[1].Count != 100_000 || all[1].Last.Sub(all[1].First) != 299_997*time.Millisecond {
		t.Errorf("%+v", all)
	}
	if line.Of(proto.AllocationID{8}) != nil {
		t.Error("events of an allocation without any")
	}
}

func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for k := range numKinds {
		if s := k.String(); s == "" || seen[s] {
			t.Errorf("kind %d: %q", k, s)
		}
		seen[k.String()] = true
	}
	if Kind(200).String() != "unknown" {
		t.Error("a kind that is none")
	}
}
