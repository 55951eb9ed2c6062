package app

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// bind binds a ticket, and keeps it bound until the function it returns is called.
// The nonce is higher each time.
func bind(t *testing.T, ticket client.Ticket, nonce uint16) (leave func()) {
	t.Helper()
	s, err := client.New(client.Config{Ticket: ticket, FirstNonce: nonce})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	leave = func() { cancel(); running.Wait() }
	t.Cleanup(leave)
	if err := s.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	return leave
}

// reserveTwo reserves a host and its joiner.
func reserveTwo(t *testing.T, r running) []client.Ticket {
	t.Helper()
	host, err := client.Reserve(t.Context(), r.caller(secret), 4, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := r.caller(secret).JoinCode(t.Context(), host.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := client.Redeem(t.Context(), r.caller(secret), code)
	if err != nil {
		t.Fatal(err)
	}
	return []client.Ticket{host, joiner}
}

func refusedByQuota(t *testing.T, r running) bool {
	t.Helper()
	_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	status := problem(err)
	if err != nil && status != http.StatusForbidden && status != http.StatusTooManyRequests {
		t.Fatal(err)
	}
	return err != nil
}

// TestQuotaAfterRestart: who has come back counts from then on, though nobody has
// reserved anything in this run; who has not yet come back does not.
func TestQuotaAfterRestart(t *testing.T) {
	for _, quota := range []config.Quota{{Project: "game", Players: 2}, {Project: "game", Allocations: 2}} {
		o := options(local(), Serve)
		o.StateFile = filepath.Join(t.TempDir(), "allocations")
		o.Config.Quotas = []config.Quota{quota}
		before := start(t, o)
		tickets := reserveTwo(t, before)
		leave := []func(){bind(t, tickets[0], 0), bind(t, tickets[1], 0)}
		if !refusedByQuota(t, before) {
			t.Errorf("%+v: before the restart there is room", quota)
		}
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}
		leave[0]() // Nobody hears its CLOSE.
		leave[1]()

		after := start(t, o)
		for i := range tickets {
			tickets[i].Server = after.Listeners()[0].Addr
		}
		bind(t, tickets[0], 1)
		used, err := after.players.usage(t.Context(), "game")
		if err != nil || used.Allocations != 1 || used.Players != 1 {
			t.Errorf("%+v: one is back: %+v, %v", quota, used, err)
		}
		bind(t, tickets[1], 1)
		if !refusedByQuota(t, after) {
			t.Errorf("%+v: both are back, and there is room", quota)
		}
		if used, err := after.players.usage(t.Context(), "game"); err != nil || used.Allocations != 2 || used.Players != 2 {
			t.Errorf("%+v: both are back: %+v, %v", quota, used, err)
		}
		if used, err := after.players.usage(t.Context(), "other"); err != nil || used.Allocations != 0 {
			t.Errorf("another project: %+v, %v", used, err)
		}
	}
}

// TestFleetQuotaAfterRestart: the same at an API process, whose store knows
// nothing but what the relay has told since its restart.
func TestFleetQuotaAfterRestart(t *testing.T) {
	k := newFleet(t)
	c := k.settings("api", cluster.Request{Role: cluster.RoleAPI})
	c.Quotas = []config.Quota{{Project: "game", Players: 2}}
	a := start(t, options(c, API))
	o := k.relayOptions(1, "eu")
	o.StateFile = filepath.Join(k.dir, "allocations")
	before := start(t, o)
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 })
	tickets := reserveTwo(t, a)
	leave := []func(){bind(t, tickets[0], 0), bind(t, tickets[1], 0)}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	leave[0]()
	leave[1]()
	k.redis.Kill()
	k.redis.Restart()
	o.Fresh = false
	after := start(t, o)
	for i := range tickets {
		tickets[i].Server = after.Listeners()[0].Addr
		bind(t, tickets[i], 1)
	}
	testkit.Within(t, time.Minute, "the quota", func() bool {
		used, err := a.players.usage(t.Context(), "game")
		return err == nil && used.Players == 2 && used.Allocations == 2
	})
	testkit.Within(t, time.Minute, "a refusal", func() bool {
		_, err := a.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return problem(err) == http.StatusForbidden || problem(err) == http.StatusTooManyRequests
	})
}
