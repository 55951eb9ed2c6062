package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestRegions: a process whose settings contradict those of others about regions cannot use the store.
func TestRegions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ours := map[string]string{"6": "eu", "7": "us"}
	for name, c := range map[string]struct {
		region  string
		symbols map[string]string
		says    string // empty: the settings agree
	}{
		"the same":               {"eu", ours, ""},
		"a third region":         {"eu", map[string]string{"6": "eu", "7": "us", "8": "asia:1"}, ""},
		"fewer regions":          {"eu", map[string]string{"6": "eu"}, ""},
		"another region":         {"us", ours, `"us" is that of region "eu"`},
		"another symbol":         {"eu", map[string]string{"8": "eu", "7": "us"}, `symbol 6 for region "eu"`},
		"a symbol of another":    {"eu", map[string]string{"6": "eu", "7": "asia"}, `symbol 7 for region "us"`},
		"the symbols are turned": {"eu", map[string]string{"7": "eu", "6": "us"}, "other processes use the code symbol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := Config{URL: server.URL, Prefix: strings.ReplaceAll(name, " ", "-") + ":", Timeout: testTimeout}
			one := open(t, config)
			if region, err := NewStores(one).PublishedRegion(t.Context()); region != "" || err != nil {
				t.Errorf("before: %q, %v", region, err)
			}
			first := config
			first.Region, first.Symbols = "eu", ours
			if err := open(t, first).Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if region, err := NewStores(one).PublishedRegion(t.Context()); region != "eu" || err != nil {
				t.Errorf("the store is of %q, %v", region, err)
			}
			config.Region, config.Symbols = c.region, c.symbols
			second := open(t, config)
			err := second.Directory.SetHome(t.Context(), hostID(1), placement.Home{Boot: 1})
			if (err == nil) != (c.says == "") || err != nil && (!unavailable(err) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("a call: %v", err)
			}
			if got, ok := errors.AsType[*RegionsError](second.Regions.Err()); ok != (c.says != "") {
				t.Errorf("RegionsError: %v", got)
			}
			if c.says == "" {
				return
			}
			server.Do("DEL " + second.Regions.key) // As after the end of the other processes.
			testkit.NoProblemWithin(t, 20*time.Second, "the store is used", func() string {
				if err := second.Ping(t.Context()); err != nil {
					return err.Error()
				}
				return ""
			})
		})
	}
}

// TestHostileRegions: what another program has written of the regions with an end that no process gives does
// not keep an API process from its store, nor does a value of another type.
func TestHostileRegions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, attack := range map[string]string{"end": "HSET far:regions own =us:99999999999999", "type": "SET far:regions x"} {
		t.Run(name, func(t *testing.T) {
			config := Config{URL: server.URL, Prefix: "far:", Region: "eu", Symbols: map[string]string{"6": "eu"}, Timeout: testTimeout}
			server.Do(attack)
			s := open(t, config)
			if err := errors.Join(s.Ping(t.Context()), s.Regions.Err()); err != nil {
				t.Error(err)
			}
		})
	}
}

func openRegions(t *testing.T, servers ...*redistest.Server) *Stores {
	symbols := make(map[string]string)
	for i := range servers {
		symbols["6789"[i:i+1]] = fmt.Sprint("region", i)
	}
	var all []*Store
	for i, s := range servers {
		all = append(all, open(t, Config{
			URL: s.URL, Region: fmt.Sprint("region", i), Symbols: symbols, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler),
		}))
	}
	return NewStores(all...)
}

// TestStores: what concerns the whole fleet works while the store of one region is away, and is there
// again when it comes back.
func TestStores(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	s, ctx := openRegions(t, servers...), t.Context()
	check := func(what string, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	ban := func(id string) error { return s.SetBan(ctx, id, "text "+id, time.Now().Add(time.Hour), 10) }
	bansIn := func(list func(context.Context) ([]Ban, uint64, error)) int {
		all, _, err := list(ctx)
		if err != nil {
			return -1
		}
		return len(all)
	}
	first, second := s.All()[0].Bans.List, s.All()[1].Bans.List
	calls := func(what string, used int64) {
		t.Helper()
		if n, err := s.Used(ctx, "players"); n != used || err != nil {
			t.Errorf("%s: %d in use, %v; want %d", what, n, err, used)
		}
		for key := range 8 {
			ok, _, err := s.Take(ctx, fmt.Sprint(what, key), 60)
			if !ok {
				t.Errorf("%s: no token: %v", what, err)
			}
		}
	}
	for i, store := range s.All() {
		check("Lease", lease(ctx, store, "players", fmt.Sprint(i), int64(10+i), time.Minute))
	}
	check("a ban", ban("1"), ban("2"))
	calls("both", 21)
	if there, err := s.DeleteBan(ctx, "2"); !there || err != nil || bansIn(s.Bans) != 1 || bansIn(first) != 1 || bansIn(second) != 1 {
		t.Errorf("a ban is removed: %t, %v; %d are left", there, err, bansIn(s.Bans))
	}

	servers[1].Kill()
	testkit.Within(t, 20*time.Second, "the breaker to open", func() bool { return s.All()[1].Ping(ctx) != nil && s.Stats().Open })
	calls("one is away", 10)
	check("a ban without one", ban("3"))
	if n := bansIn(s.Bans); n != 2 {
		t.Errorf("%d bans without one, want 2", n)
	}
	if _, err := s.DeleteBan(ctx, "1"); err == nil || bansIn(s.Bans) != 2 {
		t.Errorf("a ban is removed while a store is away: %v", err)
	}
	if s.LoginError() != nil || s.RegionsError() != nil {
		t.Error(s.LoginError(), s.RegionsError())
	}

	servers[1].Restart()
	testkit.Within(t, 30*time.Second, "both bans in the store that was away", func() bool {
		return bansIn(s.Bans) == 2 && bansIn(second) == 2
	})
	calls("it is back", 10)
	if _, err := s.DeleteBan(ctx, "1"); err != nil || bansIn(s.Bans) != 1 {
		t.Errorf("a ban is removed again: %v", err)
	}
	for _, server := range servers {
		if ttl := server.Do("PTTL " + testKeys.regions()); len(ttl) < 2 || ttl[1] == '-' {
			t.Errorf("the regions never end: PTTL %s", ttl)
		}
		server.Kill()
	}
	testkit.Within(t, 20*time.Second, "no store", func() bool { return bansIn(s.Bans) < 0 })
	if err := ban("4"); !unavailable(err) {
		t.Errorf("a ban without a store: %v", err)
	}
}
