package quota

import (
	"context"
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

func ask(project string) alloc.AdmissionRequest {
	return alloc.AdmissionRequest{Caller: alloc.Caller{Tenant: alloc.Tenant{Project: project, Environment: "e"}}}
}

func TestGuard(t *testing.T) {
	use := Usage{}
	var fails error
	source := func(context.Context, string) (Usage, error) { return use, fails }
	g, err := NewGuard(nil).With(map[string]Limits{
		"a": {Allocations: 3}, "p": {Players: 2}, "b": {BytesPerSecond: 100}, "off": {Inactive: true}, "free": {},
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
		if err := g.Admit(t.Context(), ask(c.project), source); !errors.Is(err, c.want) || err == nil != (c.want == nil) {
			t.Errorf("%s with %+v: %v, want %v", c.project, c.use, err, c.want)
		}
	}
	use, fails = Usage{Allocations: 99}, errors.New("the store is gone")
	for project, want := range map[string]error{
		"a": alloc.ErrUnavailable, "off": alloc.ErrProjectInactive, "free": nil, "unknown": nil,
	} {
		if err := g.Admit(t.Context(), ask(project), source); !errors.Is(err, want) || err == nil != (want == nil) {
			t.Errorf("%s with an unknown usage: %v, want %v", project, err, want)
		}
	}
	if got, want := g.Stats(), (Stats{Refused: [NumRefusals]uint64{2, 1, 1, 1}, Unknown: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestGuardRefusesLimits(t *testing.T) {
	for name, limits := range map[string]map[string]Limits{
		"negative": {"a": {Players: -1}},
		"no name":  {"": {Players: 1}},
	} {
		if _, err := NewGuard(nil).With(limits); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWith: other limits count from the next reservation on, and the counts of
// refusals go on; limits that cannot be are refused.
func TestWith(t *testing.T) {
	source := func(context.Context, string) (Usage, error) { return Usage{Allocations: 5}, nil }
	first, err := NewGuard(nil).With(map[string]Limits{"a": {Allocations: 3}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.With(map[string]Limits{"b": {Allocations: 3}, "a": {Allocations: 9}})
	if err != nil {
		t.Fatal(err)
	}
	third, err := second.With(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		guard   *Guard
		project string
		want    error
	}{
		{"first", first, "a", alloc.ErrProjectQuota}, {"first", first, "b", nil},
		{"second", second, "a", nil}, {"second", second, "b", alloc.ErrProjectQuota},
		{"without limits", third, "a", nil}, {"without limits", third, "b", nil},
	} {
		if err := c.guard.Admit(t.Context(), ask(c.project), source); !errors.Is(err, c.want) {
			t.Errorf("%s, %s: %v, want %v", c.name, c.project, err, c.want)
		}
	}
	if got, want := third.Stats(), (Stats{Refused: [NumRefusals]uint64{RefusedAllocations: 2}}); got != want || first.Stats() != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if g, err := third.With(map[string]Limits{"a": {Players: -1}}); g != nil || err == nil {
		t.Errorf("a negative limit: %v, %v", g, err)
	}
}
