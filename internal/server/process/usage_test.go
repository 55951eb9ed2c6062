package process

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

type usageOf []engine.Usage

func (u usageOf) Usage(context.Context) ([]engine.Usage, error) {
	return append([]engine.Usage(nil), u...), nil
}

// TestUsageOverRuns: the usage of a run is added to that of those before, also of tenants that
// do not come back, and names that a run does not know come from the file.
func TestUsageOverRuns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "usage")
	log := slog.New(slog.DiscardHandler)
	game, other := alloc.Tenant{Project: "game", Environment: "live"}, alloc.Tenant{Project: "other", Environment: "e"}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := func(now time.Time, usage ...engine.Usage) []engine.Usage {
		t.Helper()
		k := newUsageKeeper(file, now, nil, log)
		if err := k.load(); err != nil {
			t.Fatal(err)
		}
		k.relay = usageOf(usage)
		all, err := k.Usage(t.Context())
		if err != nil || !k.since.Equal(began) {
			t.Fatalf("%v, since %v", err, k.since)
		}
		k.read(t.Context())
		k.write()
		return all
	}
	run(began, engine.Usage{Others: true, Bytes: 5}, engine.Usage{Tenant: 1, Name: game, Bytes: 100, Datagrams: 10,
		PlayerSeconds: 1.5, Allocations: 7})
	all := run(began.Add(time.Hour), engine.Usage{Others: true}, engine.Usage{Tenant: 2, Name: other, Bytes: 30})
	if len(all) != 3 || all[0].Bytes != 5 || all[1].Bytes != 30 || all[2].Name != game || all[2].Bytes != 100 || all[2].Allocations != 0 {
		t.Errorf("second run: %+v", all)
	}
	all = run(began.Add(2*time.Hour), engine.Usage{Others: true}, engine.Usage{Tenant: 1, Bytes: 1, Datagrams: 2, PlayerSeconds: 0.5})
	if len(all) != 3 || all[1].Name != game || all[1].Bytes != 101 || all[1].Datagrams != 12 || all[1].PlayerSeconds != 2 ||
		all[2].Bytes != 30 {
		t.Errorf("third run: %+v", all)
	}
}

// TestManyTenants: the file is bounded, and no sum is lost.
func TestManyTenants(t *testing.T) {
	t.Parallel()
	var all []engine.Usage
	sum := uint64(0)
	for i := range maxKeptTenants + 500 {
		all = append(all, engine.Usage{Tenant: uint64(i + 1), Bytes: uint64(i)})
		sum += uint64(i)
	}
	kept := keptOf(all)
	for _, k := range kept {
		sum -= k.Bytes
	}
	if len(kept) != maxKeptTenants+1 || sum != 0 || kept[len(kept)-1].Tenant != 0 || kept[0].Bytes != maxKeptTenants+499 {
		t.Errorf("%d are kept, %d bytes are missing", len(kept), sum)
	}
}

// TestDamagedUsage: a file that cannot be read is moved aside, and the relay starts.
func TestDamagedUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "usage")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	k := newUsageKeeper(file, time.Now(), nil, slog.New(slog.NewTextHandler(&log, nil)))
	err := k.load()
	if err != nil || len(k.before) != 0 || !strings.Contains(log.String(), "begins at zero") {
		t.Errorf("%v, %s", err, log.String())
	}
	if content, err := os.ReadFile(file + ".damaged"); err != nil || string(content) != "{" {
		t.Errorf("moved aside: %q, %v", content, err)
	}
}

// TestUsageAfterRestart: what players have relayed is there after a restart of the process,
// with the name of their project.
func TestUsageAfterRestart(t *testing.T) {
	t.Parallel()
	o := options(local(), Serve)
	o.Files.Usage = filepath.Join(t.TempDir(), "usage")
	usage := func(r running) (u operator.Usage) {
		t.Helper()
		if _, body := fetch(t, r.AdminURL()+"/usage"); json.Unmarshal([]byte(body), &u) != nil {
			t.Fatalf("%s", body)
		}
		return u
	}
	first := start(t, o)
	host, _, joiner := first.reserveMatch(t)
	play(t, host, joiner, func() {})
	before := usage(first)
	first.cancel()
	if err := <-first.ended; err != nil {
		t.Fatal(err)
	}
	after := usage(start(t, o))
	find := func(u operator.Usage) (p operator.ProjectUsage) {
		for _, p := range u.Projects {
			if p.Project == "game" && p.Environment == "test" {
				return p
			}
		}
		t.Fatalf("the project is missing in %+v", u)
		return p
	}
	if was, is := find(before), find(after); is.PlayerSeconds < was.PlayerSeconds || is.PlayerSeconds == 0 || is.Allocations != 0 {
		t.Errorf("before %+v, after %+v", was, is)
	}
	if !after.Since.Equal(before.Since) {
		t.Errorf("since %v, before the restart %v", after.Since, before.Since)
	}
}

// TestUsageOfPlayers: what each of two players of a project sent is right to the byte, while they play and
// after the end, and a restart begins at zero.
func TestUsageOfPlayers(t *testing.T) {
	t.Parallel()
	c := local()
	c.Tokens[0].Player = "anna"
	const secretOfBen = "another-secret-of-the-tests"
	c.Tokens = append(c.Tokens, config.Token{Secret: secretOfBen, Project: "game", Environment: "test", Player: "ben", Kind: "player"})
	o := options(c, Serve)
	r := start(t, o)
	usage := func(r running, query string) (u operator.PlayersUsage) {
		t.Helper()
		if status, body := fetch(t, r.AdminURL()+"/usage/players?"+query); json.Unmarshal([]byte(body), &u) != nil {
			t.Fatalf("%d %s", status, body)
		}
		return u
	}
	host, err := client.Reserve(t.Context(), r.caller(secret), 1, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.caller(secret).JoinCode(t.Context(), host.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := client.Redeem(t.Context(), r.caller(secretOfBen), code)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]operator.PlayerCounts{}
	check := func(when string, live int) {
		t.Helper()
		testkit.Within(t, time.Minute, when, func() bool {
			u := usage(r, "project=game&environment=test")
			for _, p := range u.Players {
				w := want[p.Player]
				w.Allocations, w.Live, w.PlayerSeconds = 1, live, p.PlayerSeconds
				if p.PlayerCounts != w || w.PlayerSeconds == 0 || p.Project != "game" || p.Environment != "test" || len(p.Digest) != 32 {
					return false
				}
			}
			return len(u.Players) == 2 && u.Players[0].Player == "ben" && u.Others == (operator.PlayerCounts{})
		})
	}
	hosting, toHost, end := beginMatch(t, host, joiner)
	send := func(player string, to *client.Peer, size int) {
		t.Helper()
		if _, err := to.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		used := want[player]
		used.Datagrams, used.Bytes = used.Datagrams+1, used.Bytes+uint64(proto.RelayOverhead+size)
		want[player] = used
	}
	for size := range 20 {
		send("ben", toHost, 50*size)
	}
	toPlayer, err := hosting.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for size := range 7 {
		send("anna", toPlayer, size)
	}
	check("while they play", 1)
	if u := usage(r, "project=game&sort=datagrams&top=1"); len(u.Players) != 1 || u.Others.Bytes != want["anna"].Bytes ||
		u.Others.Allocations != 1 {
		t.Errorf("the first one: %+v", u)
	}
	if u := usage(r, "project=other"); len(u.Players) != 0 || u.Others != (operator.PlayerCounts{}) {
		t.Errorf("another project: %+v", u)
	}
	end()
	check("after the end", 0)
	for query, says := range map[string]string{"sort=name": "not one of", "top=1001": "up to 1000", "environment=test": "needs a project"} {
		if status, body := fetch(t, r.AdminURL()+"/usage/players?"+query); status != http.StatusBadRequest || !strings.Contains(body, says) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
	if u := usage(start(t, o), ""); len(u.Players) != 0 {
		t.Errorf("after a restart: %+v", u)
	}
}
