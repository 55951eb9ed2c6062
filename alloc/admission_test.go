package alloc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// TestAdmit: Admit is called for each reservation that the other rules
// permit, and a refused one costs neither a place nor a count.
func TestAdmit(t *testing.T) {
	relay := newFakeRelay()
	var asked []alloc.AdmissionRequest
	var events []alloc.ReservationEvent
	var refuse error
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "eu"}}, MaxOutstanding: 3,
		Admit: func(_ context.Context, a alloc.AdmissionRequest) error {
			asked = append(asked, a)
			return refuse
		},
		OnReserve: func(e alloc.ReservationEvent) { events = append(events, e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	anna := alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: "anna"}
	for _, refuse = range []error{alloc.DeniedError{Reason: "banned"}, alloc.ErrProjectQuota, alloc.ErrProjectInactive, alloc.ErrUnavailable} {
		if _, err := service.Allocate(t.Context(), anna, 4, ""); !errors.Is(err, refuse) {
			t.Errorf("%v, want %v", err, refuse)
		}
	}
	if len(relay.hosts) != 0 || len(events) != 0 {
		t.Errorf("%d hosts although all were refused, %d events", len(relay.hosts), len(events))
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
	wantHost := alloc.AdmissionRequest{Caller: anna, Role: alloc.RoleHost, MaxConnections: 4, Region: "eu"}
	wantJoiner := alloc.AdmissionRequest{Caller: anna, Role: alloc.RoleJoiner, Host: host.ID}
	if len(asked) != 2 || asked[0] != wantHost || asked[1] != wantJoiner {
		t.Errorf("asked %+v", asked)
	}
	if len(events) != 2 || events[0] != (alloc.ReservationEvent{Request: wantHost, ID: host.ID}) || events[1] != (alloc.ReservationEvent{Request: wantJoiner, ID: joiner.ID}) {
		t.Errorf("events %+v", events)
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
	// Two are outstanding, the third is refused by Admit, and then made.
	refuse = alloc.DeniedError{}
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
