package process

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/ban"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func (r running) operate(t *testing.T, method, path string) (int, string) {
	t.Helper()
	w, q := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
	q.Host = "127.0.0.1"
	r.operator.port.pages.ServeHTTP(w, q)
	return w.Code, w.Body.String()
}

func (r running) ban(t *testing.T, query string) (b operator.Ban) {
	t.Helper()
	status, body := r.operate(t, "POST", "/bans?"+query)
	if status != http.StatusOK || json.Unmarshal([]byte(body), &b) != nil {
		t.Fatalf("POST /bans?%s: %d %s", query, status, body)
	}
	return b
}

func (r running) has(t *testing.T, id proto.AllocationID) bool {
	t.Helper()
	_, err := r.relay.engine.Describe(t.Context(), id)
	return err == nil
}

func (r running) isBound(t *testing.T, id proto.AllocationID) bool {
	t.Helper()
	page, _, err := r.relay.engine.Allocations(t.Context(), engine.Filter{ID: id}, 0, 1)
	return err == nil && len(page) == 1 && page[0].EverBound
}

// backends is a relay whose backend names its players.
func backends() Options {
	o := options(local(), Serve)
	o.Config.Tokens = append(o.Config.Tokens, config.Token{Secret: secret + "-2", Project: "game", Environment: "test", Kind: "server"})
	o.Config.BindTimeout = time.Hour
	return o
}

func (r running) reserveHost(t *testing.T, player string) (client.Ticket, error) {
	t.Helper()
	a, err := r.caller(secret+"-2").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Player: player})
	if err != nil {
		return client.Ticket{}, err
	}
	return client.TicketFrom(a)
}

func (r running) reserveJoiner(t *testing.T, code, player string) (client.Ticket, error) {
	t.Helper()
	a, err := r.caller(secret+"-2").JoinFor(t.Context(), api.JoinRequest{JoinCode: code, Player: player})
	if err != nil {
		return client.Ticket{}, err
	}
	return client.TicketFrom(a)
}

// TestBanPlayer: a banned player is removed at once, and may neither allocate nor join until the
// ban ends, also after a restart. Other players notice nothing.
func TestBanPlayer(t *testing.T) {
	t.Parallel()
	o := backends()
	o.Files.Bans = filepath.Join(t.TempDir(), "bans")
	r := start(t, o)
	host, err := r.reserveHost(t, "bob")
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.caller(secret+"-2").JoinCode(t.Context(), host.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := r.reserveJoiner(t, code, "ann")
	if err != nil {
		t.Fatal(err)
	}
	b := r.ban(t, "player=ann&project=game&environment=test&for=2h&reason=cheats")
	if r.has(t, joiner.ID) || !r.has(t, host.ID) {
		t.Errorf("after the ban: the banned player is there: %t, the other: %t", r.has(t, joiner.ID), r.has(t, host.ID))
	}
	refused := func(r running, codeLives bool) {
		t.Helper()
		_, err := r.reserveJoiner(t, code, "ann")
		if codeLives && (problem(err) != http.StatusForbidden || !strings.Contains(err.Error(), "banned until") ||
			!strings.Contains(err.Error(), "cheats")) {
			t.Errorf("a join of the banned player: %v", err)
		}
		if _, err := r.reserveHost(t, "ann"); problem(err) != http.StatusForbidden {
			t.Errorf("an allocation of the banned player: %v", err)
		}
		for _, other := range []string{"bob", ""} {
			if _, err := r.reserveHost(t, other); err != nil {
				t.Errorf("player %q: %v", other, err)
			}
		}
	}
	refused(r, true)
	r.cancel()
	<-r.ended
	r = start(t, o)
	refused(r, false)
	if status, body := r.operate(t, "GET", "/bans"); status != 200 || !strings.Contains(body, b.ID) {
		t.Errorf("after a restart: %d %s", status, body)
	}
	if status, body := r.operate(t, "DELETE", "/bans/"+b.ID); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if _, err := r.reserveHost(t, "ann"); err != nil {
		t.Errorf("after the ban: %v", err)
	}
	for _, c := range []struct {
		request string
		status  int
		text    string
	}{
		{"DELETE /bans/" + b.ID, 404, "no ban has the id"},
		{"POST /bans", 400, "name a player or a prefix"},
		{"POST /bans?prefix=nonsense", 400, "neither an address nor a prefix"},
		{"POST /bans?prefix=0.0.0.0/0", 400, "larger than a /8"},
		{"POST /bans?prefix=192.0.2.0/24&for=0s", 400, "for"},
		{"POST /bans?player=ann", 400, "project"},
		{"GET /bans", 200, `{"bans":[]}`},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		if status, body := r.operate(t, method, path); status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %s", c.request, status, body)
		}
	}
}

// TestBanShared: a name that many players share cannot be banned, and the error says what can. One player can,
// of whom the answer says what ends.
func TestBanShared(t *testing.T) {
	t.Parallel()
	o := backends()
	o.Config.Tokens = append(o.Config.Tokens, config.Token{
		Secret: secret + "-3", Project: "game", Environment: "test", Kind: "player", Player: "all",
	})
	r := start(t, o)
	names := func(secret string) string { return httpapi.Token{Secret: secret}.PlayerName() }
	for player, want := range map[string]string{
		names(secret): "tokens[0]: many players may hold it; ban the network", names(secret + "-2"): "tokens[1]: its backend calls for many",
		"all": "tokens[2]",
	} {
		for _, request := range []string{"POST /bans?", "GET /bans/affected?"} {
			method, path, _ := strings.Cut(request, " ")
			status, body := r.operate(t, method, path+"project=game&environment=test&player="+player)
			if !strings.Contains(body, want) || !strings.Contains(body, "or revoke the token") || (status == 409) != (method == "POST") {
				t.Errorf("%s%s: %d %s", request, player, status, body)
			}
		}
	}
	r.ban(t, "project=game&environment=other&player=all")
	// A subject of an issuer for backends is known by what it has reserved.
	_, err := r.relay.engine.ReserveHost(t.Context(), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: game, Player: "matchmaker"}, PlayerHash: alloc.HashPlayer(game, "matchmaker"), MaxConnections: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if status, body := r.operate(t, "POST", "/bans?project=game&environment=test&player=matchmaker"); status != 409 ||
		!strings.Contains(body, "1 live allocations have the name of the player matchmaker") {
		t.Errorf("%d %s", status, body)
	}
	ann, err := r.reserveHost(t, "ann")
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.caller(secret+"-2").JoinCode(t.Context(), ann.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	bob, err := r.reserveJoiner(t, code, "bob")
	if err != nil {
		t.Fatal(err)
	}
	players := []*participant{{}, {}}
	for i, ticket := range []client.Ticket{ann, bob} {
		players[i].play(t, ticket)
		defer players[i].stop()
		if err := players[i].enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exchange(t, players)
	for query, want := range map[string]string{
		"project=game&environment=test&player=ann": "The ban of player ann of game/test ends now: hosts 1 (each with its match; " +
			"others in these matches: 1), joiners 0. Allocate, join and migrate of this player are refused",
		"project=game&environment=test&player=bob": "hosts 0, joiners 1. ",
		"prefix=127.0.0.1": "The ban of 127.0.0.1/32 ends now: hosts 1 (each with its match; others in these matches: 0), joiners 1, " +
			"WebSocket connections 0. All players of this network are shut out",
		"prefix=192.0.2.0/24": "hosts 0, joiners 0, WebSocket connections 0. ",
		"prefix=0.0.0.0/0":    `"refused":"ban: 0.0.0.0/0 is larger`,
	} {
		if status, body := r.operate(t, "GET", "/bans/affected?"+query); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	if len(r.operator.status.bans.List().Bans) != 1 || !r.has(t, ann.ID) || !r.has(t, bob.ID) {
		t.Error("a ban that was refused has ended something, or is in the list")
	}
}

var game = alloc.Tenant{Project: "game", Environment: "test"}

// TestBanLate: a banned player is removed when it binds what was reserved when the ban was not known everywhere,
// or what comes back after a restart.
func TestBanLate(t *testing.T) {
	t.Parallel()
	o := backends()
	o.Files.Allocations = filepath.Join(t.TempDir(), "allocations")
	r := start(t, o)
	old, err := r.reserveHost(t, "ann")
	if err != nil {
		t.Fatal(err)
	}
	c := dialRaw(t, old)
	c.bind()
	testkit.Eventually(t, "a binding", func() bool { return r.isBound(t, old.ID) })
	r.cancel()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.ban(t, "project=game&environment=test&player=ann")
	old.Server = r.relay.engine.Addr()
	c = dialRaw(t, old)
	c.nonce = 2
	testkit.Eventually(t, "it comes back and is removed", func() bool {
		c.bind()
		return r.relay.stats().Rebuilt == 1 && !r.has(t, old.ID)
	})

	res, err := r.relay.engine.ReserveHost(t.Context(), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: game, Player: "ann", Individual: true}, PlayerHash: alloc.HashPlayer(game, "ann"), MaxConnections: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	late := old
	late.ID, late.Key, late.ConnectionData = res.ID, proto.Key(res.Key), res.ConnectionData[:]
	if !r.has(t, late.ID) {
		t.Error("what was not bound is gone")
	}
	dialRaw(t, late).bind()
	testkit.Eventually(t, "it binds and is removed", func() bool { return !r.has(t, late.ID) })
}

// TestBanMigration: a banned player, and one that a backend names with the ticket of another one, does not get the
// place of a host that has left. Another one of the match does.
func TestBanMigration(t *testing.T) {
	t.Parallel()
	c := local()
	migration(&c, never)
	r := start(t, options(c, Dev))
	players, code := newMatch(t, 2, func(i int) *api.Client { return r.caller(fmt.Sprint("player:", i)) })
	rest := leaveHost(t, players, says)
	ask := func(p *participant, name string) int {
		status, _, _ := post(t, p.api, "/v1/migrate", api.MigrateRequest{
			JoinCode: code, HostConnectionData: p.ticket.HostConnectionData, Player: name,
		})
		return status
	}
	if status := ask(rest[0], "2"); status != http.StatusNotFound {
		t.Errorf("with the ticket of another player: %d", status)
	}
	r.ban(t, "project=dev&environment=dev&player=1")
	if status := ask(rest[0], ""); status != http.StatusForbidden {
		t.Errorf("the banned player: %d", status)
	}
	if status := ask(rest[1], "2"); status != http.StatusCreated {
		t.Errorf("the other player: %d", status)
	}
}

// TestBanNetwork: a player in a banned network over UDP is removed, and cannot come back; a
// backend can call for others.
func TestBanNetwork(t *testing.T) {
	t.Parallel()
	r := start(t, backends())
	host, _, joiner := r.reserveMatch(t)
	c := dialRaw(t, host)
	c.bind()
	testkit.Eventually(t, "a binding", func() bool { return r.isBound(t, host.ID) })
	b := r.ban(t, "prefix=127.0.0.9/8")
	if got := b.Prefix.String(); got != "127.0.0.0/8" {
		t.Errorf("banned %s", got)
	}
	if r.has(t, host.ID) {
		t.Error("the host that was bound from the network is still there")
	}
	forbidden := func() uint64 { return r.Stats().Drops["forbidden"] }
	dialRaw(t, joiner).bind()
	testkit.Eventually(t, "a BIND is dropped", func() bool { return forbidden() > 0 })
	if _, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4}); problem(err) != http.StatusForbidden {
		t.Errorf("a player of the network: %v", err)
	}
	if _, err := r.caller(secret+"-2").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4}); err != nil {
		t.Errorf("a backend: %v", err)
	}
	if status, _ := r.operate(t, "DELETE", "/bans/"+b.ID); status != 200 {
		t.Error("the ban cannot be removed")
	}
	again := dialRaw(t, joiner)
	testkit.Eventually(t, "a binding after the ban", func() bool {
		again.bind()
		return r.isBound(t, joiner.ID)
	})
}

// TestBanNetworkDTLS: a ban of a network ends what is bound from there over DTLS at once.
func TestBanNetworkDTLS(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	host, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	if err != nil {
		t.Fatal(err)
	}
	p := dialler{running: r}.join(t, host, "dtls")
	if !r.has(t, p.id) {
		t.Fatal("the host is not there before the ban")
	}
	r.ban(t, "prefix=192.0.2.0/24")
	if !r.has(t, p.id) {
		t.Error("a ban of another network has ended the host")
	}
	r.ban(t, "prefix=127.0.0.0/8")
	if r.has(t, p.id) {
		t.Error("the host that was bound from the network is still there")
	}
}

func TestBanEnds(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	r.ban(t, "prefix=127.0.0.0/8&for=1s")
	testkit.Eventually(t, "the ban ends", func() bool {
		_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
		return err == nil && len(r.operator.status.bans.List().Bans) == 0
	})
}

// TestBanFleet: a ban at one API process holds at every other one and at the relays, and
// survives a store that loses all, or goes on from an older copy.
func TestBanFleet(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	relay, a, b := k.relay(1, "eu"), k.api(), k.api()
	testkit.Eventually(t, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 && len(b.frontEnd.fleet.Nodes()) == 1 })
	host, _ := hostIn(t, a, "eu")
	id, err := proto.ParseAllocationID(host.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	hash := operator.Ban{Player: "ann", Project: "game", Environment: "test"}
	if ban.Hash(&hash) != alloc.HashPlayer(alloc.Tenant{Project: "game", Environment: "test"}, "ann") {
		t.Fatal("the hash of a banned player is not that of its allocations")
	}
	first := a.ban(t, "prefix=192.0.2.0/24&for=1h")
	holds := func(r running, n int) func() bool {
		return func() bool { return len(r.operator.status.bans.List().Bans) == n }
	}
	testkit.Eventually(t, "the other API process has the ban", holds(b, 1))
	testkit.Eventually(t, "the relay has the ban", holds(relay, 1))
	if status, body := relay.operate(t, "POST", "/bans?prefix=198.51.100.0/24"); status != http.StatusConflict ||
		!strings.Contains(body, "API process") {
		t.Errorf("a ban at a relay: %d %s", status, body)
	}
	if !relay.has(t, id) {
		t.Error("a host that is not banned has ended")
	}
	for query, want := range map[string]string{
		"prefix=192.0.2.0/24": "ends now: hosts 0, joiners 0, WebSocket connections 0. ", // The relay has answered.
		"project=game&environment=test&player=" + httpapi.Token{Secret: secret}.PlayerName(): "static token tokens[0]",
	} {
		if status, body := a.operate(t, "GET", "/bans/affected?"+query); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	_, err = relay.relay.engine.ReserveHost(t.Context(), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: game, Player: "matchmaker"}, PlayerHash: alloc.HashPlayer(game, "matchmaker"), MaxConnections: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if status, body := a.operate(t, "POST", "/bans?project=game&environment=test&player=matchmaker"); status != http.StatusConflict ||
		!strings.Contains(body, "1 live allocations have the name") {
		t.Errorf("a ban of the name of a backend, in a fleet: %d %s", status, body)
	}
	if reply := k.redis.Do("SAVE"); reply != "+OK" {
		t.Fatal(reply)
	}
	second := b.ban(t, "prefix=198.51.100.0/24&for=1h")
	testkit.Eventually(t, "the relay has both", holds(relay, 2))
	testkit.Eventually(t, "the first API process has both", holds(a, 2))
	k.redis.Kill()
	k.redis.Restart() // It has the copy, with the first ban.
	testkit.Eventually(t, "an API process writes the second ban again", func() bool { return k.redis.Do("HLEN ferry:bans") == ":3" })
	k.redis.Do("DEL ferry:bans")
	testkit.Eventually(t, "an API process writes them again", func() bool { return k.redis.Do("HLEN ferry:bans") == ":3" })
	for _, id := range []string{first.ID, second.ID} {
		if status, body := a.operate(t, "DELETE", "/bans/"+id); status != 200 {
			t.Errorf("%d %s", status, body)
		}
	}
	testkit.Eventually(t, "the relay has none", holds(relay, 0))
	testkit.Eventually(t, "the other API process has none", holds(b, 0))
}

// TestBanFile: the file of bans is refused if it is damaged, since the operator relies on it.
func TestBanFile(t *testing.T) {
	t.Parallel()
	o := options(local(), Serve)
	o.Files.Bans = t.TempDir() // not a file
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "bans") {
		t.Errorf("New: %v", err)
	}
}
