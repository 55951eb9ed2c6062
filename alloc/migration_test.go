package alloc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// migrationRelay is a fakeRelay whose hosts may have candidates: the first player that asks
// gets the permission until the test ends it. A ticket is the id of its host and the hash of
// its player.
type migrationRelay struct {
	*fakeRelay
	candidate alloc.PlayerHash // zero: none
	asked     []alloc.MigrationRequest
	newHosts  []proto.AllocationID
}

func ticketOf(c alloc.Caller, host proto.AllocationID) (d alloc.ConnectionData) {
	player := alloc.HashPlayer(c.Tenant, c.Player)
	copy(d[:], host[:])
	copy(d[len(host):], player[:])
	return d
}

func (r *migrationRelay) Migrate(_ context.Context, q alloc.MigrationRequest) (alloc.Migration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, q)
	var player alloc.PlayerHash
	copy(player[:], q.Ticket[len(q.Host):])
	_, live := r.live[q.Host]
	switch {
	case proto.AllocationID(q.Ticket[:len(q.Host)]) != q.Host, q.Player != alloc.PlayerHash{} && q.Player != player:
		return alloc.Migration{}, alloc.ErrNotFound
	case live:
		return alloc.Migration{}, alloc.ErrHostPresent
	case q.Holder != q.Host && !slices.Contains(r.newHosts, q.Holder):
		return alloc.Migration{}, alloc.ErrNotFound
	case r.candidate != alloc.PlayerHash{} && r.candidate != player:
		return alloc.Migration{}, alloc.MigrationError{Candidate: proto.AllocationID{9}}
	}
	r.candidate = player
	if !q.NewHost.IsZero() {
		r.newHosts = append(r.newHosts, q.NewHost)
	}
	return alloc.Migration{Player: player, MaxConnections: 4, Region: "eu-west"}, nil
}

// leave ends a host whose place a player may take.
func (r *migrationRelay) leave(host proto.AllocationID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, host)
	r.candidate = alloc.PlayerHash{}
}

func (r *migrationRelay) bind(host proto.AllocationID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.live[host]
	d.Bound = true
	r.live[host] = d
}

// migration is a match whose host has left.
type migration struct {
	*alloc.Service
	relay *migrationRelay
	store *alloc.MemoryStore
	kept  map[proto.AllocationID]string
	keep  error // the answer of KeepCode
	code  string
	host  proto.AllocationID // the former one
}

func newMigration(t *testing.T, change func(*alloc.ServiceConfig)) *migration {
	t.Helper()
	x := &migration{
		relay: &migrationRelay{fakeRelay: newFakeRelay()}, store: alloc.NewMemoryStore(),
		kept: make(map[proto.AllocationID]string),
	}
	x.Service = newTestService(t, x.relay, func(c *alloc.ServiceConfig) {
		c.Store, c.HostMigration = x.store, true
		c.KeepCode = func(_ context.Context, host proto.AllocationID, code string) error {
			if err := x.keep; err != nil {
				return err
			}
			x.kept[host] = code
			return nil
		}
		if change != nil {
			change(c)
		}
	})
	x.host = mustAllocate(t, x.Service, alice)
	x.code = mustCode(t, x.Service, alice, x.host)
	x.relay.leave(x.host)
	return x
}

func (x *migration) migrate(c alloc.Caller) (alloc.Reservation, error) {
	return x.Migrate(context.Background(), c, alloc.MigrationClaim{Code: strings.ToLower(x.code), Host: x.host, Ticket: ticketOf(c, x.host)})
}

func (x *migration) leadsTo(t *testing.T, want proto.AllocationID) {
	t.Helper()
	if got, err := x.store.HostOf(t.Context(), testTenant, x.code); err != nil || got != want {
		t.Errorf("the code leads to %v, %v; want %v", got, err, want)
	}
	wantCodes(t, x.store, 1)
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error %v, want %v", what, got, want)
	}
}

// TestMigrate: one player gets a host with the code, the connections and the region of the
// former host; the others do not, before and after it is bound.
func TestMigrate(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	if !x.HostMigration() {
		t.Error("no migrations")
	}
	carol := alloc.Caller{Tenant: testTenant, Player: "carol"}
	res, err := x.migrate(bob)
	if err != nil || res.ID.IsZero() || res.Region != "eu-west" {
		t.Fatalf("Migrate = %v in %q, %v", res.ID, res.Region, err)
	}
	x.leadsTo(t, res.ID)
	if x.kept[res.ID] != x.code {
		t.Errorf("kept %q", x.kept[res.ID])
	}
	ask := x.relay.hosts[len(x.relay.hosts)-1]
	if ask.Player != alloc.HashPlayer(testTenant, "bob") || ask.MaxConnections != 4 || ask.Region != "eu-west" {
		t.Errorf("asked the relay for %+v", ask)
	}
	_, err = x.migrate(carol)
	wantError(t, "another player while bob has the permission", err, alloc.ErrHostPresent)
	x.relay.candidate = alloc.PlayerHash{}
	_, err = x.migrate(carol)
	wantError(t, "another player before the host is bound", err, alloc.ErrHostPresent)
	x.relay.bind(res.ID)
	for _, c := range []alloc.Caller{carol, bob, backend} {
		_, err = x.migrate(c)
		wantError(t, c.Player+" after the host is bound", err, alloc.ErrHostPresent)
	}
	x.leadsTo(t, res.ID)
	if joined, err := x.Join(t.Context(), carol, x.code); err != nil || joined.ID.IsZero() {
		t.Errorf("Join = %v", err)
	}
	// The new host leaves too; its players have tickets for it.
	x.relay.leave(res.ID)
	next, err := x.Migrate(t.Context(), carol, alloc.MigrationClaim{Code: x.code, Ticket: ticketOf(carol, res.ID)})
	wantError(t, "the candidate of the candidate", err, nil)
	x.leadsTo(t, next.ID)
}

// TestMigrateOtherMatch: with the ticket of a match whose host has left, a player gets no code
// of another match, whether the host of that one is there or has left too.
func TestMigrateOtherMatch(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		x := newMigration(t, nil)
		other := mustAllocate(t, x.Service, alice)
		code := mustCode(t, x.Service, alice, other)
		if left {
			x.relay.leave(other)
		}
		_, err := x.Migrate(t.Context(), bob, alloc.MigrationClaim{Code: code, Host: x.host, Ticket: ticketOf(bob, x.host)})
		if want := map[bool]error{false: alloc.ErrHostPresent, true: alloc.ErrNotFound}[left]; !errors.Is(err, want) {
			t.Errorf("left %v: error %v, want %v", left, err, want)
		}
		if got, err := x.store.HostOf(t.Context(), testTenant, code); err != nil || got != other {
			t.Errorf("left %v: the code leads to %v, %v", left, got, err)
		}
	}
}

// TestMigrateTwoPlayers: a second player gets the candidate's id while it decides.
func TestMigrateTwoPlayers(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	x.relay.hostErr = alloc.ErrUnavailable
	_, err := x.migrate(bob)
	wantError(t, "the relay does not answer", err, alloc.ErrUnavailable)
	x.relay.hostErr = nil
	_, err = x.migrate(alloc.Caller{Tenant: testTenant, Player: "carol"})
	if got, _ := errors.AsType[alloc.MigrationError](err); got.Candidate != (proto.AllocationID{9}) || !errors.Is(err, alloc.ErrMigration) {
		t.Errorf("error %v", err)
	}
	x.leadsTo(t, x.host)
	x.relay.joinErr = alloc.MigrationError{Candidate: proto.AllocationID{9}}
	_, err = x.Join(t.Context(), bob, x.code)
	wantError(t, "Join", err, alloc.ErrMigration)
	x.leadsTo(t, x.host)
	res, err := x.migrate(bob)
	wantError(t, "bob again", err, nil)
	x.leadsTo(t, res.ID)
}

// TestMigrateAgain: a player that did not get its host gets another one, and the code moves
// on, also when the first one has expired. So does another player then.
func TestMigrateAgain(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	last := x.host
	for n := range 4 {
		caller := bob
		if n == 3 {
			caller = alloc.Caller{Tenant: testTenant, Player: "carol"}
		}
		if n >= 2 {
			x.relay.leave(last)
		}
		res, err := x.migrate(caller)
		if err != nil || res.ID == last {
			t.Fatalf("call %d: %v, %v", n, res.ID, err)
		}
		last = res.ID
		x.leadsTo(t, last)
	}
	x.relay.describeErr = alloc.ErrUnavailable // It is not known whether the host is there.
	_, err := x.migrate(bob)
	wantError(t, "the relay of the new host is away", err, alloc.ErrUnavailable)
	x.leadsTo(t, last)
}

// TestMigrateRefused: what refuses a call leaves the code where it was.
func TestMigrateRefused(t *testing.T) {
	t.Parallel()
	var refuse error
	var asked alloc.AdmissionRequest
	x := newMigration(t, func(c *alloc.ServiceConfig) {
		c.Admit = func(_ context.Context, q alloc.AdmissionRequest) error { asked = q; return refuse }
	})
	refuse = alloc.DeniedError{Reason: "banned"}
	_, err := x.migrate(bob)
	wantError(t, "admission", err, refuse)
	if want := (alloc.AdmissionRequest{Caller: bob, Role: alloc.RoleHost, MaxConnections: 4, Region: "eu-west"}); asked != want {
		t.Errorf("asked %+v", asked)
	}
	refuse = nil
	claim := alloc.MigrationClaim{Code: x.code, Host: x.host, Ticket: ticketOf(bob, x.host)}
	for name, tt := range map[string]struct {
		caller alloc.Caller
		change func(*alloc.MigrationClaim)
		want   error
	}{
		"a tenant without a valid name": {longTenant, nil, alloc.ErrTenantName},
		"no code":                       {bob, func(c *alloc.MigrationClaim) { c.Code = "AEIOU" }, alloc.ErrCodeMalformed},
		"an unknown code":               {bob, func(c *alloc.MigrationClaim) { c.Code = "6789BCDFGHJK" }, alloc.ErrCodeNotFound},
		"another tenant":                {mallory, nil, alloc.ErrCodeNotFound},
		"another player's ticket":       {alice, nil, alloc.ErrNotFound},
		"a player without a name":       {unnamed, nil, alloc.ErrNotFound},
		"a ticket of another match":     {bob, func(c *alloc.MigrationClaim) { c.Ticket = ticketOf(bob, proto.AllocationID{1}) }, alloc.ErrNotFound},
	} {
		c := claim
		if tt.change != nil {
			tt.change(&c)
		}
		res, err := x.Migrate(t.Context(), tt.caller, c)
		if wantError(t, name, err, tt.want); !res.ID.IsZero() {
			t.Errorf("%s: a reservation", name)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = x.Migrate(gone, bob, claim)
	wantError(t, "a caller that has disconnected", err, alloc.ErrUnavailable)
	x.leadsTo(t, x.host)
	if _, err := x.Migrate(t.Context(), backend, claim); err != nil {
		t.Errorf("a backend: %v", err)
	}
	if ask := x.relay.hosts[len(x.relay.hosts)-1]; ask.Player != alloc.HashPlayer(testTenant, "bob") {
		t.Errorf("the host of a backend's call is not that of the ticket's player: %+v", ask)
	}
}

// TestMigrateWrongCode: wrong codes count as failed joins, so new codes get longer.
func TestMigrateWrongCode(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	for range 100_000 {
		_, err := x.Migrate(t.Context(), bob, alloc.MigrationClaim{Code: "6789BCDFGHJK", Host: x.host})
		if !errors.Is(err, alloc.ErrCodeNotFound) {
			t.Fatal(err)
		}
	}
	next := mustCode(t, x.Service, alice, mustAllocate(t, x.Service, alice))
	if len(next) <= len(x.code) {
		t.Errorf("the code %s after wrong ones, %s before", next, x.code)
	}
}

// TestMigrateKeepFails: the code does not move to a host whose relay does not keep it, since
// it would end with that host.
func TestMigrateKeepFails(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{alloc.ErrUnavailable, alloc.ErrNotFound, errors.New("disk full")} {
		x := newMigration(t, nil)
		x.keep = fmt.Errorf("deep inside: %w", fails)
		res, err := x.migrate(bob)
		if !errors.Is(err, alloc.ErrUnavailable) || errors.Is(err, alloc.ErrNotFound) || !res.ID.IsZero() {
			t.Errorf("KeepCode fails with %v: %v, %v", fails, res.ID, err)
		}
		x.leadsTo(t, x.host)
		x.keep, x.relay.candidate = nil, alloc.PlayerHash{}
		res, err = x.migrate(alloc.Caller{Tenant: testTenant, Player: "carol"})
		wantError(t, "another player", err, nil)
		x.leadsTo(t, res.ID)
	}
}

// bareStore is a store that moves no codes.
type bareStore struct{ alloc.Store }

// TestMigrationsOff: without the setting there is no migration, and with it the service
// needs a relay and a store for it.
func TestMigrationsOff(t *testing.T) {
	t.Parallel()
	x := newMigration(t, nil)
	off := newTestService(t, x.relay, func(c *alloc.ServiceConfig) { c.Store = x.store })
	_, err := off.Migrate(t.Context(), bob, alloc.MigrationClaim{Code: x.code, Host: x.host, Ticket: ticketOf(bob, x.host)})
	wantError(t, "without the setting", err, alloc.ErrNotFound)
	if off.HostMigration() || len(x.relay.asked) != 0 {
		t.Errorf("Migrations = %v, the relay was asked %v", off.HostMigration(), x.relay.asked)
	}
	good := alloc.ServiceConfig{Relay: x.relay, Store: x.store, Regions: testRegions, HostMigration: true}
	for name, change := range map[string]func(*alloc.ServiceConfig){
		"Relay": func(c *alloc.ServiceConfig) { c.Relay = newFakeRelay() },
		"Store": func(c *alloc.ServiceConfig) { c.Store = bareStore{x.store} },
	} {
		cfg := good
		change(&cfg)
		if _, err := alloc.NewService(cfg); !errors.Is(err, alloc.ErrServiceConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
