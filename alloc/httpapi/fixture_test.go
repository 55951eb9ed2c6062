package httpapi

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
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
		{Secret: tokenServer, Project: "game", Environment: "live", Kind: KindServer},
		{Secret: tokenStaging, Project: "game", Environment: "staging", Player: "bert"},
		{Secret: tokenOther, Project: "other", Environment: "live", Kind: KindServer},
	}
}

type fixture struct {
	*Handler
	relay *fakeRelay
	clock *testkit.Clock
}

func newFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	return newRelayFixture(t, cfg, func(r *fakeRelay) alloc.Relay { return r })
}

// newUnlimitedFixture is newFixture with a relay that limits no caller.
func newUnlimitedFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	return newRelayFixture(t, cfg, func(r *fakeRelay) alloc.Relay { return unlimitedRelay{r} })
}

func newRelayFixture(t testing.TB, cfg Config, wrap func(*fakeRelay) alloc.Relay) *fixture {
	t.Helper()
	x := &fixture{relay: newFakeRelay(), clock: testkit.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay:         wrap(x.relay),
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

type fakeRelay struct {
	mu      sync.Mutex // guards the following fields
	fail    error      // what every method answers when it is not nil
	live    map[proto.AllocationID]alloc.Description
	ways    []alloc.ServerEndpoint
	calls   int
	hosts   []alloc.HostRequest
	callers []netip.Addr
	joiner  alloc.JoinerRequest // the last one
	left    proto.AllocationID  // the host that has left
	asked   alloc.MigrationRequest
}

// unlimitedRelay is a relay that limits no caller.
type unlimitedRelay struct{ *fakeRelay }

func (unlimitedRelay) RelayConfig() alloc.RelayConfig {
	return alloc.RelayConfig{
		Region: "local", MaxConnections: alloc.DefaultMaxConnections, BindTimeout: alloc.DefaultBindTimeout,
		HostMigration: true, Unlimited: true,
	}
}

// fakeCapacity bounds the memory of a fake relay under a fuzzer.
const fakeCapacity = 1000

func newFakeRelay() *fakeRelay {
	return &fakeRelay{
		live: make(map[proto.AllocationID]alloc.Description),
		ways: []alloc.ServerEndpoint{
			{ConnectionType: "wss", Network: "tcp", Reliable: true, Secure: true, Host: "relay.example.org", Port: 443},
			{ConnectionType: "udp", Network: "udp", Host: "192.0.2.9", Port: 7777},
			{ConnectionType: "dtls", Network: "udp", Secure: true, Host: "192.0.2.9", Port: 7777},
		},
	}
}

func (f *fakeRelay) ReserveHost(_ context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	f.mu.Lock()
	f.hosts = append(f.hosts[max(len(f.hosts)-fakeCapacity, 0):], r)
	f.mu.Unlock()
	return f.reserve(alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleHost})
}

func (f *fakeRelay) ReserveJoiner(_ context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	f.mu.Lock()
	_, ok := f.live[r.Host]
	left := r.Host == f.left
	f.joiner = r
	f.callers = append(f.callers[max(len(f.callers)-fakeCapacity, 0):], r.ClientAddress)
	f.mu.Unlock()
	switch {
	case left:
		return alloc.Reservation{}, alloc.MigrationWaitError{Reason: "the host has left"}
	case !ok:
		return alloc.Reservation{}, alloc.ErrNotFound
	}
	return f.reserve(alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleJoiner})
}

// MigrateHost gives every player a reservation for the place of the host that has left.
func (f *fakeRelay) MigrateHost(_ context.Context, r alloc.MigrationRequest) (alloc.Reservation, error) {
	f.mu.Lock()
	f.asked = r
	fail, left := f.fail, r.Host == f.left
	_, live := f.live[r.Host]
	f.mu.Unlock()
	switch {
	case fail != nil:
		return alloc.Reservation{}, fail
	case left:
		return f.reserve(alloc.Description{Tenant: r.Tenant.Hash(), Player: r.Player, Role: alloc.RoleHost})
	case live:
		return alloc.Reservation{}, alloc.HostPresentError{Host: r.Host}
	}
	return alloc.Reservation{}, alloc.ErrNotFound
}

func (f *fakeRelay) LeaveHost(_ context.Context, r alloc.LeaveRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	d, live := f.live[r.Host]
	if !live || d.Tenant != r.Tenant.Hash() || r.Player != (alloc.PlayerHash{}) && r.Player != d.Player {
		return alloc.ErrNotFound
	}
	f.left = r.Host
	return nil
}

func (f *fakeRelay) leave(id proto.AllocationID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = id
}

func (f *fakeRelay) Describe(_ context.Context, id proto.AllocationID) (alloc.Description, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		return alloc.Description{}, f.fail
	}
	d, ok := f.live[id]
	if !ok {
		return alloc.Description{}, alloc.ErrNotFound
	}
	return d, nil
}

func (f *fakeRelay) reserve(d alloc.Description) (alloc.Reservation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		return alloc.Reservation{}, f.fail
	}
	if len(f.live) >= fakeCapacity {
		clear(f.live)
	}
	res := alloc.Reservation{Endpoints: f.ways}
	for _, b := range [][]byte{res.ID[:], res.Key[:], res.ConnectionData[:], res.HostConnectionData[:]} {
		_, _ = rand.Read(b)
	}
	f.live[res.ID] = d
	return res, nil
}

func (f *fakeRelay) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeRelay) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.live)
}

func (f *fakeRelay) called() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}
