package alloc_test

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

var (
	testTenant  = alloc.Tenant{Project: "game", Environment: "production"}
	otherTenant = alloc.Tenant{Project: "game", Environment: "staging"}
	alice       = alloc.Caller{Tenant: testTenant, Player: "alice"}
	bob         = alloc.Caller{Tenant: testTenant, Player: "bob"}
	mallory     = alloc.Caller{Tenant: otherTenant, Player: "alice"}
	unnamed     = alloc.Caller{Tenant: testTenant}
	backend     = alloc.Caller{Tenant: testTenant, Server: true}
	longTenant  = alloc.Caller{Tenant: alloc.Tenant{Project: strings.Repeat("p", 57)}, Player: "alice"}
)

var testRegions = []alloc.Region{{ID: "eu-north", Description: "Helsinki"}, {ID: "eu-west", Description: "Paris"}}

func newTestService(t testing.TB, relay alloc.Relay, change func(*alloc.ServiceConfig)) *alloc.Service {
	t.Helper()
	cfg := alloc.ServiceConfig{Relay: relay, Store: alloc.NewMemoryStore(), Regions: testRegions}
	if change != nil {
		change(&cfg)
	}
	s, err := alloc.NewService(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustAllocate returns an allocation that its player has bound.
func mustAllocate(t testing.TB, s *alloc.Service, c alloc.Caller) proto.AllocationID {
	t.Helper()
	res, err := s.Allocate(t.Context(), c, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	s.OnBind(res.ID)
	return res.ID
}

func mustCode(t testing.TB, s *alloc.Service, c alloc.Caller, id proto.AllocationID) string {
	t.Helper()
	code, err := s.JoinCode(t.Context(), c, id)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func configuredRelay() *alloctest.Relay {
	r := alloctest.NewRelay()
	r.Config = alloc.RelayConfig{Region: "there", MaxConnections: 8, BindTimeout: time.Minute}
	return r
}

func TestNewServiceRefuses(t *testing.T) {
	t.Parallel()
	there := []alloc.Region{{ID: "there"}}
	for name, change := range map[string]func(*alloc.ServiceConfig){
		"Relay":          func(c *alloc.ServiceConfig) { c.Relay = nil },
		"Store":          func(c *alloc.ServiceConfig) { c.Store = nil },
		"Relay is nil":   func(c *alloc.ServiceConfig) { c.Relay = (*alloctest.Relay)(nil) },
		"relay's region": func(c *alloc.ServiceConfig) { c.Relay = configuredRelay() },
		"MaxConnections is": func(c *alloc.ServiceConfig) {
			c.Relay, c.MaxConnections, c.Regions = configuredRelay(), 9, there
		},
		"BindTimeout is": func(c *alloc.ServiceConfig) {
			c.Relay, c.BindTimeout, c.Regions = configuredRelay(), 1, there
		},
		"Regions":           func(c *alloc.ServiceConfig) { c.Regions = nil },
		"Regions has \"\"":  func(c *alloc.ServiceConfig) { c.Regions = []alloc.Region{{}} },
		"Regions has \"a\"": func(c *alloc.ServiceConfig) { c.Regions = []alloc.Region{{ID: "a"}, {ID: "a"}} },
		"MaxConnections -1": func(c *alloc.ServiceConfig) { c.MaxConnections = -1 },
		"MaxConnections 6":  func(c *alloc.ServiceConfig) { c.MaxConnections = 65536 },
		"MaxOutstanding -1": func(c *alloc.ServiceConfig) { c.MaxOutstanding = -1 },
		"MaxOutstanding 6":  func(c *alloc.ServiceConfig) { c.MaxOutstanding = 65537 },
		"BindTimeout":       func(c *alloc.ServiceConfig) { c.BindTimeout = -1 },
		"FailuresPerSecond": func(c *alloc.ServiceConfig) { c.FailuresPerSecond = -1 },
		"FailuresPerSecond NaN": func(c *alloc.ServiceConfig) {
			c.FailuresPerSecond = math.NaN()
		},
	} {
		cfg := alloc.ServiceConfig{Relay: alloctest.NewRelay(), Store: alloc.NewMemoryStore(), Regions: testRegions}
		change(&cfg)
		_, err := alloc.NewService(cfg)
		if !errors.Is(err, alloc.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v does not name the field", name, err)
		}
	}
}

func TestAllocate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		caller  alloc.Caller
		max     int
		region  string
		hostErr error
		want    error
	}{
		{"one connection", alice, 1, "", nil, nil},
		{"the ceiling", alice, 100, "eu-west", nil, nil},
		{"a backend", backend, 4, "eu-north", nil, nil},
		{"none", alice, 0, "", nil, alloc.ErrMaxConnections},
		{"negative", alice, -1, "", nil, alloc.ErrMaxConnections},
		{"above the ceiling", alice, 101, "", nil, alloc.ErrMaxConnections},
		{"unknown region", alice, 4, "mars", nil, alloc.ErrRegion},
		{"region in capitals", alice, 4, "EU-NORTH", nil, alloc.ErrRegion},
		{"tenant too long", longTenant, 4, "", nil, alloc.ErrTenantName},
		{"relay full", alice, 4, "", alloc.ErrFull, alloc.ErrFull},
		{"relay away", alice, 4, "", alloc.ErrUnavailable, alloc.ErrUnavailable},
		{"relay draining", alice, 4, "", alloc.ErrDraining, alloc.ErrDraining},
		{"relay has a lower ceiling", alice, 4, "", alloc.ErrMaxConnections, alloc.ErrMaxConnections},
	}
	for _, tt := range tests {
		relay := alloctest.NewRelay()
		relay.Fail(tt.hostErr)
		res, err := newTestService(t, relay, nil).Allocate(t.Context(), tt.caller, tt.max, tt.region)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
		}
		if tt.want != nil {
			if !res.ID.IsZero() || len(relay.Hosts) != 0 {
				t.Errorf("%s: reserved %v beside an error", tt.name, res.ID)
			}
			continue
		}
		if wantRegion := map[string]string{"": "eu-north"}[tt.region] + tt.region; res.Region != wantRegion {
			t.Errorf("%s: region %q, want %q", tt.name, res.Region, wantRegion)
		}
		q := relay.Hosts[0]
		if q.Tenant != tt.caller.Tenant || q.MaxConnections != tt.max || q.PlayerHash == (alloc.PlayerHash{}) {
			t.Errorf("%s: asked the relay for %+v", tt.name, q)
		}
	}
}

func TestAllocateLimitsFromConfig(t *testing.T) {
	t.Parallel()
	relay := alloctest.NewRelay()
	relay.Region = "where-the-relay-stands"
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.MaxConnections = 250 })
	res, err := s.Allocate(t.Context(), alice, 250, "")
	if err != nil || res.Region != "where-the-relay-stands" {
		t.Errorf("Allocate up to a higher ceiling: region %q, error %v", res.Region, err)
	}
	if _, err := s.Allocate(t.Context(), alice, 251, ""); !errors.Is(err, alloc.ErrMaxConnections) {
		t.Errorf("above it: error %v", err)
	}
}

func TestNamelessCallersAreApart(t *testing.T) {
	t.Parallel()
	relay := alloctest.NewRelay()
	s := newTestService(t, relay, nil)
	for _, c := range []alloc.Caller{alice, alice, bob, unnamed, unnamed, backend} {
		mustAllocate(t, s, c)
	}
	players := make(map[alloc.PlayerHash]int)
	for _, q := range relay.Hosts {
		players[q.PlayerHash]++
	}
	if len(players) != 5 || players[alloc.HashPlayer(testTenant, "alice")] != 2 || players[alloc.HashPlayer(testTenant, "")] != 0 {
		t.Errorf("%d players: %v; want alice twice and four others", len(players), players)
	}
	noRandom := errors.New("no randomness")
	s = newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Rand = iotest.ErrReader(noRandom) })
	if _, err := s.Allocate(t.Context(), unnamed, 4, ""); !errors.Is(err, noRandom) {
		t.Errorf("unnamed without randomness: error %v", err)
	}
}

func TestRegionsAreACopy(t *testing.T) {
	t.Parallel()
	regions := []alloc.Region{{ID: "a"}, {ID: "b"}}
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Regions = regions })
	regions[0].ID = "changed by the embedder"
	s.RegionsOf(alloc.Caller{})[1].ID = "changed by a caller"
	if got := s.RegionsOf(alloc.Caller{}); len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" {
		t.Errorf("Regions() = %v", got)
	}
}

func TestJoinCodeOwnership(t *testing.T) {
	t.Parallel()
	relay := alloctest.NewRelay()
	s := newTestService(t, relay, nil)
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	joined, err := s.Join(t.Context(), bob, code)
	if err != nil {
		t.Fatal(err)
	}
	anonymous := mustAllocate(t, s, unnamed)
	tests := []struct {
		name   string
		caller alloc.Caller
		id     proto.AllocationID
		want   error
	}{
		{"owner", alice, host, nil},
		{"backend of the tenant", backend, host, nil},
		{"backend, for a unnamed host", backend, anonymous, nil},
		{"other player", bob, host, alloc.ErrNotFound},
		{"unnamed player", unnamed, host, alloc.ErrNotFound},
		{"unnamed player, unnamed host", unnamed, anonymous, alloc.ErrNotFound},
		{"same name in another environment", mallory, host, alloc.ErrNotFound},
		{"backend of another environment", alloc.Caller{Tenant: otherTenant, Server: true}, host, alloc.ErrNotFound},
		{"joiner's own allocation", bob, joined.ID, alloc.ErrNotFound},
		{"backend, for a joiner's allocation", backend, joined.ID, alloc.ErrNotFound},
		{"never there", alice, proto.AllocationID{1}, alloc.ErrNotFound},
		{"zero id", alice, proto.AllocationID{}, alloc.ErrNotFound},
		{"tenant too long", longTenant, host, alloc.ErrTenantName},
	}
	for _, tt := range tests {
		got, err := s.JoinCode(t.Context(), tt.caller, tt.id)
		if !errors.Is(err, tt.want) || (got == "") != (tt.want != nil) {
			t.Errorf("%s: %q, error %v; want %v", tt.name, got, err, tt.want)
		}
		if tt.id == host && tt.want == nil && got != code {
			t.Errorf("%s: code %s, want the same again, %s", tt.name, got, code)
		}
	}
	// However such an allocation came about, the empty name owns nothing.
	empty := proto.AllocationID{2}
	relay.Live[empty] = alloc.Description{
		Tenant: testTenant.Hash(), Player: alloc.HashPlayer(testTenant, ""), Role: alloc.RoleHost,
	}
	if _, err := s.JoinCode(t.Context(), unnamed, empty); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("unnamed player, host of the empty name: error %v", err)
	}
	relay.Fail(alloc.ErrUnavailable)
	if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("relay away: error %v", err)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	relay := alloctest.NewRelay()
	s := newTestService(t, relay, nil)
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	absent := strings.Map(func(r rune) rune { return map[bool]rune{true: '7', false: '6'}[r == '6'] }, code)
	tests := []struct {
		name    string
		caller  alloc.Caller
		code    string
		joinErr error
		want    error
	}{
		{"as handed out", bob, code, nil, nil},
		{"in lower case", bob, strings.ToLower(code), nil, nil},
		{"the host's own player", alice, code, nil, nil},
		{"unnamed", unnamed, code, nil, nil},
		{"absent", bob, absent, nil, alloc.ErrCodeNotFound},
		{"one symbol more", bob, code + "6", nil, alloc.ErrCodeNotFound},
		{"foreign tenant", mallory, code, nil, alloc.ErrCodeNotFound},
		{"empty", bob, "", nil, alloc.ErrCodeMalformed},
		{"one symbol too many", bob, "6789BCDFGHJKL", nil, alloc.ErrCodeMalformed},
		{"a vowel", bob, "6789BA", nil, alloc.ErrCodeMalformed},
		{"tenant too long", longTenant, code, nil, alloc.ErrTenantName},
		{"relay full", bob, code, alloc.ErrFull, alloc.ErrFull},
		{"relay away", bob, code, alloc.ErrUnavailable, alloc.ErrUnavailable},
		{"still there afterwards", bob, code, nil, nil},
	}
	for _, tt := range tests {
		relay.Fail(tt.joinErr, "ReserveJoiner")
		relay.Joiners = nil
		res, err := s.Join(t.Context(), tt.caller, tt.code)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
		}
		if tt.want != nil {
			if !res.ID.IsZero() || errors.Is(err, alloc.ErrNotFound) {
				t.Errorf("%s: %v beside error %v", tt.name, res.ID, err)
			}
			continue
		}
		if len(relay.Joiners) != 1 || relay.Joiners[0].Host != host || relay.Joiners[0].Tenant != testTenant || res.Region != "eu-north" {
			t.Errorf("%s: asked the relay for %+v, region %q", tt.name, relay.Joiners, res.Region)
		}
	}
}

func TestRegionsOfAFleet(t *testing.T) {
	t.Parallel()
	relay := alloctest.NewRelay()
	var live []alloc.Region
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) {
		c.Regions, c.LiveRegions = nil, func() []alloc.Region { return live }
	})
	if got := s.RegionsOf(alloc.Caller{}); len(got) != 0 {
		t.Errorf("regions %v", got)
	}
	live = testRegions[1:]
	if got := s.RegionsOf(alloc.Caller{}); len(got) != 1 || got[0].ID != "eu-west" {
		t.Errorf("regions %v", got)
	}
	caller := alice
	caller.Address = netip.MustParseAddr("192.0.2.1")
	for n, region := range []string{"", "mars"} {
		res, err := s.Allocate(t.Context(), caller, 4, region)
		if err != nil || res.Region != region {
			t.Errorf("%q: region %q, error %v", region, res.Region, err)
		}
		if q := relay.Hosts[n]; q.Region != region || q.Address != caller.Address {
			t.Errorf("%q: asked the relay for %+v", region, q)
		}
	}
	relay.Region = "eu-west"
	host := mustAllocate(t, s, alice)
	relay.Region = ""
	if res, err := s.Join(t.Context(), bob, mustCode(t, s, alice, host)); err != nil || res.Region != "" {
		t.Errorf("join: region %q, error %v", res.Region, err)
	}
	relay.Fail(alloc.ErrRegion)
	if _, err := s.Allocate(t.Context(), alice, 4, "mars"); !errors.Is(err, alloc.ErrRegion) {
		t.Errorf("unknown to the relay: error %v", err)
	}
}

// TestAllowedRegions: a tenant or a caller with a list gets hosts in its regions only, without a name in
// the first of the list that there is. Of both lists it is what they have in common, in the caller's order.
func TestAllowedRegions(t *testing.T) {
	lists := map[string][]string{"restricted": {"mars", "us", "eu"}, "nowhere": {"mars"}}
	live := []alloc.Region{{ID: "asia"}, {ID: "eu"}, {ID: "us"}}
	callerOf := func(project, regions string) alloc.Caller {
		return alloc.Caller{Tenant: alloc.Tenant{Project: project}, Player: "p", Regions: strings.Fields(regions)}
	}
	for _, fleet := range []bool{false, true} {
		relay := alloctest.NewRelay()
		s := newTestService(t, relay, func(c *alloc.ServiceConfig) {
			c.Regions = live
			if fleet {
				c.Regions, c.LiveRegions = nil, func() []alloc.Region { return live }
			}
			c.AllowedRegions = func(t alloc.Tenant) []string { return lists[t.Project] }
		})
		absent := alloc.ErrRegion // Of a fleet it may come back.
		if fleet {
			absent = alloc.ErrUnavailable
		}
		for _, c := range []struct {
			project, ofCaller, region, want string
			err                             error
		}{
			{"restricted", "", "", "us", nil}, {"restricted", "", "eu", "eu", nil}, {"restricted", "", "asia", "", alloc.ErrRegion},
			{"other", "", "asia", "asia", nil}, {"other", "mars eu", "", "eu", nil}, {"other", "eu", "asia", "", alloc.ErrRegion},
			{"restricted", "asia eu us", "", "eu", nil}, {"restricted", "asia eu", "us", "", alloc.ErrRegion},
			{"restricted", "asia eu", "asia", "", alloc.ErrRegion}, {"restricted", "asia", "", "", alloc.ErrRegion},
			{"nowhere", "", "", "", absent}, {"other", "mars", "", "", absent},
		} {
			res, err := s.Allocate(t.Context(), callerOf(c.project, c.ofCaller), 1, c.region)
			if !errors.Is(err, c.err) || err == nil && res.Region != c.want {
				t.Errorf("fleet %v, %+v: %q, %v", fleet, c, res.Region, err)
			}
		}
		for _, c := range []struct{ project, ofCaller, want string }{
			{"restricted", "", "eu us"}, {"other", "", "asia eu us"}, {"other", "us asia", "asia us"}, {"restricted", "asia us", "us"},
			{"restricted", "asia", ""}, {"nowhere", "", ""},
		} {
			var ids []string
			for _, r := range s.RegionsOf(callerOf(c.project, c.ofCaller)) {
				ids = append(ids, r.ID)
			}
			if strings.Join(ids, " ") != c.want {
				t.Errorf("fleet %v, %+v: regions %v", fleet, c, ids)
			}
		}
	}
}
