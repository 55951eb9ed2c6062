package alloc_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

type migration struct {
	*alloc.Service
	relay *alloctest.Relay
	store alloc.Store
	code  string
	host  proto.AllocationID
}

func newMigration(t *testing.T, change func(*alloc.ServiceConfig)) *migration {
	t.Helper()
	x := &migration{relay: alloctest.NewRelay(), store: alloc.NewMemoryStore()}
	x.Service = newTestService(t, x.relay, func(c *alloc.ServiceConfig) {
		c.Store, c.HostMigration = x.store, true
		if change != nil {
			change(c)
		}
	})
	x.host = mustAllocate(t, x.Service, alice)
	x.code = mustCode(t, x.Service, alice, x.host)
	return x
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Errorf("%s: error %v, want %v", what, got, want)
	}
}

// TestMigrate: what the relay is asked, and that the code leads to the former host until it is
// moved, while the candidate knows it.
func TestMigrate(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	typed, ticket := strings.ToLower(x.code), alloc.ConnectionData{7}
	_, err := x.Migrate(t.Context(), bob, typed, ticket)
	var present alloc.RefusedError
	if !errors.As(err, &present) || present.Host != x.host || !errors.Is(err, alloc.ErrHostPresent) {
		t.Errorf("a live host: %v", err)
	}
	wantError(t, "leave", x.Leave(t.Context(), alice, x.host, alloc.ConnectionData{8}), nil)
	res, err := x.Migrate(t.Context(), bob, typed, ticket)
	if err != nil || res.ID.IsZero() || res.Region != testRegions[0].ID {
		t.Fatalf("Migrate = %v in %q, %v", res.ID, res.Region, err)
	}
	want := alloc.MigrationRequest{
		Caller: bob, PlayerHash: alloc.HashPlayer(testTenant, "bob"), Host: x.host, Code: x.code, Ticket: ticket,
	}
	if got := x.relay.Migrations[len(x.relay.Migrations)-1]; !reflect.DeepEqual(got, want) {
		t.Errorf("asked %+v, want %+v", got, want)
	}
	leave := alloc.LeaveRequest{
		Caller: alice, PlayerHash: alloc.HashPlayer(testTenant, "alice"), Host: x.host, Proof: alloc.ConnectionData{8},
	}
	if !reflect.DeepEqual(x.relay.Leaves[0], leave) {
		t.Errorf("asked %+v, want %+v", x.relay.Leaves[0], leave)
	}
	if got := mustCode(t, x.Service, bob, res.ID); got != x.code {
		t.Errorf("the candidate has the code %s, want %s", got, x.code)
	}
	leadsTo := func(want proto.AllocationID) {
		t.Helper()
		if got, err := x.store.HostOf(t.Context(), testTenant, x.code); err != nil || got != want {
			t.Errorf("the code leads to %v, %v; want %v", got, err, want)
		}
		wantCodes(t, x.store, 1)
	}
	leadsTo(x.host)
	if moved, err := x.store.MoveCode(t.Context(), testTenant.Hash(), x.code, x.host, res.ID); !moved || err != nil {
		t.Fatal(moved, err)
	}
	x.OnEnd(x.host) // OnMigrationEnd
	leadsTo(res.ID)
}

// TestLeaveProof: who shares a token with others needs the host's own connection data.
func TestLeaveProof(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	individual := alice
	individual.Individual = true
	wantError(t, "a shared token", x.Leave(t.Context(), alice, x.host, alloc.ConnectionData{}), alloc.ErrHostProof)
	if len(x.relay.Leaves) != 0 {
		t.Error("the relay was asked")
	}
	wantError(t, "an individual player", x.Leave(t.Context(), individual, x.host, alloc.ConnectionData{}), nil)
}

// TestMigrateCallers: a backend acts for any player, and errors arrive as they are.
func TestMigrateCallers(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	wantError(t, "a backend leaves", x.Leave(t.Context(), backend, x.host, alloc.ConnectionData{}), nil)
	if _, err := x.Migrate(t.Context(), backend, x.code, alloc.ConnectionData{}); err != nil {
		t.Errorf("a backend: %v", err)
	}
	if none := (alloc.PlayerHash{}); x.relay.Leaves[0].PlayerHash != none || x.relay.Migrations[0].PlayerHash != none {
		t.Errorf("asked %+v and %+v", x.relay.Leaves, x.relay.Migrations)
	}
	_, err := x.Migrate(t.Context(), alloc.Caller{Tenant: testTenant}, x.code, alloc.ConnectionData{})
	if err != nil || x.relay.Migrations[1].PlayerHash == (alloc.PlayerHash{}) {
		t.Errorf("a player without a name acts for any player: %v", err)
	}
	wait := alloc.RefusedError{Err: alloc.ErrMigration, Reason: "the host was heard 2.0 s ago", RetryAfter: 5 * time.Second}
	for _, want := range []error{alloc.ErrNotFound, alloc.ErrFull, alloc.ErrUnavailable, wait, alloc.ErrMigration} {
		if x.relay.Fail(want); want == alloc.ErrMigration {
			x.relay.Fail(wait)
		}
		_, err := x.Migrate(t.Context(), bob, x.code, alloc.ConnectionData{})
		wantError(t, "Migrate", err, want)
		wantError(t, "Leave", x.Leave(t.Context(), alice, x.host, alloc.ConnectionData{8}), want)
	}
	for name, tt := range map[string]struct {
		tenant alloc.Tenant
		code   string
		want   error
	}{
		"malformed":     {testTenant, "aeiou1", alloc.ErrCodeMalformed},
		"unknown":       {testTenant, "6789BCDFGHJK", alloc.ErrCodeNotFound},
		"other tenant":  {alloc.Tenant{Project: "other"}, x.code, alloc.ErrCodeNotFound},
		"wrong project": {alloc.Tenant{Project: "\x00"}, x.code, alloc.ErrTenantName},
	} {
		_, err := x.Migrate(t.Context(), alloc.Caller{Tenant: tt.tenant, Player: "bob"}, tt.code, alloc.ConnectionData{})
		wantError(t, name, err, tt.want)
	}
}

// TestMigrateWrongCode: wrong codes count as failed joins, so new codes get longer.
func TestMigrateWrongCode(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	for range 100_000 {
		_, err := x.Migrate(t.Context(), bob, "6789BCDFGHJK", alloc.ConnectionData{})
		if !errors.Is(err, alloc.ErrCodeNotFound) {
			t.Fatal(err)
		}
	}
	next := mustCode(t, x.Service, alice, mustAllocate(t, x.Service, alice))
	if len(next) <= len(x.code) {
		t.Errorf("the code %s after wrong ones, %s before", next, x.code)
	}
}

// TestMigrateIsAdmitted: a candidate is a reservation, for the rules of the operator and for the
// limit of those that are not bound.
func TestMigrateIsAdmitted(t *testing.T) {
	t.Parallel()
	var asked []alloc.AdmissionRequest
	x := newMigration(t, func(c *alloc.ServiceConfig) {
		c.MaxOutstanding = 1
		c.Admit = func(_ context.Context, q alloc.AdmissionRequest) error {
			asked = append(asked, q)
			return nil
		}
	})
	wantError(t, "leave", x.Leave(t.Context(), alice, x.host, alloc.ConnectionData{8}), nil)
	res, err := x.Migrate(t.Context(), bob, x.code, alloc.ConnectionData{})
	wantError(t, "the first", err, nil)
	if q := asked[len(asked)-1]; q.Role != alloc.RoleHost || q.Host != x.host || q.Caller.Player != "bob" {
		t.Errorf("asked %+v", q)
	}
	_, err = x.Migrate(t.Context(), bob, x.code, alloc.ConnectionData{})
	wantError(t, "the second", err, alloc.ErrOutstanding)
	x.OnEnd(res.ID)
	_, err = x.Migrate(t.Context(), bob, x.code, alloc.ConnectionData{})
	wantError(t, "after its end", err, nil)
}

// TestMigrationsOff: without the setting there is no migration, and with it the service needs a
// relay for it.
func TestMigrationsOff(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	off := newTestService(t, x.relay, func(c *alloc.ServiceConfig) { c.Store = x.store })
	_, err := off.Migrate(t.Context(), bob, x.code, alloc.ConnectionData{})
	wantError(t, "Migrate without the setting", err, alloc.ErrNotFound)
	wantError(t, "Leave without the setting", off.Leave(t.Context(), alice, x.host, alloc.ConnectionData{8}), alloc.ErrNotFound)
	if off.HostMigration() || !x.HostMigration() || len(x.relay.Migrations)+len(x.relay.Leaves) != 0 {
		t.Errorf("HostMigration = %v, the relay was asked %v", off.HostMigration(), x.relay.Migrations)
	}
	x.relay.Config.HostMigration = false
	_, err = alloc.NewService(alloc.ServiceConfig{Relay: x.relay, Store: x.store, Regions: testRegions, HostMigration: true})
	if !errors.Is(err, alloc.ErrConfig) || !strings.Contains(err.Error(), "Relay") {
		t.Errorf("a relay without migrations: error %v", err)
	}
}
