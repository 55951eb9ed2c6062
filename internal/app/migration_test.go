package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// migration are the settings of the tests: a host counts as one that has left early, and
// the silence of its players, which the test makes on a busy machine, does not.
func migration(c *config.Config) {
	c.HostMigration, c.HostMigrationSilence = 5*time.Minute, 3*time.Second // longer than a slow machine stalls
	c.IdleTimeout, c.HearTimeout, c.BindTimeout = 5*time.Minute, 5*time.Minute, 5*time.Minute
	c.MaxOutstanding, c.PlayerPerMinute, c.ServerPerMinute = 1000, 1_000_000, 1_000_000
}

// participant is one of a match, with the session that it plays by.
type participant struct {
	api     *api.Client
	ticket  client.Ticket
	session *client.Session
	socket  *net.UDPConn // closing it is the crash of the player
	host    *client.Peer // nil: it is the host
	stop    func()
}

// play opens the session of a ticket.
func (p *participant) play(t *testing.T, ticket client.Ticket) {
	t.Helper()
	if p.stop != nil {
		p.stop()
	}
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.New(client.Config{Ticket: ticket, PingPeriod: 200 * time.Millisecond, Conn: socket})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(context.Background()) })
	p.ticket, p.session, p.socket, p.host = ticket, s, socket, nil
	p.stop = func() { _ = s.Close(); running.Wait() }
}

func (p *participant) isHost() bool { return len(p.ticket.HostConnectionData) == 0 }

// enter binds the session, and connects that of a joiner to its host.
func (p *participant) enter(ctx context.Context) (err error) {
	if p.isHost() {
		return p.session.Bind(ctx)
	}
	p.host, err = p.session.Connect(ctx)
	return err
}

// exchange has each player send the host a datagram and get one back.
func exchange(t *testing.T, players []*participant) {
	t.Helper()
	var host *participant
	for _, p := range players {
		if p.isHost() {
			host = p
		}
	}
	if host == nil {
		t.Fatal("no host")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var talking sync.WaitGroup
	talking.Go(func() { // the host
		for range len(players) - 1 {
			peer, err := host.session.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = peer.Write([]byte("welcome"))
		}
	})
	for _, p := range players {
		if p == host {
			continue
		}
		talking.Go(func() {
			for ctx.Err() == nil {
				_, _ = p.host.Write([]byte("hello"))
				_ = p.host.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				if n, err := p.host.Read(make([]byte, 100)); err == nil && n == len("welcome") {
					return
				}
			}
			t.Errorf("player %v got nothing from its host", p.ticket.ID)
		})
	}
	talking.Wait()
}

// newMatch starts a match of a host and so many players, each with the API process that
// callers returns.
func newMatch(t *testing.T, joiners int, callers func(i int) *api.Client) (players []*participant, code string) {
	t.Helper()
	for i := range joiners + 1 {
		p := &participant{api: callers(i)}
		var ticket client.Ticket
		var err error
		if i == 0 {
			ticket, err = client.Reserve(t.Context(), p.api, joiners, "")
		} else {
			ticket, err = client.Redeem(t.Context(), p.api, code)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.play(t, ticket)
		t.Cleanup(func() { p.stop() })
		if err := p.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if code, err = p.api.JoinCode(t.Context(), ticket.ID.String()); err != nil {
				t.Fatal(err)
			}
		}
		players = append(players, p)
	}
	exchange(t, players)
	return players, code
}

// migrateAll has all players call for the host's place at once, and play on. It returns how
// long that took, and fails unless exactly one of them is the host.
func migrateAll(t *testing.T, players []*participant, code string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	tickets := make([]client.Ticket, len(players))
	var asking sync.WaitGroup
	for i, p := range players {
		asking.Go(func() {
			var host proto.AllocationID
			if p.host != nil {
				host = p.host.ID()
			}
			var err error
			tickets[i], err = client.Migrate(ctx, client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket, Host: host})
			if err != nil {
				t.Errorf("player %d: %v", i, err)
			}
		})
	}
	asking.Wait()
	if t.Failed() {
		t.FailNow()
	}
	hosts := 0
	for i, p := range players {
		p.play(t, tickets[i])
		if p.isHost() {
			hosts++
		}
	}
	if hosts != 1 {
		t.Fatalf("%d hosts", hosts)
	}
	for _, p := range players {
		asking.Go(func() {
			if err := p.enter(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	took := time.Since(began)
	if t.Failed() {
		t.FailNow()
	}
	exchange(t, players)
	return took
}

// leaveHost takes the host out of the players, with CLOSE or by a crash.
func leaveHost(players []*participant, crash bool) (rest []*participant) {
	for _, p := range players {
		switch {
		case !p.isHost():
			rest = append(rest, p)
		case crash:
			_ = p.socket.Close()
		default:
			p.stop()
		}
	}
	return rest
}

// TestMigration: the host of ten players closes its session, its candidate crashes, and so
// on until two are left. Each time one of the players is the host, with the same code.
func TestMigration(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 10, func(int) *api.Client { return r.caller("") })
	for round := 0; len(players) > 2; round++ {
		crash := round%2 == 1
		players = leaveHost(players, crash)
		t.Logf("%d players play on after %v (crash: %v, which the relay takes 3 s to notice)", len(players), migrateAll(t, players, code).Round(time.Millisecond), crash)
	}
}

// TestCandidateNeverBinds: the player that gets the host's place crashes before it binds.
// The others have joined it, and one of them succeeds it.
func TestCandidateNeverBinds(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 4, func(int) *api.Client { return r.caller("") })
	players = leaveHost(players, false)
	winner := players[0]
	if _, err := client.Migrate(t.Context(), client.MigrationConfig{API: winner.api, Code: code, Ticket: winner.ticket, Host: winner.host.ID()}); err != nil {
		t.Fatal(err)
	}
	winner.stop()
	players = players[1:]
	for _, p := range players { // They learn of the candidate, and wait for it.
		ticket, err := client.Migrate(t.Context(), client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket, Host: p.host.ID()})
		if err != nil || len(ticket.HostConnectionData) == 0 {
			t.Fatalf("%v, or a second host", err)
		}
		p.play(t, ticket)
		if err := p.session.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	migrateAll(t, players, code)
}

// TestMigrationAfterLostAnswer: a player whose answer was lost calls again, and is the host.
func TestMigrationAfterLostAnswer(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 2, func(int) *api.Client { return r.caller("") })
	players = leaveHost(players, false)
	p := players[0]
	cfg := client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket, Host: p.host.ID()}
	lost, err := client.Migrate(t.Context(), cfg)
	if err != nil || len(lost.HostConnectionData) > 0 {
		t.Fatalf("not the host: %v", err)
	}
	again, err := client.Migrate(t.Context(), cfg)
	if err != nil || len(again.HostConnectionData) > 0 || again.ID == lost.ID {
		t.Fatalf("not the host at its second call: %v", err)
	}
	p.play(t, again)
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := players[1]
	ticket, err := client.Migrate(t.Context(), client.MigrationConfig{API: q.api, Code: code, Ticket: q.ticket, Host: q.host.ID()})
	if err != nil {
		t.Fatal(err)
	}
	q.play(t, ticket)
	if err := q.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	exchange(t, players)
}

// TestNoMigration: without the setting, and for a match that the operator has closed, the
// code leads nowhere; a player that the host has disconnected is no candidate.
func TestNoMigration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		on    bool
		leave func(t *testing.T, r running, players []*participant)
	}{
		"switched off": {false, func(_ *testing.T, _ running, players []*participant) { players[0].stop() }},
		"closed by the operator": {true, func(t *testing.T, r running, players []*participant) {
			if err := r.relay.End(t.Context(), players[0].ticket.ID); err != nil {
				t.Fatal(err)
			}
		}},
		"kicked": {true, func(t *testing.T, r running, players []*participant) {
			if err := r.relay.Kick(t.Context(), players[1].ticket.ID); err != nil {
				t.Fatal(err)
			}
			players[0].stop()
		}},
		"no players": {true, func(t *testing.T, r running, players []*participant) {
			players[1].stop()
			testkit.Eventually(t, "the link is closed", func() bool { return r.relay.Stats().Links == 0 })
			players[0].stop()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			settings := local()
			migration(&settings)
			if !c.on {
				settings.HostMigration = 0
			}
			r := start(t, options(settings, Dev))
			players, code := newMatch(t, 1, func(int) *api.Client { return r.caller("") })
			p := players[1]
			host := p.host.ID()
			c.leave(t, r, players)
			_, err := client.Migrate(t.Context(), client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket, Host: host})
			if !errors.Is(err, client.ErrMatchOver) {
				t.Errorf("Migrate returned %v", err)
			}
		})
	}
}

// TestMigrationInFleet: the same over two relays and two API processes; a candidate may be
// at the other relay.
func TestMigrationInFleet(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	for i := range byte(2) {
		o := k.relayOptions(i+1, fmt.Sprint("region", i))
		migration(&o.Config)
		start(t, o)
	}
	var apis []running
	for range 2 {
		o := options(k.settings("api", cluster.Request{Role: cluster.RoleAPI}), API)
		migration(&o.Config)
		apis = append(apis, start(t, o))
	}
	for _, r := range apis {
		testkit.Eventually(t, "both relays are known", func() bool { return len(r.frontEnd.fleet.Regions()) == 2 })
	}
	players, code := newMatch(t, 10, func(i int) *api.Client { return apis[i%2].caller(secret) })
	for round := range 4 {
		players = leaveHost(players, round%2 == 1)
		t.Logf("%d players play on after %v (crash: %v)", len(players), migrateAll(t, players, code).Round(time.Millisecond), round%2 == 1)
	}
}
