package process

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// es256 returns a token with these claims. It is written by hand, so that the
// relay's library has not signed what it checks.
func es256(t *testing.T, key *ecdsa.PrivateKey, claims string) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"k"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(claims))
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := slices.Concat(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32)))
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// TestIssuerOfItsOwn: players of an issuer with published keys play, and a relay
// whose issuer is not reachable yet is answered with 503.
func TestIssuerOfItsOwn(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	document := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":%q,"y":%q}]}`, b64(point[1:33]), b64(point[33:]))
	var there sync.Mutex // locked: the issuer is not there
	there.Lock()
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !there.TryLock() {
			http.Error(w, "", http.StatusBadGateway)
			return
		}
		defer there.Unlock()
		io.WriteString(w, document)
	}))
	defer issuer.Close()
	c := local()
	c.Tokens = nil
	c.Issuers = []config.Issuer{{
		Issuer: "https://id.example.org", Audience: []string{"relay"}, JWKSURL: issuer.URL,
		ProjectClaim: "game", Environment: "live",
	}}
	r := start(t, options(c, Serve))
	claims := func(player string, valid time.Duration) string {
		return fmt.Sprintf(`{"iss":"https://id.example.org","aud":"relay","sub":%q,"game":"chess","exp":%d}`, player, time.Now().Add(valid).Unix())
	}
	status := func(token string) int {
		_, err := r.caller(token).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		var problem *api.Problem
		if err != nil && !errors.As(err, &problem) {
			t.Fatal(err)
		}
		if problem != nil {
			return problem.Status
		}
		return 201
	}
	good := es256(t, key, claims("anna", time.Hour))
	if got := status(good); got != 503 {
		t.Errorf("without the issuer's keys: %d", got)
	}
	there.Unlock()
	testkit.Within(t, time.Minute, "the keys", func() bool { return r.api.players.policy.Load().verifier.Stats().Keyless == 0 })
	if got := status(good); got != 201 {
		t.Errorf("with the issuer's keys: %d", got)
	}
	for name, token := range map[string]string{
		"expired": es256(t, key, claims("anna", -time.Hour)), "changed": good[:len(good)-10] + "AAAAAAAAAA",
	} {
		if got := status(token); got != 401 {
			t.Errorf("%s: %d", name, got)
		}
	}
}

type recorder struct {
	mu     sync.Mutex // guards events
	events []hooks.Event
}

func (h *recorder) of(kind hooks.Type, allocation string) (found []hooks.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.Type == kind && (allocation == "" || e.Allocation == allocation) {
			found = append(found, e)
		}
	}
	return found
}

func (h *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	header, at := r.Header.Get(hooks.SignatureHeader), int64(0)
	_, errTime := fmt.Sscanf(header, "t=%d,", &at)
	if err != nil || errTime != nil || hooks.Sign([]byte(hookSecret), body, time.Unix(at, 0)) != header {
		http.Error(w, "the signature is "+header, http.StatusBadRequest)
		return
	}
	if r.URL.Path == "/admit" {
		fmt.Fprintf(w, `{"allow":%v,"reason":"go home"}`, !strings.Contains(string(body), `"player":"banned"`))
		return
	}
	var e hooks.Event
	if json.Unmarshal(body, &e) == nil {
		h.mu.Lock()
		h.events = append(h.events, e)
		h.mu.Unlock()
	}
}

func play(t *testing.T, host, joiner client.Ticket, done func()) {
	t.Helper()
	_, _, end := beginMatch(t, host, joiner)
	done()
	end()
}

// beginMatch binds and links both. It returns the session of the host, the joiner's connection to it, and
// a function that closes both sessions.
func beginMatch(t *testing.T, host, joiner client.Ticket) (hosting *client.Session, toHost *client.Peer, end func()) {
	t.Helper()
	var sessions []*client.Session
	var running sync.WaitGroup
	for _, ticket := range []client.Ticket{host, joiner} {
		s, err := client.New(client.Config{Ticket: ticket})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = s.Run(t.Context()) })
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	toHost, err := sessions[1].Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sessions[0], toHost, func() {
		for _, s := range sessions {
			s.Close()
		}
		running.Wait()
	}
}

const hookSecret = "hush-hush-0123456789"

// TestHooks: a whole match as the operator's programs see it.
func TestHooks(t *testing.T) {
	t.Parallel()
	h := &recorder{}
	program := httptest.NewServer(h)
	defer program.Close()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(hookSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := local()
	c.Tokens = append(c.Tokens, config.Token{Secret: "the-token-of-the-banned", Project: "game", Environment: "test",
		Player: "banned", Kind: "player"})
	c.AdmissionURL, c.AdmissionSecretFile = program.URL+"/admit", file
	c.WebhookURL, c.WebhookSecretFile = program.URL+"/events", file
	r := start(t, options(c, Serve))

	_, err := r.caller("the-token-of-the-banned").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	var problem *api.Problem
	if !errors.As(err, &problem) || problem.Status != 403 || problem.Detail != "go home" {
		t.Errorf("a banned player: %v", err)
	}
	hostTicket, _, ticket := r.reserveMatch(t)
	play(t, hostTicket, ticket, func() {
		testkit.Within(t, time.Minute, "the player to have joined", func() bool { return len(h.of(hooks.Joined, ticket.ID.String())) == 1 })
	})
	testkit.Within(t, time.Minute, "both to have ended", func() bool { return len(h.of(hooks.Ended, "")) == 2 })
	for _, e := range h.of(hooks.Ended, "") {
		if e.Project != "game" || e.Environment != "test" || e.Player == "" || e.Reason != "closed" {
			t.Errorf("ended: %+v", e)
		}
	}
	// Several events are sent at a time, and not always in order.
	testkit.Within(t, time.Minute, "what was before", func() bool {
		return len(h.of(hooks.Allocated, "")) >= 2 &&
			len(h.of(hooks.Bound, "")) >= 2
	})
	if all := h.of(hooks.Allocated, ""); len(all) != 2 || !slices.ContainsFunc(all, func(e hooks.Event) bool {
		return e.Allocation == ticket.ID.String() && e.Peer == hostTicket.ID.String() && e.Project == "game" && e.Player != ""
	}) {
		t.Errorf("allocated: %+v", all)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := map[string]bool{}
	for _, e := range h.events {
		ids[e.ID] = true
	}
	if len(ids) != len(h.events) {
		t.Errorf("%d ids for %d events: %v", len(ids), len(h.events), slices.Collect(maps.Keys(ids)))
	}
}

// TestCountsOfPlayers: the metrics have what the settings ask for and nothing
// else, also after a reload that turns it on.
func TestCountsOfPlayers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := local()
	r := start(t, options(c, Serve))
	_, before := fetch(t, r.AdminURL()+"/metrics")
	wants := func(text string, want map[string]bool) {
		t.Helper()
		for line, there := range want {
			if strings.Contains(text, "\n"+line) != there {
				t.Errorf("%q is there: %v, want %v", line, !there, there)
			}
		}
	}
	wants(before, map[string]bool{
		`ferry_quota_refused_total{limit="players"} 0`: true,
		"ferry_webhook_": false, "ferry_admission_": false, "ferry_jwks_": false,
	})
	// Nothing answers there, and nothing has to.
	c.AdmissionURL = "https://127.0.0.1:1/"
	c.WebhookURL, c.WebhookSecretFile = "https://127.0.0.1:1/", file
	c.Issuers = []config.Issuer{{
		Issuer: "https://id.example.org", Audience: []string{"game"}, JWKSURL: "https://127.0.0.1:1/jwks",
		Project: "p", Environment: "e",
	}}
	next, _, err := r.api.players.nextPolicy(&c)
	if err != nil {
		t.Fatal(err)
	}
	r.api.players.setPolicy(next)
	_, after := fetch(t, r.AdminURL()+"/metrics")
	wants(after, map[string]bool{
		"ferry_webhook_waiting 0": true, `ferry_webhook_dropped_total{reason="full"} 0`: true,
		`ferry_admission_questions_total{answer="allowed"} 0`: true,
		`ferry_jwks_documents{state="missing"} 1`:             true,
	})
}
