package process

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func useRegionStores(c *config.Config, role rpc.Role, servers map[string]*redistest.Server) {
	c.Store = ""
	for region, symbol := range map[string]string{"eu": "6", "us": "T"} {
		c.RegionStores = append(c.RegionStores, config.RegionStore{
			Region: region, CodeSymbol: symbol, Store: config.Secret(userURL(servers[region].URL, "ferry-"+string(role))),
		})
	}
}

type loadCounts struct {
	mu       sync.Mutex // guards the following field
	statuses map[int]int
}

func (l *loadCounts) add(err error) {
	status := problem(err)
	if err != nil && status == 0 {
		status = -1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[status]++
}

// take returns the counts and begins again.
func (l *loadCounts) take() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := l.statuses
	l.statuses = make(map[int]int)
	return counts
}

// TestRegionStores: with a store for each region, the end of one store takes new matches and joins of its
// region, with 503 and Retry-After, and no call of another one. It comes back by itself.
func TestRegionStores(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	servers := map[string]*redistest.Server{"eu": k.redis, "us": redistest.Start(t, storeUserArgs(t)...)}
	relay := func(id byte, region string) running {
		o := k.relayOptions(id, region)
		useRegionStores(&o.Config, rpc.RoleRelay, servers)
		return start(t, o)
	}
	front := func() running {
		o := options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)
		useRegionStores(&o.Config, rpc.RoleAPI, servers)
		o.Config.ServerPerMinute = 1_000_000_000 // The load is as fast as the machine.
		return start(t, o)
	}
	relays := []running{relay(1, "eu"), relay(2, "us")}
	a := front()
	bothKnown := func(r running) func() bool {
		return func() bool { return len(r.frontEnd.fleet.Regions()) == 2 }
	}
	testkit.Within(t, time.Minute, "both regions", bothKnown(a))
	codes := map[string]string{}
	for region, symbol := range map[string]string{"eu": "6", "us": "T"} {
		var host api.Allocation
		host, codes[region] = hostIn(t, a, region)
		if code := codes[region]; host.Region != region || !strings.HasPrefix(code, symbol) || len(code) < 7 {
			t.Errorf("a host of %s is in %q and has the code %s", region, host.Region, codes[region])
		}
	}

	var stop atomic.Bool
	var load sync.WaitGroup
	defer load.Wait()
	defer stop.Store(true)
	results := map[string]*loadCounts{"eu": {statuses: map[int]int{}}, "us": {statuses: map[int]int{}}, "": {statuses: map[int]int{}}}
	for region, counts := range results {
		load.Go(func() {
			for !stop.Load() {
				_, err := a.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1, Region: region})
				counts.add(err)
				if code := codes[region]; code != "" {
					_, err = a.caller(secret).Join(t.Context(), code)
					counts.add(err)
				}
			}
		})
	}
	// busy waits until each kind of calls has had results, and returns them.
	busy := func(what string, isOver func() bool) map[string]map[int]int {
		t.Helper()
		all := map[string]map[int]int{"eu": {}, "us": {}, "": {}}
		testkit.Within(t, time.Minute, what, func() bool {
			enough := true
			for region, counts := range results {
				n := 0
				for status, count := range counts.take() {
					all[region][status] += count
				}
				for _, count := range all[region] {
					n += count
				}
				enough = enough && n >= 20
			}
			return enough && isOver()
		})
		return all
	}
	wantOnly := func(what string, got map[int]int, want ...int) {
		t.Helper()
		left := 0
		for _, n := range got {
			left += n
		}
		for _, status := range want {
			left -= got[status]
		}
		if left > 0 {
			t.Errorf("%s: calls by status %v, want only %v", what, got, want)
		}
	}
	// wantServed allows one call of five to fail: one that gets no processor for a second is answered 503. A
	// call that asks the store of the other region fails each time; package placement tests that none does.
	wantServed := func(what string, got map[int]int) {
		t.Helper()
		wantOnly(what, got, 0, http.StatusServiceUnavailable)
		if failed := got[http.StatusServiceUnavailable]; 5*failed > failed+got[0] {
			t.Errorf("%s: calls by status %v", what, got)
		}
	}
	before := busy("load", func() bool { return true })
	for region, got := range before {
		wantServed("before, "+region, got)
	}

	servers["us"].Kill()
	isAway := func() bool {
		away, _ := a.frontEnd.fleet.StoresAway()
		return len(away) == 1 && away[0].Region == "us"
	}
	without := busy("the store of us to be away", isAway)
	wantServed("eu while the store of us ends", without["eu"])
	wantServed("no region while the store of us ends", without[""])
	wantOnly("us while its store ends", without["us"], 0, http.StatusServiceUnavailable)
	busy("calls that have begun before", func() bool { return true }) // Each kind has begun anew.
	without = busy("load without the store of us", isAway)
	t.Logf("without the store of us, calls by status: %v", without)
	wantServed("eu without the store of us", without["eu"])
	wantServed("no region without the store of us", without[""])
	wantOnly("us without its store", without["us"], http.StatusServiceUnavailable)
	_, err := a.caller(secret).Join(t.Context(), codes["us"])
	if p, ok := errors.AsType[*api.Problem](err); !ok || p.Status != http.StatusServiceUnavailable || p.RetryAfter <= 0 {
		t.Errorf("a join in us: %v", err)
	}
	nodes, err := a.operator.status.nodes(t.Context(), operator.Load{})
	if err != nil || !nodes.StoreAway.IsZero() || len(nodes.StoresAway) != 1 || nodes.StoresAway[0].Region != "us" ||
		nodes.Nodes[1].State != "ready" || nodes.Nodes[2].Region != "us" || nodes.Nodes[2].State != "unknown" {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
	second := front() // It starts without that store.
	testkit.Within(t, time.Minute, "the process to be ready", func() bool { return second.handover.ready.check() == nil })
	if _, code := hostIn(t, second, "eu"); !strings.HasPrefix(code, "6") {
		t.Errorf("the code of the second process is %s", code)
	}
	if _, err := second.caller(secret).Join(t.Context(), codes["us"]); problem(err) != http.StatusServiceUnavailable {
		t.Errorf("the second process, a join in us: %v", err)
	}

	servers["us"].Restart()
	works := func() bool {
		_, err := second.caller(secret).Join(t.Context(), codes["us"])
		return err == nil && !isAway() && bothKnown(second)()
	}
	again := busy("the store of us to be back", works)
	wantServed("eu while the store of us comes back", again["eu"])
	wantOnly("us while its store comes back", again["us"], 0, http.StatusServiceUnavailable)
	testkit.Within(t, time.Minute, "both API processes are listed", func() bool {
		nodes, err := a.operator.status.nodes(t.Context(), operator.Load{})
		return err == nil && len(nodes.Nodes) == 4 && len(nodes.StoresAway) == 0
	})
	stop.Store(true)
	load.Wait()
	for i, r := range relays {
		if r.Stats().Allocations == 0 {
			t.Errorf("relay %d has no allocation", i)
		}
	}

	for name, c := range map[string]struct {
		mode   Mode
		change func(*config.Config)
		says   string
	}{
		"regions that are turned": {API, func(c *config.Config) {
			s := c.RegionStores
			s[0].Store, s[1].Store = s[1].Store, s[0].Store
		}, `is that of region "`},
		"another symbol": {API, func(c *config.Config) { c.RegionStores[0].CodeSymbol = "W" }, "other processes use the code symbol"},
		"one store":      {API, func(c *config.Config) { c.Store, c.RegionStores = c.RegionStores[0].Store, nil }, "set region_stores"},
		"a relay of another region": {Relay, func(c *config.Config) {
			c.Store, c.RegionStores, c.Region = config.Secret(userURL(servers["eu"].URL, "ferry-relay")), nil, "us"
		}, `this relay is of "us"`},
		"a relay with other symbols": {Relay, func(c *config.Config) {
			c.RegionStores[0].CodeSymbol = "W"
		}, "other processes use the code symbol"},
	} {
		var o Options
		if c.mode == API {
			o = options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)
			useRegionStores(&o.Config, rpc.RoleAPI, servers)
		} else {
			o = k.relayOptions(3, "third") // a certificate of its own
			o.Config.Region = "eu"
			useRegionStores(&o.Config, rpc.RoleRelay, servers)
		}
		c.change(&o.Config)
		app, err := New(o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := app.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Run returned %v, want %q", name, err, c.says)
		}
	}
}
