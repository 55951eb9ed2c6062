package process

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/dataplane"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// countedCodes counts what a service does with the codes of hosts that end.
type countedCodes struct {
	*localCodes
	forgotten, moved atomic.Int32
}

func (c *countedCodes) Forget(host proto.AllocationID) {
	c.forgotten.Add(1)
	c.localCodes.Forget(host)
}

func (c *countedCodes) MoveCode(ctx context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	c.moved.Add(1)
	return c.localCodes.MoveCode(ctx, tenant, code, from, to)
}

// TestNotices: of each bind, end, migration and join code the subscribers and the service hear once. A host whose code
// leads to another match by now is ended.
func TestNotices(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"the code moves": false, "the code is taken": true} {
		t.Run(name, func(t *testing.T) { t.Parallel(); testNotices(t, taken) })
	}
}

func testNotices(t *testing.T, taken bool) {
	var stream events.Stream
	r := enginetest.Start(t, engine.Config{
		Region: "home", Hooks: stream.RelayHooks(), HostMigration: engine.HostMigration{Window: 5 * time.Minute},
		Timeouts: engine.Timeouts{Idle: 5 * time.Minute}, // Players of a slow machine stay.
	})
	codes := &countedCodes{localCodes: &localCodes{
		Store: alloc.NewMemoryStore(), relay: r.Server, log: slog.New(slog.DiscardHandler),
	}}
	var binds, ends, migrations, joinCodes atomic.Int32
	stream.Bind.Subscribe(func(engine.BindEvent) { binds.Add(1) })
	stream.End.Subscribe(func(engine.EndEvent) { ends.Add(1) })
	stream.Migrate.Subscribe(func(engine.MigrateEvent) { migrations.Add(1) })
	stream.Code.Subscribe(func(privateapi.CodeEvent) { joinCodes.Add(1) })
	codes.subscribe(&stream)
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: &dataplane.Relay{Server: r.Server}, Store: codes, Regions: []alloc.Region{{ID: "home"}}, HostMigration: true,
		KeepCode: r.Private().KeepCode,
	})
	if err != nil {
		t.Fatal(err)
	}

	backend := alloc.Caller{Tenant: enginetest.Tenant, Server: true}
	host, err := service.Allocate(t.Context(), backend, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := service.JoinCode(t.Context(), backend, host.ID)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := service.JoinCode(t.Context(), backend, host.ID); again != code || err != nil {
		t.Fatal(again, err)
	}
	player, err := service.Join(t.Context(), backend, code)
	if err != nil {
		t.Fatal(err)
	}
	h, p := enginetest.Play(t, enginetest.UTP2, r.Credentials(host)), enginetest.Play(t, enginetest.UTP2, r.Credentials(player))
	testkit.Eventually(t, "the host is bound", h.HasStatus(enginetest.Established))
	p.Connect()
	testkit.Eventually(t, "the player is linked", p.HasPeers(1))
	if err := service.Leave(t.Context(), backend, host.ID, alloc.ConnectionData{}); err != nil {
		t.Fatal(err)
	}
	next, err := service.Migrate(t.Context(), backend, code, player.HostConnectionData)
	if err != nil {
		t.Fatal(err)
	}
	if taken {
		codes.Store.Forget(host.ID)
		if stored, err := codes.PutCode(t.Context(), enginetest.Tenant, code, proto.AllocationID{1}); !stored || err != nil {
			t.Fatal(stored, err)
		}
	}
	n := enginetest.Play(t, enginetest.UTP2, r.Credentials(next))
	testkit.Eventually(t, "a migration", func() bool { return migrations.Load() > 0 })
	wantHost := next.ID
	if taken {
		wantHost = proto.AllocationID{1}
		testkit.Eventually(t, "the new host is ended", func() bool { return ends.Load() == 2 })
	} else {
		testkit.Eventually(t, "the new host is bound", n.HasStatus(enginetest.Established))
		if err := r.End(t.Context(), next.ID); err != nil {
			t.Fatal(err)
		}
		wantHost = proto.AllocationID{}
	}
	if got, _ := codes.HostOf(t.Context(), enginetest.Tenant, code); got != wantHost {
		t.Errorf("the code leads to %v", got)
	}
	if err := r.End(t.Context(), player.ID); err != nil {
		t.Fatal(err)
	}
	got := [6]int32{binds.Load(), ends.Load(), migrations.Load(), joinCodes.Load(), codes.forgotten.Load(), codes.moved.Load()}
	if want := [6]int32{3, 3, 1, 2, 2, 1}; got != want {
		t.Errorf("binds, ends, migrations, join codes, codes forgotten and moved: %d, want %d", got, want)
	}
}
