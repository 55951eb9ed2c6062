package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// leftMatch starts a relay with a match whose host has left, with a player that may take its
// place. Its reservation is the player's.
func leftMatch(t *testing.T, cfg engine.Config) (r *enginetest.Relay, host alloc.Reservation, player alloc.Reservation) {
	t.Helper()
	cfg.HostMigrationWindow = 5 * time.Minute
	cfg.IdleTimeout = 5 * time.Minute // Players of a slow machine stay.
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

// TestMigrateHeirs: the join code may lead to a host that the same migration made, and to no
// other one, or a player could take a code of another match.
func TestMigrateHeirs(t *testing.T) {
	t.Parallel()
	r, host, player := leftMatch(t, engine.Config{})
	ask := alloc.MigrationRequest{Tenant: enginetest.Tenant, Host: host.ID, Holder: host.ID, Ticket: player.HostConnectionData}
	other := r.Host("other", 4)
	wrong := ask
	wrong.Holder = other.ID
	if _, err := r.Migrate(t.Context(), wrong); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("the code of another match: %v", err)
	}
	granted, err := r.Migrate(t.Context(), ask)
	if err != nil || granted.MaxConnections != 4 || granted.Player != alloc.HashPlayer(enginetest.Tenant, "player") {
		t.Fatalf("%+v, %v", granted, err)
	}
	newHost := r.Host("player", 4)
	ask.NewHost = newHost.ID
	if _, err := r.Migrate(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	ask.Holder, ask.NewHost = newHost.ID, proto.AllocationID{}
	if _, err := r.Migrate(t.Context(), ask); err != nil {
		t.Errorf("the code of an newHost: %v", err)
	}
	ask.Holder = host.ID
	for i := range 100 {
		ask.NewHost = proto.AllocationID{byte(i + 1)}
		if _, err = r.Migrate(t.Context(), ask); err != nil {
			break
		}
	}
	if !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("newHosts without end: %v", err)
	}
}

// TestMigrateTickets: tickets of another player, match or tenant, and connection data that is
// no ticket, are not found.
func TestMigrateTickets(t *testing.T) {
	t.Parallel()
	r, host, player := leftMatch(t, engine.Config{})
	good := alloc.MigrationRequest{Tenant: enginetest.Tenant, Host: host.ID, Holder: host.ID, Ticket: player.HostConnectionData}
	if _, err := r.ReserveJoiner(t.Context(), alloc.JoinerRequest{Tenant: enginetest.Tenant, Host: host.ID}); !errors.Is(err, alloc.ErrMigration) {
		t.Errorf("a join: %v", err)
	}
	for name, change := range map[string]func(*alloc.MigrationRequest){
		"own data in place of a ticket": func(q *alloc.MigrationRequest) { q.Ticket = player.ConnectionData },
		"host's data":                   func(q *alloc.MigrationRequest) { q.Ticket = host.ConnectionData },
		"damaged":                       func(q *alloc.MigrationRequest) { q.Ticket[100] ^= 1 },
		"another player":                func(q *alloc.MigrationRequest) { q.Player = alloc.PlayerHash{1} },
		"another tenant":                func(q *alloc.MigrationRequest) { q.Tenant.Project = "other" },
		"another match":                 func(q *alloc.MigrationRequest) { q.Host, q.Holder = proto.AllocationID{1}, proto.AllocationID{1} },
	} {
		q := good
		change(&q)
		if _, err := r.Migrate(t.Context(), q); !errors.Is(err, alloc.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.End(t.Context(), player.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Migrate(t.Context(), good); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("a player that has ended: %v", err)
	}
}
