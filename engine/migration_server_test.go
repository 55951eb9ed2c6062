package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func leftMatch(t *testing.T, cfg engine.Config) (r *enginetest.Relay, host alloc.Reservation, player alloc.Reservation) {
	t.Helper()
	cfg.HostMigration.Window = 5 * time.Minute
	cfg.Timeouts.Idle = 5 * time.Minute // Players of a slow machine stay.
	r = enginetest.Start(t, cfg)
	host = r.Host("host", 4)
	player = r.Joiner("player", host.ID)
	h, p := enginetest.Play(t, enginetest.UTP2, r.Credentials(host)), enginetest.Play(t, enginetest.UTP2, r.Credentials(player))
	testkit.Eventually(t, "the host is bound", h.HasStatus(enginetest.Established))
	p.Connect()
	testkit.Eventually(t, "the player is linked", p.HasPeers(1))
	h.Inject(append([]byte{0xDA, 0x72, 0, 11}, host.ID[:]...)) // CLOSE
	testkit.Eventually(t, "the host has left", func() bool {
		_, err := r.Describe(t.Context(), host.ID)
		return errors.Is(err, alloc.ErrNotFound)
	})
	return r, host, player
}

// TestMigrateTickets: tickets of another player or tenant, and connection data that is no ticket,
// are not found; so is a player that has ended.
func TestMigrateTickets(t *testing.T) {
	t.Parallel()
	r, host, player := leftMatch(t, engine.Config{Region: "home"})
	good := alloc.MigrationRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host.ID, Code: "6789BC", Ticket: player.HostConnectionData,
	}
	if _, err := r.ReserveJoiner(t.Context(), alloc.JoinerRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host.ID,
	}); !errors.Is(err,
		alloc.ErrMigration) {
		t.Errorf("a join: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*alloc.MigrationRequest)
		want   error
	}{
		"own data in place of a ticket": {func(q *alloc.MigrationRequest) { q.Ticket = player.ConnectionData }, alloc.ErrNotFound},
		"host's data":                   {func(q *alloc.MigrationRequest) { q.Ticket = host.ConnectionData }, alloc.ErrNotFound},
		"damaged":                       {func(q *alloc.MigrationRequest) { q.Ticket[100] ^= 1 }, alloc.ErrNotFound},
		"another player":                {func(q *alloc.MigrationRequest) { q.PlayerHash = alloc.PlayerHash{1} }, alloc.ErrNotFound},
		"another tenant":                {func(q *alloc.MigrationRequest) { q.Tenant.Project = "other" }, alloc.ErrNotFound},
		"another match":                 {func(q *alloc.MigrationRequest) { q.Host = proto.AllocationID{1} }, alloc.ErrNotFound},
		"no code":                       {func(q *alloc.MigrationRequest) { q.Code = "" }, alloc.ErrCodeMalformed},
		"a code that is none":           {func(q *alloc.MigrationRequest) { q.Code = "AEIOU1" }, alloc.ErrCodeMalformed},
	} {
		q := good
		c.change(&q)
		if _, err := r.MigrateHost(t.Context(), q); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	res, err := r.MigrateHost(t.Context(), good)
	if err != nil || res.Region != "home" || len(res.Endpoints) == 0 || res.HostConnectionData != res.ConnectionData {
		t.Fatalf("%+v, %v", res, err)
	}
	if d, err := r.Describe(t.Context(), res.ID); err != nil || d.Role != alloc.RoleHost ||
		d.Player != alloc.HashPlayer(enginetest.Tenant, "player") {
		t.Errorf("reserved %+v, %v", d, err)
	}
	if err := r.LeaveHost(t.Context(), alloc.LeaveRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host.ID, PlayerHash: alloc.PlayerHash{1},
	}); !errors.Is(
		err, alloc.ErrNotFound) {
		t.Errorf("another player leaves: %v", err)
	}
	for name, proof := range map[string]alloc.ConnectionData{"joiner's": player.ConnectionData, "ticket": player.HostConnectionData,
		"damaged": {1}} {
		q := alloc.LeaveRequest{
			Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host.ID, PlayerHash: alloc.HashPlayer(enginetest.Tenant, "host"), Proof: proof,
		}
		if err := r.LeaveHost(t.Context(), q); !errors.Is(err, alloc.ErrNotFound) {
			t.Errorf("leave with %s data: %v", name, err)
		}
		if q.Proof = host.ConnectionData; r.LeaveHost(t.Context(), q) != nil {
			t.Errorf("leave with the host's own data: %v", err)
		}
	}
	for range 2 { // A backend, after CLOSE.
		if err := r.LeaveHost(t.Context(), alloc.LeaveRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host.ID}); err != nil {
			t.Error(err)
		}
	}
	if err := r.End(t.Context(), player.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.MigrateHost(t.Context(), good); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("a player that has ended: %v", err)
	}
}

func TestMigrationSeats(t *testing.T) {
	t.Parallel()
	r, host, player := leftMatch(t, engine.Config{MaxSeats: 5})
	q := alloc.MigrationRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host.ID, Code: "6789BC", Ticket: player.HostConnectionData,
	}
	for range 3 { // Each replaces the one before.
		if _, err := r.MigrateHost(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetMaxSeats(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if _, err := r.MigrateHost(t.Context(), q); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("of a full relay: %v", err)
	}
}
