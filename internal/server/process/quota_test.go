package process

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
	"github.com/ferryrelay/ferry/internal/test/testkit"
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

// TestQuotaAfterRestart: players that came back count from then on, without a reservation in
// this run; players that have not come back do not.
func TestQuotaAfterRestart(t *testing.T) {
	t.Parallel()
	for _, quota := range []config.Quota{{Project: "game", Players: 2}, {Project: "game", Allocations: 2}} {
		o := options(local(), Serve)
		o.Files.Allocations = filepath.Join(t.TempDir(), "allocations")
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
		leave[0]() // Its CLOSE is lost.
		leave[1]()

		after := start(t, o)
		for i := range tickets {
			tickets[i].Server = after.Listeners()[0].Addr
		}
		bind(t, tickets[0], 1)
		used, err := after.api.admission.usage(t.Context(), "game")
		if err != nil || used.Allocations != 1 || used.Players != 1 {
			t.Errorf("%+v: one is back: %+v, %v", quota, used, err)
		}
		bind(t, tickets[1], 1)
		if !refusedByQuota(t, after) {
			t.Errorf("%+v: both are back, and there is room", quota)
		}
		if used, err := after.api.admission.usage(t.Context(), "game"); err != nil || used.Allocations != 2 || used.Players != 2 {
			t.Errorf("%+v: both are back: %+v, %v", quota, used, err)
		}
		if used, err := after.api.admission.usage(t.Context(), "other"); err != nil || used.Allocations != 0 {
			t.Errorf("another project: %+v, %v", used, err)
		}
	}
}

// TestFleetQuotaAfterRestart: the same at an API process, whose store has
// only what the relay has reported since its restart.
func TestFleetQuotaAfterRestart(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
	c.Quotas = []config.Quota{{Project: "game", Players: 2}}
	a := start(t, options(c, API))
	o := k.relayOptions(1, "eu")
	o.Files.Allocations = filepath.Join(k.dir, "allocations")
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
		used, err := a.api.admission.usage(t.Context(), "game")
		return err == nil && used.Players == 2 && used.Allocations == 2
	})
	testkit.Within(t, time.Minute, "a refusal", func() bool {
		_, err := a.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return problem(err) == http.StatusForbidden || problem(err) == http.StatusTooManyRequests
	})
}

// TestFleetQuotaWithoutStore: what an API process cannot count, it refuses, for as long as
// the store does not answer.
func TestFleetQuotaWithoutStore(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
	c.Quotas = []config.Quota{{Project: "game", Players: 2}}
	a := start(t, options(c, API))
	admit := func() error {
		return a.api.admission.admit(t.Context(), alloc.AdmissionRequest{Caller: alloc.Caller{Tenant: alloc.Tenant{Project: "game"}}})
	}
	testkit.Within(t, time.Minute, "the store", func() bool { return admit() == nil })
	k.redis.Kill()
	testkit.Within(t, time.Minute, "a refusal", func() bool { return errors.Is(admit(), alloc.ErrStoreUnavailable) })
	k.redis.Restart()
	testkit.Within(t, time.Minute, "an empty store", func() bool { return admit() == nil })
}

// TestBandwidthQuota: a project that relays more than it may gets nothing new
// until it relays less, and others do not count. Counters that begin anew hide nothing.
func TestBandwidthQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := config.Dev()
		c.Quotas = []config.Quota{{Project: "game", BytesPerSecond: 1000}}
		p, err := newPlayers(&c, Serve, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all atomic.Pointer[[]privateapi.ProjectUsage]
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.rates.run(ctx, p.hasBandwidthQuotas, func(context.Context, ...string) ([]privateapi.ProjectUsage, error) {
				if now := all.Load(); now != nil {
					return *now, nil
				}
				return nil, alloc.ErrUnavailable
			})
		}()
		relayed := func(game, other uint64) {
			all.Store(&[]privateapi.ProjectUsage{{Project: "game", Bytes: game}, {Project: "other", Bytes: other}})
			time.Sleep(leaseEvery)
			synctest.Wait()
		}
		admitted := func(want bool) {
			t.Helper()
			err := p.admitOnRelay("game", 0, 0)
			if want != (err == nil) || !want && !errors.Is(err, alloc.ErrProjectQuota) {
				t.Errorf("Admit: %v at %d bytes per second", err, p.rates.of("game"))
			}
		}
		time.Sleep(leaseEvery)
		admitted(true)
		relayed(1<<31, 0) // before the first measurement
		admitted(true)
		relayed(1<<31+1999, 1<<40)
		admitted(true)
		relayed(1<<31+3999, 1<<40)
		admitted(false)
		relayed(1<<31+3999, 1<<41)
		admitted(true)
		relayed(2000, 1<<41) // counted anew
		admitted(false)
		relayed(2000, 1<<41)
		admitted(true)
		cancel()
		<-done
	})
}

// TestReportedBandwidth: what a relay of a fleet reports of it, and takes back.
func TestReportedBandwidth(t *testing.T) {
	t.Parallel()
	all := []privateapi.ProjectUsage{{Project: "game", Allocations: 1, Players: 1}}
	uses, reported := changedLeases(nil, all, map[string]int64{"game": 5000, "gone": 0})
	if len(uses) != 3 || reported[scopeBytes+"game"] != 5000 {
		t.Errorf("%v, %v", uses, reported)
	}
	uses, reported = changedLeases(reported, nil, nil)
	if len(uses) != 3 || len(reported) != 0 {
		t.Errorf("%v, %v", uses, reported)
	}
	if (quota.Limits{BytesPerSecond: 1}) == (quota.Limits{}) {
		t.Error("a limit of bandwidth is none")
	}
}

const lockedSecret = "token-of-certain-regions-0123"

// TestRegionsOfToken: in a fleet, a token has hosts in its own regions only, of those of its project, whether it is a
// static one or an issuer's, by each call that names or lists regions. It joins matches anywhere, within the quota.
func TestRegionsOfToken(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	for i, region := range []string{"eu", "us", "asia"} {
		o := k.relayOptions(byte(i+1), region)
		o.Config.Region = region
		start(t, o)
	}
	o := options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)
	c := &o.Config
	c.Tokens = []config.Token{
		{Secret: secret, Project: "open", Environment: "test", Kind: "player"},
		{Secret: lockedSecret, Project: "open", Environment: "test", Kind: "player", Regions: []string{"us", "eu"}},
	}
	c.Issuers = []config.Issuer{{Preset: "development", HS256Key: config.Secret(strings.Repeat("k", 32))}}
	c.Quotas = []config.Quota{{Project: "game", Regions: []string{"eu", "asia"}}}
	a := start(t, o)
	testkit.Within(t, time.Minute, "all regions", func() bool { return len(a.frontEnd.fleet.Regions()) == 3 })
	mint := func(project string, regions ...string) string {
		token, err := identity.Mint(identity.MintRequest{
			Secret: []byte(strings.Repeat("k", 32)), Valid: time.Hour, Now: time.Now(),
			Identity: identity.Identity{Tenant: alloc.Tenant{Project: project, Environment: "test"}, Player: "anna", Regions: regions},
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	_, code := hostIn(t, a, "asia")
	for name, c := range map[string]struct{ token, first, all string }{
		"none":                         {secret, "", "asia eu us"},
		"a static token's":             {lockedSecret, "us", "eu us"},
		"an issuer's":                  {mint("open", "eu"), "eu", "eu"},
		"a project's":                  {mint("game"), "eu", "asia eu"},
		"of the project's":             {mint("game", "us", "asia", "eu"), "asia", "asia eu"},
		"none of those of the project": {mint("game", "us"), "-", ""},
	} {
		caller := a.caller(c.token)
		var listed []string
		all, err := caller.Regions(t.Context())
		for _, r := range all {
			listed = append(listed, r.ID)
		}
		slices.Sort(listed)
		if err != nil || strings.Join(listed, " ") != c.all {
			t.Errorf("%s: listed are %v, %v, want %s", name, listed, err, c.all)
		}
		for _, region := range []string{"", "eu", "us", "asia"} {
			got, err := caller.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1, Region: region})
			may := region == "" && c.first != "-" || region != "" && strings.Contains(c.all, region)
			p, _ := errors.AsType[*api.Problem](err)
			switch {
			case may && (err != nil || got.Region != cmp.Or(region, c.first, got.Region)):
				t.Errorf("%s, in %q: %q, %v", name, region, got.Region, err)
			case !may && (p == nil || p.Status != http.StatusBadRequest || p.Code != api.CodeRegionNotFound):
				t.Errorf("%s, in %q: %q, %v; want region not found", name, region, got.Region, err)
			}
		}
		chosen, err := caller.ChooseRegion(t.Context(), api.ChooseRegionRequest{Players: []api.PlayerMeasurements{{Regions: []api.Measurement{
			{Region: "asia", RTT: 30}, {Region: "us", RTT: 10}, {Region: "eu", RTT: 20},
		}}}})
		if len(chosen.Regions) != len(listed) || err == nil && !slices.Contains(listed, chosen.Region) {
			t.Errorf("%s: chosen is %+v, %v", name, chosen, err)
		}
	}
	if joined, err := a.caller(lockedSecret).Join(t.Context(), code); err != nil || joined.Region != "asia" {
		t.Errorf("a join elsewhere: %q, %v", joined.Region, err)
	}
}

// TestRegionsOfProject: a project has hosts in its regions only, and a reload changes them.
func TestRegionsOfProject(t *testing.T) {
	t.Parallel()
	c := local()
	c.Quotas = []config.Quota{{Project: "game", Regions: []string{"mars"}}}
	r := start(t, options(c, Serve))
	_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	var problem *api.Problem
	if !errors.As(err, &problem) || problem.Code != api.CodeRegionNotFound {
		t.Errorf("a region that the project may not use: %v", err)
	}
	if all, err := r.caller(secret).Regions(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("regions %v, %v", all, err)
	}
	c.Quotas[0].Regions = []string{"mars", c.Region}
	next, _, err := r.api.players.nextPolicy(&c)
	if err != nil {
		t.Fatal(err)
	}
	r.api.players.setPolicy(next)
	a, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil || a.Region != c.Region {
		t.Errorf("after the reload: %v, %v", a.Region, err)
	}
	if all, err := r.caller(secret).Regions(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("regions after the reload: %v, %v", all, err)
	}
}
