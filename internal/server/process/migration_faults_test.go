package process

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// migrationFleet starts a relay and an API process, and a match whose host has left.
func migrationFleet(t *testing.T, k *fleetKit, change func(*App)) (relay, apiProcess running, o Options,
	players []*participant, code string) {
	t.Helper()
	o = k.relayOptions(1, "eu")
	migration(&o.Config, never)
	o.Files.Allocations = filepath.Join(k.dir, "allocations")
	relay = startChanged(t, o, change)
	front := options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)
	migration(&front.Config, never)
	apiProcess = start(t, front)
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(apiProcess.frontEnd.fleet.Nodes()) == 1 })
	players, code = newMatch(t, 3, func(int) *api.Client { return apiProcess.caller(secret) })
	return relay, apiProcess, o, leaveHost(t, players, says), code
}

// reserveFirst returns a reservation for the host's place, which the player has yet to bind.
func (p *participant) reserveFirst(t *testing.T, code string) client.Ticket {
	t.Helper()
	ticket, err := client.Migrate(t.Context(), client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket})
	if err != nil || len(ticket.HostConnectionData) > 0 {
		t.Fatalf("no reservation: %v", err)
	}
	return ticket
}

func (p *participant) takePlace(t *testing.T, ticket client.Ticket) {
	t.Helper()
	next := &participant{api: p.api}
	next.play(t, ticket)
	if err := next.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.stop()
	*p = *next
}

func resumeAll(t *testing.T, players []*participant, code string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var asking sync.WaitGroup
	for _, p := range players {
		asking.Go(func() { p.resume(ctx, t, code) })
	}
	asking.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func requireTraffic(t *testing.T, players []*participant) {
	t.Helper()
	host := players[0]
	for _, p := range players[1:] {
		up, down := host.session.Stats().Received, p.session.Stats().Received
		testkit.Eventually(t, "datagrams of a running match", func() bool {
			_, _ = p.host.Write([]byte("hello"))
			if peer, ok := host.session.Peer(p.ticket.ID); ok {
				_, _ = peer.Write([]byte("hello"))
			}
			return host.session.Stats().Received > up && p.session.Stats().Received > down
		})
	}
}

// TestCrashInMove: the relay is gone after the BIND of the new host, before it has told
// the store. When it is back, the new host goes on, and the others find it by the code.
func TestCrashInMove(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	before, a, o, players, code := migrationFleet(t, k, func(a *App) { a.relay.events.Migrate = events.Topic[engine.MigrateEvent]{} })
	first := players[0]
	first.takePlace(t, first.reserveFirst(t, code))
	before.cancel()
	if err := <-before.ended; err != nil {
		t.Fatal(err)
	}
	o.Fresh, o.Config.UDP = false, []config.Addr{{AddrPort: before.Listeners()[0].Addr}}
	start(t, o)
	resumeAll(t, players[1:], code)
	exchange(t, players)
	if got, err := a.caller(secret).JoinCode(t.Context(), first.ticket.ID.String()); err != nil || got != code {
		t.Errorf("the code of the new host is %q, %v; want %q", got, err, code)
	}
}

// TestMigrationWithoutStore: the store is away until no heartbeat is left. Calls get 503 with Retry-After, a
// match goes on, and a player that holds a reservation becomes the host. When the store is back, and
// empty, players allocate, join and find the new host.
func TestMigrationWithoutStore(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	_, a, _, players, code := migrationFleet(t, k, func(*App) {})
	caller := a.caller(secret)
	others, otherCode := newMatch(t, 2, func(int) *api.Client { return caller })
	first := players[0]
	ticket := first.reserveFirst(t, code)
	k.redis.Kill()
	gone := time.Now()
	for path, body := range map[string]any{
		"/v1/allocate": map[string]any{"maxConnections": 4},
		"/v1/join":     map[string]any{"joinCode": otherCode},
		"/v1/joincode": map[string]any{"allocationId": others[0].ticket.ID.String()},
		"/v1/migrate":  map[string]any{"joinCode": code, "hostConnectionData": players[1].ticket.HostConnectionData},
	} {
		testkit.Within(t, time.Minute, "503 of "+path, func() bool { // What was in flight may be answered.
			status, answer, wait := post(t, caller, path, body)
			if status == http.StatusServiceUnavailable && wait < 1 || status == http.StatusNotFound {
				t.Errorf("%s: %d %v, Retry-After %d", path, status, answer, wait)
			}
			return status == http.StatusServiceUnavailable
		})
	}
	first.takePlace(t, ticket)
	requireTraffic(t, others)
	time.Sleep(time.Until(gone.Add(placement.DeadAfter + time.Second)))
	requireTraffic(t, others)
	k.redis.Restart()
	resumeAll(t, players[1:], code)
	exchange(t, players)
	_, newCode := hostIn(t, a, "")
	for _, c := range []string{newCode, otherCode, code} {
		testkit.Within(t, time.Minute, "a join", func() bool {
			_, err := caller.Join(t.Context(), c)
			if err != nil && problem(err) != http.StatusServiceUnavailable {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}

// TestCrashInMigration: the relay ends while its match waits for a host, and starts again. Its players
// have closed their transports, as those of Unity do, or bind again. All of them play on.
func TestCrashInMigration(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		fleet          bool
		how            departure
		after          time.Duration // of the departure
		held, disposed bool          // a player holds the reservation; the players' transports are closed
	}{
		{"leave", false, says, 0, false, true},
		{"leave, 0.2 s", false, says, 200 * time.Millisecond, true, true},
		{"leave, 1.2 s", false, says, 1200 * time.Millisecond, true, false},
		{"CLOSE", false, closes, 0, false, false},
		{"silence", false, crashes, 3 * time.Second, false, true},
		{"leave, in a fleet", true, says, 200 * time.Millisecond, true, true},
		{"silence, in a fleet", true, crashes, 3 * time.Second, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := options(local(), Serve)
			o.Files.Allocations = filepath.Join(t.TempDir(), "allocations")
			front := func(relay running) running { return relay }
			if c.fleet {
				k := newFleet(t)
				o = k.relayOptions(1, "eu")
				o.Files.Allocations = filepath.Join(k.dir, "allocations")
				front = func(running) running {
					api := options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)
					migration(&api.Config, crashy)
					a := start(t, api)
					testkit.Within(t, time.Minute, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 })
					return a
				}
			}
			migration(&o.Config, crashy)
			relay := start(t, o)
			apis := front(relay)
			players, code := newMatch(t, 3, func(int) *api.Client { return apis.caller(secret) })
			rest := leaveHost(t, players, c.how)
			var held client.Ticket
			if c.held {
				held = rest[0].reserveFirst(t, code)
			}
			time.Sleep(c.after)
			for _, p := range rest {
				if c.disposed {
					_ = p.socket.Close()
				}
			}
			relay.cancel()
			if err := <-relay.ended; err != nil {
				t.Fatal(err)
			}
			o.Fresh, o.Config.UDP = false, []config.Addr{{AddrPort: relay.Listeners()[0].Addr}}
			relay = start(t, o)
			if apis = front(relay); !c.fleet {
				for _, p := range rest {
					p.api = apis.caller(secret)
				}
			}
			back := time.Now()
			if c.held {
				rest[0].takePlace(t, held)
			}
			resumeAll(t, slices.DeleteFunc(slices.Clone(rest), (*participant).isHost), code)
			t.Logf("all play on after %v", time.Since(back).Round(time.Millisecond))
			exchange(t, rest)
		})
	}
}
