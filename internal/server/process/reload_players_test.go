package process

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// The keys of two issuers, which must not appear in a log or in an answer.
const (
	firstKey  = "the-first-key-of-the-tests-0123456789"
	secondKey = "the-second-key-of-the-tests-0123456789"
)

func trustedIssuer(name, key string) config.Issuer {
	return config.Issuer{Preset: "development", Issuer: name, HS256Key: config.Secret(key), Project: "game"}
}

func minted(t *testing.T, name, key, player string) string {
	t.Helper()
	token, err := identity.Mint(identity.MintRequest{
		Secret: []byte(key), Issuer: name, Valid: time.Hour, Now: time.Now(),
		Identity: identity.Identity{Tenant: alloc.Tenant{Project: "game", Environment: "test"}, Player: player, Server: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// sameSecrets fails if the log, the settings or an answer show a secret.
func (r *reloading) sameSecrets(t *testing.T, done operator.ReloadResult) {
	t.Helper()
	text := r.log.String() + fmt.Sprintf("%+v", done) + fmt.Sprintf("%+v", r.settings.values())
	for _, hush := range []string{secret, otherSecret, firstKey, secondKey, hookSecret} {
		if strings.Contains(text, hush) {
			t.Errorf("%s is shown", hush)
		}
	}
}

// TestReloadIssuers: while calls are under way, issuers come and go. Who is
// trusted throughout is never refused, one whose issuer is removed is refused from
// the next call on, and a key that is fetched is not fetched again.
func TestReloadIssuers(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	published := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`)
	}))
	defer published.Close()
	fetched := config.Issuer{Issuer: "https://id.example.org", Audience: []string{"a"}, JWKSURL: published.URL, Project: "game",
		Environment: "test"}
	r := startReloading(t, Serve, func(c *config.Config) {
		c.Issuers = []config.Issuer{fetched, trustedIssuer("stays", firstKey)}
		c.ServerPerMinute = 1_000_000 // The callers never pause.
	})
	testkit.Within(t, time.Minute, "the keys", func() bool { return r.api.players.policy.Load().verifier.Stats().Keyless == 0 })
	stays, moves := minted(t, "stays", firstKey, "anna"), minted(t, "moves", secondKey, "bert")
	if !allowed(t, r.running, stays) || allowed(t, r.running, moves) {
		t.Fatal("a trusted issuer is refused, or another one is accepted")
	}
	over := make(chan struct{})
	var callers sync.WaitGroup
	var tries atomic.Int32 // of the player that moves, until the next reload: refused tokens count by address
	for range 3 {
		callers.Go(func() {
			for first := true; first || !isOver(over); first = false {
				if _, err := r.caller(stays).Regions(t.Context()); err != nil {
					t.Errorf("a player that stays: %v", err)
				}
				if tries.Add(-1) < 0 {
					continue
				}
				if _, err := r.caller(moves).Regions(t.Context()); err != nil && problem(err) != 401 {
					t.Errorf("a player that moves: %v", err)
				}
			}
		})
	}
	for range 10 {
		r.file.Issuers = []config.Issuer{trustedIssuer("moves", secondKey), fetched, trustedIssuer("stays", firstKey)}
		tries.Store(5)
		done := r.reload(t)
		r.sameSecrets(t, done)
		if got := strings.Join(changedKeys(done.Changed), " "); got != "issuers" || len(done.Restart) != 0 {
			t.Errorf("%+v", done)
		}
		if !allowed(t, r.running, moves) {
			t.Error("a new player is refused")
		}
		r.file.Issuers = []config.Issuer{trustedIssuer("stays", firstKey), fetched}
		tries.Store(5)
		done = r.reload(t)
		if !strings.Contains(done.Changed[0].Was, "moves") || strings.Contains(done.Changed[0].Now, "moves") {
			t.Errorf("%+v", done)
		}
		if allowed(t, r.running, moves) {
			t.Error("a removed player is accepted")
		}
	}
	close(over)
	callers.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}

	r.file.Issuers = []config.Issuer{trustedIssuer("stays", secondKey)}
	r.sameSecrets(t, r.reload(t))
	if allowed(t, r.running, stays) || !allowed(t, r.running, minted(t, "stays", secondKey, "anna")) {
		t.Error("the key before is good, or the one after is not")
	}
	r.file.Issuers = nil
	r.reload(t)
	if allowed(t, r.running, minted(t, "stays", secondKey, "anna")) || !allowed(t, r.running, secret) {
		t.Error("without issuers a token is let in, or a static one is not")
	}
}

func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestReloadKeepsCounts(t *testing.T) {
	t.Parallel()
	r := startReloading(t, Serve, func(c *config.Config) { c.PlayerPerMinute = 2 })
	for i, want := range []int{0, 0, 429} {
		if _, err := r.caller(secret).Regions(t.Context()); problem(err) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	r.file.Issuers = []config.Issuer{trustedIssuer("new", firstKey)}
	r.reload(t)
	if _, err := r.caller(secret).Regions(t.Context()); problem(err) != 429 {
		t.Errorf("after a reload: %v", err)
	}
}

// TestReloadQuotas: a project that gets a quota has what it had, and one that
// loses it is free; limits of players change with it.
func TestReloadQuotas(t *testing.T) {
	t.Parallel()
	r := startReloading(t, Serve, func(c *config.Config) { c.BindTimeout = time.Hour }) // They stay unbound.
	reserveTwo(t, r.running)
	allocate := func() error {
		_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return err
	}
	r.file.Quotas = []config.Quota{{Project: "game", Allocations: 2}}
	if done := r.reload(t); len(done.Changed) != 1 || done.Changed[0].Now != "1: {project: game, allocations: 2}" {
		t.Errorf("%+v", done)
	}
	if !refusedByQuota(t, r.running) {
		t.Error("two of two, and there is room")
	}
	if got := r.shown("quotas[0].allocations"); got != "2" {
		t.Errorf("the quota is shown as %s", got)
	}
	r.file.Quotas = []config.Quota{{Project: "game", Allocations: 3}}
	r.reload(t)
	if err := allocate(); err != nil {
		t.Errorf("the third of three: %v", err)
	}
	if got := r.api.players.policy.Load().guard.Stats().Refused[quota.RefusedAllocations]; got != 1 {
		t.Errorf("%d refusals are counted, want 1", got)
	}
	r.file.Quotas = []config.Quota{{Project: "game", Inactive: true}}
	r.reload(t)
	if err := allocate(); problem(err) != http.StatusForbidden {
		t.Errorf("an inactive project: %v", err)
	}
	before := r.file.PlayerPerMinute
	r.file.Quotas, r.file.PlayerPerMinute = nil, 3
	r.reload(t)
	if err := allocate(); problem(err) != 429 {
		t.Errorf("more than one is outstanding: %v", err)
	}
	r.file.PlayerPerMinute = before
	r.reload(t)
	if err := allocate(); err != nil {
		t.Errorf("without a quota: %v", err)
	}
}

// TestReloadHooks: programs of the operator's come, change their secret and go,
// and queued events are sent.
func TestReloadHooks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "secret")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(hookSecret)
	h := &recorder{}
	program := httptest.NewServer(h)
	defer program.Close()
	r := startReloading(t, Serve, func(c *config.Config) { c.Tokens[0].Player = "banned" })
	allocate := func() int {
		_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return problem(err)
	}
	if got := allocate(); got != 0 {
		t.Errorf("before the first request: %d", got)
	}
	r.file.AdmissionURL, r.file.AdmissionSecretFile = program.URL+"/admit", file
	r.file.WebhookURL, r.file.WebhookSecretFile = program.URL+"/events", file
	done := r.reload(t)
	r.sameSecrets(t, done)
	if got := strings.Join(changedKeys(done.Changed), " "); got != "admission_url admission_secret_file webhook_url webhook_secret_file" {
		t.Errorf("changed %s", got)
	}
	if got := allocate(); got != http.StatusForbidden {
		t.Errorf("whom the program refuses: %d", got)
	}
	asked := r.api.players.policy.Load().admission
	r.reload(t)
	if r.api.players.policy.Load().admission != asked {
		t.Error("a program that stays was forgotten")
	}
	r.file.Tokens = []config.Token{{Secret: secret, Project: "game", Environment: "test", Player: "anna", Kind: "player"}}
	r.reload(t)
	if got := allocate(); got != 0 {
		t.Errorf("whom it lets in: %d", got)
	}
	testkit.Within(t, time.Minute, "the event", func() bool { return len(h.of(hooks.Allocated, "")) == 1 })

	put("another secret of the tests")
	done = r.reload(t)
	if got := strings.Join(done.Notes, ", "); len(done.Changed) != 0 || strings.Count(got, "another secret") != 2 {
		t.Errorf("another secret: %+v", done)
	}
	if got := allocate(); got != http.StatusServiceUnavailable {
		t.Errorf("a program that does not know the secret: %d", got)
	}
	r.file.AdmissionURL, r.file.WebhookURL = "", ""
	put(hookSecret)
	r.reload(t)
	if got := allocate(); got != 0 || r.api.players.webhooks() != nil {
		t.Errorf("without admission_url: %d", got)
	}
	r.file.WebhookURL = program.URL + "/events"
	r.reload(t)
	if got := allocate(); got != 0 {
		t.Errorf("without admission_url: %d", got)
	}
	testkit.Within(t, time.Minute, "the event after a pause", func() bool { return len(h.of(hooks.Allocated, "")) == 2 })
}

// TestReloadPlayersRefused: one invalid setting about callers, and nothing
// of it changes.
func TestReloadPlayersRefused(t *testing.T) {
	t.Parallel()
	r := startReloading(t, Serve, func(c *config.Config) { c.Issuers = []config.Issuer{trustedIssuer("stays", firstKey)} })
	good, file := r.file, filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(hookSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	stays, comes := minted(t, "stays", firstKey, "anna"), minted(t, "comes", secondKey, "bert")
	in := r.api.players.policy.Load()
	for want, change := range map[string]func(*config.Config){
		"issuers[1]":          func(c *config.Config) { c.Issuers = append(c.Issuers, config.Issuer{Issuer: "x"}) },
		"at least 32 bytes":   func(c *config.Config) { c.Issuers = append(c.Issuers, trustedIssuer("x", "short-key-hush")) },
		"has one already":     func(c *config.Config) { c.Quotas = []config.Quota{{Project: "a"}, {Project: "a"}} },
		"webhook_secret_file": func(c *config.Config) { c.WebhookURL = "https://hooks.example.org/" },
		"/nowhere": func(c *config.Config) {
			c.AdmissionURL, c.AdmissionSecretFile = "https://hooks.example.org/", "/nowhere"
		},
		"webhook_url":           func(c *config.Config) { c.WebhookURL, c.WebhookSecretFile = "http://203.0.113.7/", file },
		"secret is that of ano": func(c *config.Config) { c.Tokens = append(c.Tokens, c.Tokens[0]) },
	} {
		r.file = good
		r.file.Issuers = []config.Issuer{trustedIssuer("comes", secondKey)}
		r.file.PlayerPerMinute = 1
		change(&r.file)
		_, err := r.settings.Reload(t.Context())
		if !errors.Is(err, admin.ErrRefused) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%v, want %q", err, want)
		}
		if r.api.players.policy.Load() != in || !allowed(t, r.running, stays) || allowed(t, r.running, comes) ||
			r.shown("player_per_minute") != "60" {
			t.Errorf("%s: something has changed", want)
		}
	}
	r.sameSecrets(t, operator.ReloadResult{})
}
