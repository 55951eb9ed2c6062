package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// migration are the settings of the tests. Where a host says that it leaves, its silence counts
// after an hour only, so that nothing else ends a migration on a slow machine; reservations
// do not expire, so that none that is not bound can be waited for.
func migration(c *config.Config, silence time.Duration) {
	c.HostMigration, c.IdleTimeout, c.BindTimeout = 5*time.Minute, silence*10/7, 5*time.Minute
	c.PlayerPerMinute, c.ServerPerMinute = 1_000_000, 1_000_000
}

const (
	never  = time.Hour
	crashy = 7 * time.Second // the default, longer than a slow machine stalls, mostly
)

type participant struct {
	api     *api.Client
	ticket  client.Ticket
	session *client.Session
	socket  *net.UDPConn // closing it is the crash of the player
	host    *client.Peer // nil: it is the host
	stop    func()
}

func (p *participant) play(t *testing.T, ticket client.Ticket) {
	t.Helper()
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

func (p *participant) leaveRequest() api.LeaveRequest {
	return api.LeaveRequest{AllocationID: p.ticket.ID.String(), ConnectionData: p.ticket.ConnectionData}
}

func (p *participant) isHost() bool { return len(p.ticket.HostConnectionData) == 0 }

// isOver reports whether its session has ended, or its host has.
func (p *participant) isOver(host proto.AllocationID) bool {
	return p.session.Err() != nil || p.host != nil && p.host.ID() != host
}

func (p *participant) enter(ctx context.Context) (err error) {
	if p.isHost() {
		return p.session.Bind(ctx)
	}
	p.host, err = p.session.Connect(ctx)
	return err
}

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

// nextTicket asks for the place of the host, or joins the one that took the player's own place.
func (p *participant) nextTicket(ctx context.Context, code string) (client.Ticket, error) {
	if !p.isHost() {
		return client.Migrate(ctx, client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket})
	}
	for {
		ticket, err := client.Redeem(ctx, p.api, code)
		if err == nil || ctx.Err() != nil {
			return ticket, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// resume makes a player go on with its match, as docs/games.md says: the old session ends when
// the next one is bound.
func (p *participant) resume(ctx context.Context, t *testing.T, code string) {
	for ctx.Err() == nil {
		ticket, err := p.nextTicket(ctx, code)
		if err != nil {
			t.Errorf("migrate: %v", err)
			return
		}
		next := &participant{api: p.api}
		next.play(t, ticket)
		if err := next.enter(ctx); err != nil {
			next.stop() // Another player was first.
			continue
		}
		p.stop()
		*p = *next
		return
	}
	t.Errorf("migrate: %v", ctx.Err())
}

// migrateAll has all players ask for the host's place at once, and play on. It returns how
// long that took, until one of them is the host of all.
func migrateAll(t *testing.T, players []*participant, code string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	over := players
	for len(over) > 0 { // On a slow machine a new host may be silent for so long that it has left.
		var asking sync.WaitGroup
		for _, p := range over {
			asking.Go(func() { p.resume(ctx, t, code) })
		}
		asking.Wait()
		if t.Failed() {
			t.FailNow()
		}
		over = nil
		var host proto.AllocationID
		for _, p := range players {
			if p.isHost() && p.session.Err() == nil {
				host = p.ticket.ID
			}
		}
		for _, p := range players {
			if p.isOver(host) {
				over = append(over, p)
			}
		}
	}
	took := time.Since(began)
	hosts := 0
	for _, p := range players {
		if p.isHost() {
			hosts++
		}
	}
	if hosts != 1 {
		t.Fatalf("%d hosts", hosts)
	}
	exchange(t, players)
	return took
}

type departure int

const (
	closes  departure = iota // it sends CLOSE
	says                     // it calls leave, and its players close their links, as those of Unity do
	crashes                  // it is silent
)

func (d departure) String() string { return [...]string{"CLOSE", "leave", "crash"}[d] }

func leaveHost(t *testing.T, players []*participant, how departure) (rest []*participant) {
	t.Helper()
	var host *participant
	for _, p := range players {
		if p.isHost() {
			host = p
		} else {
			rest = append(rest, p)
		}
	}
	switch how {
	case closes:
		host.stop()
	case says:
		for range 2 { // It may be repeated.
			if err := host.api.Leave(t.Context(), host.leaveRequest()); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range rest {
			_ = p.host.Close()
		}
		_ = host.socket.Close()
	case crashes:
		_ = host.socket.Close()
	}
	return rest
}

// TestMigration: the host of ten players leaves, the next one does so in another way, and so
// on until two are left; one of them crashes, which takes as long as silence has to. Each time
// one of the players is the host, with the same code.
func TestMigration(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c, crashy)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 10, func(int) *api.Client { return r.caller("") })
	for round := 0; len(players) > 2; round++ {
		how := departure(round % 2)
		if round == 2 {
			how = crashes
		}
		players = leaveHost(t, players, how)
		t.Logf("%d players play on after %v (%v)", len(players), migrateAll(t, players, code).Round(time.Millisecond), how)
	}
}

// post makes a call of the API as a game in any language does, and returns the status, the body
// and the seconds of Retry-After.
func post(t *testing.T, c *api.Client, path string, body any) (status int, answer map[string]any, retryAfter int) {
	t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.BaseURL+path, bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+c.Token)
	res, err := c.HTTP.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
	}
	retryAfter, _ = strconv.Atoi(res.Header.Get("Retry-After"))
	return res.StatusCode, answer, retryAfter
}

// TestUnityRecipe: the calls of docs/unity.md, with nothing but the join code and the player's
// own data, by players that closed their links before the host's disconnect arrived.
func TestUnityRecipe(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c, never)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 2, func(i int) *api.Client { return r.caller(fmt.Sprint("player:", i)) })
	host, first, second := players[0], players[1], players[2]
	ask := func(p *participant) (int, map[string]any, int) {
		return post(t, p.api, "/v1/migrate", map[string]any{"joinCode": code, "hostConnectionData": p.ticket.HostConnectionData})
	}
	if status, answer, wait := ask(first); status != http.StatusConflict || wait < 1 || answer["details"] != nil {
		t.Errorf("a live host: %d %v, Retry-After %d", status, answer, wait)
	}
	for _, p := range []*participant{first, second} {
		if status, answer, _ := post(t, p.api, "/v1/leave", map[string]any{"allocationId": p.ticket.ID.String()}); status != http.StatusNotFound {
			t.Errorf("a player that is no host leaves: %d %v", status, answer)
		}
	}
	leaveHost(t, players, says)
	if status, answer, wait := post(t, host.api, "/v1/join", map[string]any{"joinCode": code}); status != http.StatusConflict || wait < 1 {
		t.Errorf("a join while there is no host: %d %v, Retry-After %d", status, answer, wait)
	}
	tickets := make(map[*participant]client.Ticket)
	for _, p := range []*participant{first, second} {
		var answer map[string]any
		testkit.Eventually(t, "the player has the place: the one before lets its turn pass", func() bool {
			var status, wait int
			status, answer, wait = ask(p)
			if status == http.StatusConflict && (wait < 1 || answer["details"] != nil) {
				t.Fatalf("while another player has the place: %v, Retry-After %d", answer, wait)
			}
			return status == http.StatusCreated
		})
		ticket, err := ticketOf(answer)
		if err != nil {
			t.Fatal(err)
		}
		tickets[p] = ticket
		if got, err := p.api.JoinCode(t.Context(), ticket.ID.String()); err != nil || got != code {
			t.Errorf("the code of a candidate is %q, %v; want %q", got, err, code)
		}
	}
	second.stop()
	second.play(t, tickets[second])
	if err := second.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	why := whyRig{r, t}
	why.expect(host.ticket.ID.String(), "; the match goes on at the host "+tickets[second].ID.String(), nil)
	late := &participant{api: first.api}
	late.play(t, tickets[first])
	defer late.stop()
	var ended client.EndedError
	if err := late.enter(t.Context()); !errors.As(err, &ended) || ended.Code != proto.ErrorNotFound {
		t.Errorf("the BIND of a player that is too late: %v", err)
	}
	status, answer, _ := ask(first)
	if details, _ := answer["details"].([]any); status != http.StatusConflict || len(details) != 1 {
		t.Errorf("after the BIND of the new host: %d %v", status, answer)
	}
	if got, err := second.api.JoinCode(t.Context(), second.ticket.ID.String()); err != nil || got != code {
		t.Errorf("the code of the new host is %q, %v; want %q", got, err, code)
	}
	joined, err := client.Redeem(t.Context(), first.api, code)
	if err != nil {
		t.Fatal(err)
	}
	first.stop()
	first.play(t, joined)
	if err := first.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	exchange(t, []*participant{first, second})
	out, err := r.operator.status.history.Why(t.Context(), host.ticket.ID)
	if want := second.ticket.ID.String(); err != nil || !bytes.Contains([]byte(out.Because), []byte(want)) {
		t.Errorf("why says of the former host %q, %v; want %s", out.Because, err, want)
	}
}

// TestCandidatesNeverBind: two players that got a reservation disappear. The others wait 2 s for
// each: reservations expire after minutes here.
func TestCandidatesNeverBind(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c, never)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 5, func(int) *api.Client { return r.caller("") })
	players = leaveHost(t, players, says)
	for _, p := range players[:2] {
		ticket, err := client.Migrate(t.Context(), client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket})
		if err != nil || len(ticket.HostConnectionData) > 0 {
			t.Fatalf("no reservation: %v", err)
		}
		p.stop()
	}
	t.Logf("the others play on after %v", migrateAll(t, players[2:], code).Round(time.Millisecond))
}

// TestMigrationAfterLostAnswer: a player whose answer was lost asks again, and is the host with
// the last answer.
func TestMigrationAfterLostAnswer(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c, never)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 2, func(int) *api.Client { return r.caller("") })
	players = leaveHost(t, players, says)
	p := players[0]
	cfg := client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket}
	lost, err := client.Migrate(t.Context(), cfg)
	if err != nil || len(lost.HostConnectionData) > 0 {
		t.Fatalf("no reservation: %v", err)
	}
	migrateAll(t, players, code)
	found := &participant{}
	found.play(t, lost)
	defer found.stop()
	if err := found.enter(t.Context()); err == nil {
		t.Error("the reservation of the lost answer was bound too")
	}
}

// TestNoMigration: without the setting, and for a match that the operator has closed, the
// code leads nowhere; a player that the host has disconnected takes no place.
func TestNoMigration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		on    bool
		leave func(t *testing.T, r running, players []*participant)
	}{
		"switched off": {false, func(_ *testing.T, _ running, players []*participant) { players[0].stop() }},
		"closed by the operator": {true, func(t *testing.T, r running, players []*participant) {
			if err := r.relay.engine.End(t.Context(), players[0].ticket.ID); err != nil {
				t.Fatal(err)
			}
		}},
		"kicked": {true, func(t *testing.T, r running, players []*participant) {
			if err := r.relay.engine.Kick(t.Context(), players[1].ticket.ID); err != nil {
				t.Fatal(err)
			}
			players[0].stop()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			settings := local()
			migration(&settings, never)
			if !c.on {
				settings.HostMigration = 0
			}
			r := start(t, options(settings, Dev))
			players, code := newMatch(t, 1, func(int) *api.Client { return r.caller("") })
			p := players[1]
			c.leave(t, r, players)
			_, err := client.Migrate(t.Context(), client.MigrationConfig{API: p.api, Code: code, Ticket: p.ticket})
			if !errors.Is(err, client.ErrMatchOver) {
				t.Errorf("Migrate returned %v", err)
			}
		})
	}
}

// TestMigratingCodes: the process after a live upgrade has the codes of hosts whose place a player may
// take, and of no others.
func TestMigratingCodes(t *testing.T) {
	t.Parallel()
	tenant, codes := alloc.Tenant{Project: "game", Environment: "live"}, []string{"6789BC", "6789BD", "6789BF"}
	var before, after migratingHosts
	store, next := alloc.NewMemoryStore(), alloc.NewMemoryStore()
	for i, code := range codes {
		id := proto.AllocationID{byte(i)}
		if stored, err := store.PutCode(t.Context(), tenant, code, id); !stored || err != nil {
			t.Fatal(stored, err)
		}
		if i > 0 { // The first one is live.
			before.add(engine.EndEvent{ID: id, Tenant: tenant})
		}
	}
	before.remove(proto.AllocationID{2}) // No player may take its place any more.
	encoded, err := json.Marshal(handedState{Migrating: before.codes(store)})
	if err != nil {
		t.Fatal(err)
	}
	var handed handedState
	if err := json.Unmarshal(encoded, &handed); err != nil {
		t.Fatal(err)
	}
	after.restore(next, handed.Migrating)
	if _, n, _ := next.Codes(t.Context(), tenant, proto.AllocationID{}); n != 1 || len(after.codes(next)) != 1 {
		t.Errorf("%d codes are handed over, want 1", n)
	}
	if got, err := next.HostOf(t.Context(), tenant, codes[1]); err != nil || got != (proto.AllocationID{1}) {
		t.Errorf("the code leads to %v, %v", got, err)
	}
}

// TestMigrationInFleet: the same over two relays and two API processes, also while the relay
// of the match drains, and with players that may have a host in neither region: the match stays in its own.
func TestMigrationInFleet(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	var relays, apis []running
	for i := range byte(2) {
		o := k.relayOptions(i+1, fmt.Sprint("region", i))
		migration(&o.Config, crashy)
		relays = append(relays, start(t, o))
	}
	for range 2 {
		o := options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)
		migration(&o.Config, crashy)
		o.Config.Tokens[0].Kind = "player"
		elsewhere := o.Config.Tokens[0]
		elsewhere.Secret, elsewhere.Regions = lockedSecret, []string{"mars"}
		o.Config.Tokens = append(o.Config.Tokens, elsewhere)
		apis = append(apis, start(t, o))
	}
	for _, r := range apis {
		testkit.Eventually(t, "both relays are known", func() bool { return len(r.frontEnd.fleet.Regions()) == 2 })
	}
	players, code := newMatch(t, 8, func(i int) *api.Client {
		if i >= 4 {
			return apis[i%2].caller(lockedSecret)
		}
		return apis[i%2].caller(secret)
	})
	_, err := players[4].api.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1, Region: "region0"})
	if problem(err) != http.StatusBadRequest {
		t.Errorf("a host of a player that may have none here: %v", err)
	}
	// The first share one token, so a player has to prove that it is the host.
	for status, proof := range map[int][]byte{http.StatusBadRequest: nil, http.StatusNotFound: players[1].ticket.ConnectionData} {
		err := players[1].api.Leave(t.Context(), api.LeaveRequest{AllocationID: players[0].ticket.ID.String(), ConnectionData: proof})
		if p, ok := errors.AsType[*api.Problem](err); !ok || p.Status != status {
			t.Errorf("a joiner leaves for its host: %v, want %d", err, status)
		}
	}
	for round := range 5 {
		if round == 3 {
			for _, r := range relays {
				if err := r.relay.drain.Drain(t.Context(), engine.DrainConfig{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		how := departure(round % 3)
		players = leaveHost(t, players, how)
		t.Logf("%d players play on after %v (%v, draining %v)", len(players), migrateAll(t, players, code).Round(time.Millisecond),
			how, round >= 3)
	}
}
