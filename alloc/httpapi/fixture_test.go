package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// The tokens of the tests: two players and a backend of one tenant, a second
// environment and a second project.
const (
	tokenAnna    = "anna-0123456789abcdef"
	tokenBert    = "bert-0123456789abcdef"
	tokenServer  = "server-0123456789abcdef"
	tokenStaging = "staging-0123456789abcdef"
	tokenOther   = "other-0123456789abcdef"
)

func testTokens() []Token {
	return []Token{
		{Secret: tokenAnna, Project: "game", Environment: "live"},
		{Secret: tokenBert, Project: "game", Environment: "live", Player: "bert"},
		{Secret: tokenServer, Project: "game", Environment: "live", Server: true},
		{Secret: tokenStaging, Project: "game", Environment: "staging", Player: "bert"},
		{Secret: tokenOther, Project: "other", Environment: "live", Server: true},
	}
}

type fixture struct {
	*Handler
	relay *alloctest.Relay
	clock *testkit.Clock
}

func newFixture(t testing.TB, cfg Config) *fixture { return newRelayFixture(t, cfg, newFakeRelay()) }

// newUnlimitedFixture is newFixture with a relay that limits no caller.
func newUnlimitedFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	relay := newFakeRelay()
	relay.Config.Unlimited = true
	return newRelayFixture(t, cfg, relay)
}

func newFakeRelay() *alloctest.Relay {
	r := alloctest.NewRelay()
	r.Endpoints = []alloc.ServerEndpoint{
		{ConnectionType: "wss", Network: "tcp", Reliable: true, Secure: true, Host: "relay.example.org", Port: 443},
		{ConnectionType: "udp", Network: "udp", Host: "192.0.2.9", Port: 7777},
		{ConnectionType: "dtls", Network: "udp", Secure: true, Host: "192.0.2.9", Port: 7777},
	}
	return r
}

func newRelayFixture(t testing.TB, cfg Config, relay *alloctest.Relay) *fixture {
	t.Helper()
	x := &fixture{relay: relay, clock: testkit.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay:         relay,
		Store:         alloc.NewMemoryStore(),
		HostMigration: true,
		Now:           x.clock.Now,
		Regions: []alloc.Region{
			{ID: "local", Description: "Here", QoSAddress: "203.0.113.1:7777"}, {ID: "far", Description: "There"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Service = service
	if cfg.Tokens == nil && !cfg.Anonymous {
		cfg.Tokens = testTokens()
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.now, h.limits.now = x.clock.Now, x.clock.Now
	x.Handler = h
	return x
}

func newRequest(method, path, token, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Accept", "application/json")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("authorization", "Bearer "+token)
	}
	return r
}

func (x *fixture) do(r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	x.ServeHTTP(rec, r)
	return rec
}

func (x *fixture) post(path, token, body string) *httptest.ResponseRecorder {
	return x.do(newRequest(http.MethodPost, path, token, body))
}

func (x *fixture) allocate(t *testing.T, token string) string {
	t.Helper()
	rec := x.post("/v1/allocate", token, `{"maxConnections":4}`)
	wantStatus(t, rec, http.StatusCreated)
	return sdkAllocation(t, rec, false)
}

func (x *fixture) code(t *testing.T, token, id string) string {
	t.Helper()
	rec := x.post("/v1/joincode", token, `{"allocationId":"`+id+`"}`)
	wantStatus(t, rec, http.StatusCreated)
	return sdkJoinCode(t, rec)
}

func wantStatus(t *testing.T, rec *httptest.ResponseRecorder, status int) {
	t.Helper()
	if rec.Code != status {
		t.Fatalf("status %d, want %d: %.300s", rec.Code, status, rec.Body)
	}
}

func wantProblem(t *testing.T, rec *httptest.ResponseRecorder, status, code int) {
	t.Helper()
	wantStatus(t, rec, status)
	if got := sdkProblem(t, rec); got != code {
		t.Fatalf("code %d, want %d: %s", got, code, rec.Body)
	}
}
