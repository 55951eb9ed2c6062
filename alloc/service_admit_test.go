package alloc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/store"
	"github.com/ferryrelay/ferry/proto"
)

// TestAdmit: who admits is asked about each reservation that the other rules
// permit, and whom it refuses costs neither a place nor a count.
func TestAdmit(t *testing.T) {
	relay := newFakeRelay()
	var asked []alloc.Ask
	var made []alloc.Made
	var refuse error
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: store.NewMemory(), Regions: []alloc.Region{{ID: "eu"}}, MaxOutstanding: 3,
		Admit: func(_ context.Context, a alloc.Ask) error {
			asked = append(asked, a)
			return refuse
		},
		OnReserve: func(m alloc.Made) { made = append(made, m) },
	})
	if err != nil {
		t.Fatal(err)
	}
	anna := alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: "anna"}
	for _, refuse = range []error{alloc.Denied{Reason: "banned"}, alloc.ErrProjectQuota, alloc.ErrProjectInactive, alloc.ErrUnavailable} {
		if _, err := service.Allocate(t.Context(), anna, 4, ""); !errors.Is(err, refuse) {
			t.Errorf("%v, want %v", err, refuse)
		}
	}
	if len(relay.hosts) != 0 || len(made) != 0 {
		t.Errorf("%d hosts although all were refused, told of %d", len(relay.hosts), len(made))
	}
	refuse, asked = nil, nil
	host, err := service.Allocate(t.Context(), anna, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := service.JoinCode(t.Context(), anna, host.ID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := service.Join(t.Context(), anna, code)
	if err != nil {
		t.Fatal(err)
	}
	wantHost := alloc.Ask{Caller: anna, Role: alloc.RoleHost, MaxConnections: 4, Region: "eu"}
	wantJoiner := alloc.Ask{Caller: anna, Role: alloc.RoleJoiner, Host: host.ID}
	if len(asked) != 2 || asked[0] != wantHost || asked[1] != wantJoiner {
		t.Errorf("asked %+v", asked)
	}
	if len(made) != 2 || made[0] != (alloc.Made{Ask: wantHost, ID: host.ID}) || made[1] != (alloc.Made{Ask: wantJoiner, ID: joiner.ID}) {
		t.Errorf("told %+v", made)
	}
	asked = nil
	for _, do := range []func() error{
		func() error { _, err := service.Allocate(t.Context(), anna, 101, ""); return err },
		func() error { _, err := service.Allocate(t.Context(), anna, 4, "moon"); return err },
		func() error { _, err := service.Join(t.Context(), anna, "666666"); return err },
		func() error { _, err := service.JoinCode(t.Context(), anna, proto.AllocationID{}); return err },
	} {
		if do() == nil || len(asked) != 0 {
			t.Errorf("asked about what the rules refuse: %+v", asked)
		}
	}
	// Two are outstanding, the third is refused by who admits, and then made.
	refuse = alloc.Denied{}
	for range 5 {
		_, _ = service.Allocate(t.Context(), anna, 4, "")
	}
	refuse = nil
	if _, err := service.Allocate(t.Context(), anna, 4, ""); err != nil {
		t.Errorf("refused ones count: %v", err)
	}
	if _, err := service.Allocate(t.Context(), anna, 4, ""); !errors.Is(err, alloc.ErrOutstanding) || len(asked) != 6 {
		t.Errorf("beyond the bound: %v, asked %d times, want 6", err, len(asked))
	}
}
