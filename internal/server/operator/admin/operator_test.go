package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

var (
	hostID   = proto.AllocationID{0xA0, 15: 1}
	playerID = proto.AllocationID{0xB0, 15: 2}
	nobodyID = proto.AllocationID{0xC0, 15: 3}
	busyID   = proto.AllocationID{0xD0, 15: 4}
)

// fakeRelay has one host and one player, and notes what it was asked for.
type fakeRelay struct {
	filter engine.Filter
	cursor uint32
	limit  int
	did    []string
}

func (r *fakeRelay) Allocations(_ context.Context, f engine.Filter, at uint32, limit int) ([]engine.Allocation,
	uint32, error) {
	host := engine.Allocation{
		ID: hostID, Match: hostID, Role: alloc.RoleHost, Tenant: 255, Transport: "udp4", Links: 1, MaxConnections: 4, LargeDrops: 7,
		Endpoint: netip.MustParseAddrPort("192.0.2.1:5000"), Age: 2500 * time.Millisecond, EverBound: true,
	}
	player := engine.Allocation{
		ID: playerID, Match: hostID, Role: alloc.RoleJoiner, Transport: "ws", Links: 1,
		Name: alloc.Tenant{Project: "p", Environment: "e"},
	}
	switch f.ID {
	case hostID:
		return []engine.Allocation{host}, 0, nil
	case playerID:
		return []engine.Allocation{player}, 0, nil
	case proto.AllocationID{}:
		r.filter, r.cursor, r.limit = f, at, limit
		return []engine.Allocation{host, player}, 77, nil
	}
	return nil, 0, nil
}

func (r *fakeRelay) do(what string, id proto.AllocationID) error {
	r.did = append(r.did, fmt.Sprint(what, " ", id))
	switch {
	case id == busyID:
		return alloc.ErrUnavailable
	case id == nobodyID:
		return alloc.ErrNotFound
	case id == hostID && what == "kick":
		return engine.ErrKickHost
	}
	return nil
}

func (r *fakeRelay) End(_ context.Context, id proto.AllocationID) error  { return r.do("end", id) }
func (r *fakeRelay) Kick(_ context.Context, id proto.AllocationID) error { return r.do("kick", id) }

func (r *fakeRelay) Usage(context.Context) ([]engine.Usage, error) {
	return []engine.Usage{{Others: true, Bytes: 3}, {Tenant: 255, Players: 2, PlayerSeconds: 1.5, Datagrams: 9}}, nil
}

func (r *fakeRelay) Stats() (st engine.Stats) {
	st.Seats, st.Outcomes, st.Drops = 5, map[string]uint64{"relayed": 7}, map[string]uint64{"seal": 8}
	st.Private.Workers = []privateapi.WorkerStats{{Received: 11}, {Received: 12, Transport: "ws"}, {Received: 13, Transport: "game-tcp"}}
	return st
}

// operatorConfig are the pages about a fake relay, and settings that fail on demand.
func operatorConfig(relay *fakeRelay, change func(*Config)) (Config, *bytes.Buffer) {
	log := new(bytes.Buffer)
	cfg := Config{
		Metrics: func(io.Writer) {}, Health: Health{Ready: func() error { return nil }},
		Drain: &DrainConfig{
			State: func() operator.DrainState { return operator.DrainState{} }, Undrain: func(context.Context) error { return nil },
		},
		Relay: &RelayConfig{Engine: relay, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		Nodes: func(context.Context) (operator.Nodes, error) {
			return operator.Nodes{Nodes: []operator.Node{{ID: "nnnn"}}}, nil
		},
		Settings: &SettingsConfig{
			Values: func() []operator.Setting {
				return []operator.Setting{{Key: "region", Value: "eu", Source: "default"}}
			},
			Reload: func(context.Context) (operator.ReloadResult, error) {
				return operator.ReloadResult{Notes: []string{"read"}}, nil
			},
			Level: new(slog.LevelVar),
		},
	}
	cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: cfg.Settings.Level}))
	change(&cfg)
	return cfg, log
}

func TestOperatorPages(t *testing.T) {
	t.Parallel()
	relay := new(fakeRelay)
	cfg, log := operatorConfig(relay, func(*Config) {})
	h := New(cfg)
	for _, c := range []struct {
		request string
		status  int
		want    string
	}{
		{"GET /nodes", 200, `{"nodes":[{"id":"nnnn",`},
		{"GET /allocations", 200, `"transport":"udp4","endpoint":"192.0.2.1:5000","recovered":false,"age_seconds":2.5,"heard_seconds_ago":0,"active_seconds_ago":0,"connections":1,"max_connections":4,"datagrams_sent":0,"bytes_sent":0,"receiver_size_drops":7,"large_messages":0}`},
		{"GET /allocations", 200, `"project":"p","environment":"e","tenant":"0000000000000000","bound":true,"transport":"ws","recovered":false,`},
		{"GET /allocations", 200, `"next":77}`},
		{"GET /allocations/" + hostID.String(), 200, `"tenant":"00000000000000ff"`},
		{"GET /allocations/" + nobodyID.String(), 404, "not found"},
		{"GET /allocations/x", 400, `"x" is not the id of an allocation`},
		{"GET /allocations/urn:uuid:" + hostID.String(), 400, "is not the id"},
		{"GET /allocations/" + hostID.String() + "/players", 200, `"next":77}`},
		{"GET /allocations/" + playerID.String() + "/players", 400, "is a player, its host is " + hostID.String()},
		{"GET /allocations/" + nobodyID.String() + "/players", 404, "not found"},
		{"DELETE /allocations/" + hostID.String(), 200, `{"id":"` + hostID.String() + `","done":"closed"}`},
		{"DELETE /allocations/" + nobodyID.String(), 404, "not found"},
		{"DELETE /allocations/" + busyID.String(), 503, "unavailable"},
		{"DELETE /allocations/x", 400, "is not the id"},
		{"POST /allocations/" + playerID.String() + "/kick", 200, `"done":"kicked"`},
		{"POST /allocations/" + hostID.String() + "/kick", 409, "cannot be kicked"},
		{"GET /allocations/" + playerID.String() + "/kick", 405, ""},
		{"GET /usage", 200, `{"since":"2026-01-02T03:04:05Z","projects":[{"others":true,`},
		{"GET /usage", 200, `"tenant":"00000000000000ff","allocations":0,"hosts":0,"players":2,"player_seconds":1.5,"datagrams":9,"bytes":0}`},
		{"GET /stats", 200, `"outcomes":{"relayed":7},"drops":{"seal":8},"workers":[11],"intakes":[12,13],`},
		{"GET /config", 200, `{"settings":[{"key":"region","value":"eu","source":"default","reloads":false}]}`},
		{"POST /reload", 200, `"notes":["read"]`},
		{"GET /reload", 405, ""},
		{"GET /log-level", 200, `{"level":"info"}`},
		{"PUT /log-level?level=debug", 200, `{"level":"debug"}`},
		{"PUT /log-level?level=loud", 400, "debug, info, warn, error"},
		{"PUT /log-level", 400, "level is missing"},
		{"GET /log-level", 200, `{"level":"debug"}`},
		{"PUT /log-level?level=error", 200, `{"level":"error"}`},
		{"GET /", 200, "/allocations"},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		w := get(h, method, path)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.request, w.Code, w.Body, c.status, c.want)
		}
	}
	if want := []string{"end " + hostID.String(), "end " + nobodyID.String(), "end " + busyID.String(), "kick " + playerID.String(),
		"kick " + hostID.String()}; strings.Join(relay.did, ",") != strings.Join(want, ",") {
		t.Errorf("did %q, want %q", relay.did, want)
	}
	for _, want := range []string{"was closed\" allocation=" + hostID.String(), "was kicked\" allocation=" + playerID.String(),
		"was=info now=debug", "was=debug now=error"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	if strings.Contains(log.String(), nobodyID.String()) {
		t.Errorf("the log tells of what was not done:\n%s", log)
	}
}

// TestListingQuery: each parameter reaches the relay, and nothing else is
// understood.
func TestListingQuery(t *testing.T) {
	t.Parallel()
	relay := new(fakeRelay)
	cfg, _ := operatorConfig(relay, func(*Config) {})
	h := New(cfg)
	tenant := alloc.Tenant{Project: "p", Environment: "e"}
	for query, want := range map[string]fakeRelay{
		"":                          {limit: 100},
		"limit=7&cursor=4294967295": {limit: 7, cursor: 1<<32 - 1},
		"role=host&bound=true":      {limit: 100, filter: engine.Filter{Role: alloc.RoleHost, Bound: true}},
		"role=joiner&bound=false":   {limit: 100, filter: engine.Filter{Role: alloc.RoleJoiner, Unbound: true}},
		"match=" + hostID.String():  {limit: 100, filter: engine.Filter{Match: hostID}},
		"project=p&environment=e":   {limit: 100, filter: engine.Filter{Tenant: tenant.Hash()}},
		"tenant=00000000000000ff":   {limit: 100, filter: engine.Filter{Tenant: 255}},
		"transport=dtls&limit=1000": {limit: 1000, filter: engine.Filter{Transport: "dtls"}},
		"transport=game-tcp":        {limit: 100, filter: engine.Filter{Transport: "game-tcp"}},
		"project=p&environment=&x=": {},
		"limit=1001":                {},
		"limit=-1":                  {},
		"cursor=4294967296":         {},
		"role=ticket":               {},
		"role=none":                 {},
		"bound=yes":                 {},
		"transport=none":            {},
		"match=x":                   {},
		"tenant=ff":                 {},
		"tenant=00000000000000fg":   {},
		"project=p":                 {limit: 100, filter: engine.Filter{Project: "p"}},
		"environment=e":             {},
		"limit=1&limit=2":           {},
		"sort=age":                  {},
		"project=" + strings.Repeat("x", 57) + "&environment=e":    {},
		"project=p&environment=e&tenant=00000000000000ff":          {},
		"match=" + hostID.String() + "&match=" + nobodyID.String(): {},
	} {
		*relay = fakeRelay{}
		w := get(h, "GET", "/allocations?"+query)
		good := want.limit != 0
		if good != (w.Code == 200) || !good && (w.Code != 400 || relay.limit != 0) ||
			good && (relay.filter != want.filter || relay.cursor != want.cursor || relay.limit != want.limit) {
			t.Errorf("%q: %d %s, asked %+v", query, w.Code, w.Body, relay)
		}
	}
	get(h, "GET", "/allocations/"+hostID.String()+"/players?bound=true")
	if want := (engine.Filter{Match: hostID, Role: alloc.RoleJoiner, Bound: true}); relay.filter != want {
		t.Errorf("players: asked %+v", relay.filter)
	}
}

// TestRefusedReload: the reason reaches the operator.
func TestRefusedReload(t *testing.T) {
	t.Parallel()
	for status, err := range map[int]error{
		422: fmt.Errorf("%w: ferry.yaml:3: region: is empty", ErrRefused), 503: alloc.ErrUnavailable, 500: errors.New("broken"),
	} {
		cfg, _ := operatorConfig(new(fakeRelay), func(c *Config) {
			c.Settings.Reload = func(context.Context) (operator.ReloadResult, error) { return operator.ReloadResult{}, err }
		})
		if w := get(New(cfg), "POST", "/reload"); w.Code != status || strings.TrimSpace(w.Body.String()) != err.Error() {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

// deadlineRecorder notes until when a request may take.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (r *deadlineRecorder) SetReadDeadline(t time.Time) error  { r.read = t; return nil }
func (r *deadlineRecorder) SetWriteDeadline(t time.Time) error { r.write = t; return nil }

// TestSlowUpgrade: an upgrade may take longer than other calls, whose deadlines would cancel it and lose its answer.
func TestSlowUpgrade(t *testing.T) {
	t.Parallel()
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	cfg, _ := operatorConfig(new(fakeRelay), func(c *Config) {
		c.Settings.Upgrade = func(context.Context) (operator.UpgradeResult, error) {
			if soon := time.Now().Add(30 * time.Second); w.read.Before(soon) || w.write.Before(soon) {
				t.Errorf("deadlines %v and %v", w.read, w.write)
			}
			return operator.UpgradeResult{}, fmt.Errorf("%w: it was not prepared within 10s", ErrNotUpgraded)
		}
	})
	New(cfg).ServeHTTP(w, httptest.NewRequest("POST", "http://127.0.0.1/upgrade", nil))
	if w.Code != 409 || !strings.Contains(w.Body.String(), "it was not prepared within 10s") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestWithoutRelay: a process that has no relay has no pages about one.
func TestWithoutRelay(t *testing.T) {
	t.Parallel()
	cfg, _ := operatorConfig(nil, func(c *Config) { c.Relay, c.Nodes, c.Settings = nil, nil, nil })
	h := New(cfg)
	for _, path := range []string{"/allocations", "/usage", "/stats", "/nodes", "/config", "/log-level"} {
		if w := get(h, "GET", path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// TestAccess: authorization by listener, token and source address.
func TestAccess(t *testing.T) {
	t.Parallel()
	const token = "a-token-of-the-tests"
	for _, c := range []struct {
		name          string
		token         string
		public        bool
		authorization string
		remote, host  string
		health        int // of /livez
		numbers       int // of GET /metrics
		names         int // of GET /allocations
		changes       int // of DELETE /drain
	}{
		{"loopback", "", false, "", "127.0.0.1:5", "localhost:7778", 200, 200, 200, 200},
		{"loopback, a token", token, false, "", "127.0.0.1:5", "localhost:7778", 200, 401, 401, 401},
		{"loopback, with it", token, false, "Bearer " + token, "127.0.0.1:5", "localhost:7778", 200, 200, 200, 200},
		{"loopback, with it, by a name", token, false, "Bearer " + token, "127.0.0.1:5", "attacker.example", 403, 403, 403, 403},
		{"public", "", true, "", "203.0.113.5:5", "ferry.example", 200, 200, 403, 403},
		{"public, from the machine", "", true, "", "127.0.0.1:5", "127.0.0.1:7778", 200, 200, 200, 200},
		{"public, from the machine, mapped", "", true, "", "[::ffff:127.0.0.1]:5", "[::1]:7778", 200, 200, 200, 200},
		{"public, a page's name for the machine", "", true, "", "127.0.0.1:5", "attacker.example", 200, 200, 403, 403},
		{"public, no sender", "", true, "", "", "127.0.0.1", 200, 200, 403, 403},
		{"public, an unneeded token", "", true, "Bearer " + token, "203.0.113.5:5", "ferry.example", 200, 200, 403, 403},
		{"public, a token", token, true, "", "127.0.0.1:5", "127.0.0.1:7778", 200, 401, 401, 401},
		{"public, with it", token, true, "bearer " + token, "203.0.113.5:5", "ferry.example", 200, 200, 200, 200},
		{"public, a wrong one", token, true, "Bearer " + token + "x", "203.0.113.5:5", "ferry.example", 200, 401, 401, 401},
		{"public, an empty one", token, true, "Bearer ", "203.0.113.5:5", "ferry.example", 200, 401, 401, 401},
		{"public, another scheme", token, true, "Basic " + token, "203.0.113.5:5", "ferry.example", 200, 401, 401, 401},
	} {
		cfg, _ := operatorConfig(new(fakeRelay), func(cfg *Config) {
			cfg.Access.Token, cfg.Access.AllowAnyHost = c.token, c.public
			cfg.Health.Probe, cfg.Health.Workers = func(context.Context) error { return nil }, func() []privateapi.WorkerStats { return nil }
		})
		h := New(cfg)
		for request, want := range map[string]int{
			"GET /livez": c.health, "GET /readyz": c.health, "GET /metrics": c.numbers, "GET /": c.numbers, "GET /drain": c.numbers,
			"GET /allocations": c.names, "GET /config": c.names, "GET /nowhere": c.names,
			"DELETE /drain": c.changes, "POST /reload": c.changes, "DELETE /nodes/nnnn/drain": c.changes,
		} {
			if want == 200 && request == "GET /nowhere" {
				want = 404
			}
			method, path, _ := strings.Cut(request, " ")
			r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
			r.RemoteAddr, r.Host = c.remote, c.host
			if c.authorization != "" {
				r.Header.Set("Authorization", c.authorization)
			}
			if h.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s: %s: %d, want %d: %s", c.name, request, w.Code, want, w.Body)
			}
			if w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s: %s: no WWW-Authenticate", c.name, request)
			}
		}
	}
	cfg, _ := operatorConfig(new(fakeRelay), func(cfg *Config) { cfg.Access.Token = token })
	r, w := httptest.NewRequest("GET", "/usage", nil), httptest.NewRecorder()
	r.Host, r.Header = "localhost", map[string][]string{"Authorization": {"Bearer " + token, "Bearer " + token}}
	if New(cfg).ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("two headers: %d", w.Code)
	}
}

func TestCheckToken(t *testing.T) {
	t.Parallel()
	for token, good := range map[string]bool{
		"": false, "fifteen letters": false, "0123456789abcde": false, "0123456789abcdef": true,
		"0123456789 abcdef": false, "0123456789abcdef\n": false, "0123456789abcdefé": false,
		strings.Repeat("x", maxToken): true, strings.Repeat("x", maxToken+1): false,
	} {
		if err := CheckToken(token); (err == nil) != good || err != nil && !errors.Is(err, ErrToken) {
			t.Errorf("%.20q: %v", token, err)
		}
	}
}
