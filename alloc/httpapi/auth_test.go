package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// known authenticates a few tokens: those of players and of a backend are valid, one
// has expired, and one cannot be checked now.
func known(_ context.Context, token string) (alloc.Caller, error) {
	identity := alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: token}
	switch {
	case strings.HasPrefix(token, "carl"), token == "bert":
		return identity, nil
	case token == "backend":
		identity.Server = true
		return identity, nil
	case token == "expired":
		return alloc.Caller{}, fmt.Errorf("%w: at dawn", ErrTokenExpired)
	case token == "unavailable":
		return alloc.Caller{}, ErrAuthUnavailable
	}
	if reason, ok := strings.CutPrefix(token, "wrong:"); ok {
		return alloc.Caller{}, fmt.Errorf("rejected: %w", TokenError{Reason: strings.ReplaceAll(reason, "_", " ")})
	}
	return alloc.Caller{}, errors.New("rejected: unknown-token")
}

func identify(r *http.Request) (alloc.Caller, error) {
	c, err := r.Cookie("player")
	switch {
	case err != nil:
		return alloc.Caller{}, err
	case c.Value == "unavailable":
		return alloc.Caller{}, ErrAuthUnavailable
	case c.Value == "expired":
		return alloc.Caller{}, ErrTokenExpired
	}
	return alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: c.Value}, nil
}

// TestIdentify: a cookie names the player of a call without a token, which owns what it reserves; a page of
// another site cannot use the cookie.
func TestIdentify(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Identify: identify})
	post := func(path, cookie, token, body, site string) *httptest.ResponseRecorder {
		r := newRequest(http.MethodPost, path, token, body)
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: "player", Value: cookie})
		}
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		return x.do(r)
	}
	const body = `{"maxConnections":4}`
	rec := post("/v1/allocate", "carl", "", body, "same-origin")
	wantStatus(t, rec, 201)
	id := sdkAllocation(t, rec, false)
	wantStatus(t, post("/v1/joincode", "carl", "", `{"allocationId":"`+id+`"}`, ""), 201)
	wantStatus(t, post("/v1/joincode", "mallory", "", `{"allocationId":"`+id+`"}`, ""), 404)
	wantStatus(t, post("/v1/joincode", "carl", tokenAnna, `{"allocationId":"`+id+`"}`, ""), 404) // A valid token decides.
	for _, c := range []struct {
		cookie, site string
		status       int
	}{{"carl", "cross-site", 401}, {"", "", 401}, {"expired", "", 401}, {"unavailable", "", 503}, {"carl", "none", 201}} {
		if rec := post("/v1/allocate", c.cookie, "", body, c.site); rec.Code != c.status {
			t.Errorf("cookie %q from %q: %d, want %d", c.cookie, c.site, rec.Code, c.status)
		}
	}
	both := newFixture(t, Config{Identify: identify, Authenticate: known})
	r := newRequest(http.MethodPost, "/v1/allocate", "unknown-token", body)
	r.AddCookie(&http.Cookie{Name: "player", Value: "carl"})
	wantStatus(t, both.do(r), 401) // Authenticate has refused the token.
	r.Header.Del("Authorization")
	wantStatus(t, both.do(r), 201)
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Authenticate: known})
	code := x.code(t, "carl", x.allocate(t, "carl"))
	for _, token := range []string{"carl", "backend", tokenAnna} {
		wantStatus(t, x.post("/v1/join", token, `{"joinCode":"`+code+`"}`), 200)
	}
	for _, c := range []struct {
		token, challenge string
		status           int
	}{
		{"", "Bearer", 401},
		{"unknown-token", `Bearer error="invalid_token"`, 401},
		{"expired", `Bearer error="invalid_token", error_description="the token has expired"`, 401},
		{"unavailable", "", 503},
		{"wrong:claim_sub_is_a_number", `Bearer error="invalid_token", error_description="claim sub is a number"`, 401},
		{`wrong:claim_"ü`, `Bearer error="invalid_token", error_description="claim __"`, 401},
	} {
		rec := x.post("/v1/allocate", c.token, `{"maxConnections":4}`)
		wantProblem(t, rec, c.status, 15000+c.status)
		if got := rec.Header().Get("WWW-Authenticate"); got != c.challenge {
			t.Errorf("%q: WWW-Authenticate = %q, want %q", c.token, got, c.challenge)
		}
		if retry := rec.Header().Get("Retry-After"); (retry != "") != (c.status == 503) {
			t.Errorf("%q: Retry-After = %q", c.token, retry)
		}
		if body := rec.Body.String(); strings.Contains(body, "dawn") || strings.Contains(body, "unknown-token") {
			t.Errorf("%q: the answer has the reason: %s", c.token, body)
		}
	}
}

// TestOneself: static tokens and others are one player if they name the same one. Their limits are
// apart, since many may share the static one.
func TestOneself(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Authenticate: known, PlayerPerMinute: 2})
	id := x.allocate(t, tokenBert)
	x.code(t, "bert", id)
	wantProblem(t, x.post("/v1/joincode", "carl", `{"allocationId":"`+id+`"}`), 404, 15008)
	for range 2 {
		wantStatus(t, x.post("/v1/joincode", tokenBert, `{"allocationId":"`+id+`"}`), 201)
	}
	wantStatus(t, x.post("/v1/joincode", tokenBert, `{"allocationId":"`+id+`"}`), 429)
	wantStatus(t, x.post("/v1/joincode", "bert", `{"allocationId":"`+id+`"}`), 201)
	wantStatus(t, x.post("/v1/joincode", "bert", `{"allocationId":"`+id+`"}`), 429)
}

func TestAnonymousWithIssuer(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Anonymous: true, Authenticate: known})
	code := x.code(t, "carl", x.allocate(t, "carl"))
	wantProblem(t, x.post("/v1/join", "unknown-token", `{"joinCode":"`+code+`"}`), 404, 15009) // of dev/dev
	wantStatus(t, x.post("/v1/join", "carl2", `{"joinCode":"`+code+`"}`), 200)
}

// TestIndividual: what allocate, join and migrate reserve is one player's, so that its limits, its bans and the
// place that it left at a full host are its own. The holders of a static token, or of a backend's, may be many
// players, unless a backend names one.
func TestIndividual(t *testing.T) {
	t.Parallel()
	live := alloc.Tenant{Project: "game", Environment: "live"}
	serve := newFixture(t, Config{Authenticate: known})
	dev := newFixture(t, Config{Anonymous: true, Authenticate: known})
	serveCode := serve.code(t, tokenServer, serve.allocate(t, tokenServer))
	devCode := dev.code(t, "", dev.allocate(t, ""))
	for _, c := range []struct {
		name          string
		x             *fixture
		token, player string
		as            string // the individual; empty: none
	}{
		{name: "issuer's player", x: serve, token: "carl", as: "carl"},
		{name: "issuer's backend", x: serve, token: "backend"},
		{name: "issuer's backend that names a player", x: serve, token: "backend", player: "ann", as: "ann"},
		{name: "static token", x: serve, token: tokenAnna},
		{name: "static token with a name", x: serve, token: tokenBert},
		{name: "server token", x: serve, token: tokenServer},
		{name: "server token that names a player", x: serve, token: tokenServer, player: "ann", as: "ann"},
		{name: "dev", x: dev},
		{name: "dev, token of another service", x: dev, token: "unknown-token"},
		{name: "dev, a player's name", x: dev, token: "player:ann", as: "ann"},
		{name: "dev, as a backend", x: dev, player: "ann", as: "ann"},
		{name: "dev, no name", x: dev, token: "player:"},
		{name: "dev, too long a name", x: dev, token: "player:" + strings.Repeat("n", 257)},
		{name: "dev, a name that is nobody's", x: dev, token: "player:anonymous-1"},
	} {
		tenant, code := live, serveCode
		if c.x == dev {
			tenant, code = devTenant(), devCode
		}
		named := "}"
		if c.player != "" {
			named = `,"player":"` + c.player + `"}`
		}
		post := func(path, body string) {
			t.Helper()
			if rec := c.x.post(path, c.token, body+named); rec.Code/100 != 2 {
				t.Errorf("%s: %s: %d %s", c.name, path, rec.Code, rec.Body)
			}
		}
		isOne := func(player alloc.PlayerHash, individual bool) bool {
			return individual == (c.as != "") && (c.as == "" || player == alloc.HashPlayer(tenant, c.as))
		}
		post("/v1/join", `{"joinCode":"`+code+`"`)
		if got := c.x.relay.Joiners[len(c.x.relay.Joiners)-1]; !isOne(got.PlayerHash, got.Individual) {
			t.Errorf("%s: join of %+v, want an individual: %q", c.name, got, c.as)
		}
		post("/v1/allocate", `{"maxConnections":4`)
		if got := c.x.relay.Hosts[len(c.x.relay.Hosts)-1]; !isOne(got.PlayerHash, got.Individual) {
			t.Errorf("%s: allocate of %+v, want an individual: %q", c.name, got, c.as)
		}
		if c.as == "" {
			continue
		}
		c.x.post("/v1/migrate", c.token, `{"joinCode":"`+code+`","hostConnectionData":"`+testTicket+`"`+named)
		if got := c.x.relay.Migrations[len(c.x.relay.Migrations)-1]; got.PlayerHash != alloc.HashPlayer(tenant, c.as) {
			t.Errorf("%s: migrate of player %x, want the ticket of %q", c.name, got.PlayerHash, c.as)
		}
	}
	for path, body := range map[string]string{
		"/v1/allocate": `{"maxConnections":4`, "/v1/join": `{"joinCode":"` + serveCode + `"`,
		"/v1/migrate": `{"joinCode":"` + serveCode + `","hostConnectionData":"` + testTicket + `"`,
	} {
		for _, c := range []struct{ token, player string }{
			{"carl", "ann"}, {tokenBert, "ann"}, {tokenServer, strings.Repeat("n", 257)}, {tokenServer, "a\u0007"},
			{tokenServer, "token-0123456789abcdef"}, {tokenServer, "anonymous-1"},
		} {
			wantProblem(t, serve.post(path, c.token, body+`,"player":"`+c.player+`"}`), 400, 15001)
		}
	}
	wantStatus(t, serve.post("/v1/join", "player:ann", `{"joinCode":"`+serveCode+`"}`), 401)
}

// TestForgersPause: an address from which bad tokens come has no more of them checked
// than its limit and the spare checks. Static tokens and tokens that were accepted before
// are not affected, nor are other addresses.
func TestForgersPause(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	looked := 0
	x := newFixture(t, Config{addressPerMinute: 5, Authenticate: func(ctx context.Context, token string) (alloc.Caller, error) {
		mu.Lock()
		looked++
		mu.Unlock()
		return known(ctx, token)
	}})
	from := func(addr, token string) *httptest.ResponseRecorder {
		r := newRequest(http.MethodGet, "/v1/regions", token, "")
		r.RemoteAddr = addr + ":4000"
		return x.do(r)
	}
	for range 5 {
		wantStatus(t, from("198.51.100.1", "unknown-token"), 401)
	}
	wantStatus(t, from("203.0.113.1", "bert"), 200)
	looked = 0
	for range spareTokenChecks + 100 {
		wantProblem(t, from("198.51.100.1", "unknown-token"), 429, 15429)
	}
	if looked != spareTokenChecks {
		t.Errorf("%d rejected tokens were checked, want %d", looked, spareTokenChecks)
	}
	wantStatus(t, from("198.51.100.1", "bert"), 200)
	wantStatus(t, from("198.51.100.1", tokenServer), 200)
	wantStatus(t, from("198.51.100.2", "carl"), 200)
	x.clock.Advance(time.Minute)
	wantStatus(t, from("198.51.100.1", "carl"), 200)

	looked = 0
	for range 10 { // The token cannot be checked, which is not the caller's fault.
		from("198.51.100.9", "unavailable")
	}
	if looked != 10 {
		t.Errorf("%d tokens that cannot be checked reached Authenticate, want 10", looked)
	}
}

func TestRefusedByRules(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for _, c := range []struct {
		err          error
		status, code int
		says         string
	}{
		{alloc.RefusedError{Err: alloc.ErrDenied, Reason: "you are banned until Friday"}, 403, 15403, "banned until Friday"},
		{alloc.ErrDenied, 403, 15403, "not admitted"},
		{alloc.ErrProjectInactive, 403, 15006, "not active"},
		{alloc.ErrPlayerLimit, 429, 15429, "this player has as many live hosts"},
		{alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "of a later version"}, 429, 15429, "this player has as many live hosts"},
		{alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "joiners_per_host"}, 429, 15429, "this host (player_seats_per_host)"},
		{alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "hosts"}, 429, 15429, "(player_hosts)"},
		{alloc.ErrProjectQuota, 429, 15429, "the project has as much"},
	} {
		x.relay.Fail(c.err)
		rec := x.post("/v1/allocate", tokenAnna, `{"maxConnections":4}`)
		wantProblem(t, rec, c.status, c.code)
		if !strings.Contains(rec.Body.String(), c.says) {
			t.Errorf("%v: %s", c.err, rec.Body)
		}
		if retry := rec.Header().Get("Retry-After"); (retry != "") != (c.status == 429) {
			t.Errorf("%v: Retry-After %q", c.err, retry)
		}
	}
}

// together counts for several processes, as a store would.
type together struct {
	mu    sync.Mutex
	taken map[string]int
	fails error
}

func (s *together) Take(_ context.Context, key string, perMinute int) (bool, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return false, 0, s.fails
	}
	if s.taken[key] >= perMinute {
		return false, 6 * time.Second, nil
	}
	s.taken[key]++
	return true, 0, nil
}

func TestSharedLimiter(t *testing.T) {
	t.Parallel()
	s := &together{taken: make(map[string]int)}
	cfg := Config{PlayerPerMinute: 10, SharedLimiter: s.Take}
	nodes := []*fixture{newFixture(t, cfg), newFixture(t, cfg)}
	fine := 0
	for i := range 30 {
		rec := nodes[i%2].do(regionsOf(tokenAnna)())
		if rec.Code == 200 {
			fine++
		} else if got := rec.Header().Get("Retry-After"); rec.Code != 429 || got == "" {
			t.Fatalf("status %d, Retry-After %q", rec.Code, got)
		}
	}
	if fine != 10 {
		t.Errorf("%d of 30 requests through two nodes, want 10", fine)
	}
	wantStatus(t, nodes[0].do(regionsOf(tokenBert)()), 200)
	for key := range s.taken {
		if strings.Contains(key, "bert") || strings.Contains(key, "game") {
			t.Errorf("the store gets the name of a player: %q", key)
		}
	}
	s.fails = errors.New("the store is down")
	for _, x := range nodes {
		x.clock.Advance(time.Minute)
		wantStatus(t, spend(t, x, regionsOf(tokenBert), 10), 429)
	}
}

// TestTakerOfFailedJoins: whose joins have failed elsewhere pauses here after its
// next one.
func TestTakerOfFailedJoins(t *testing.T) {
	t.Parallel()
	s := &together{taken: make(map[string]int)}
	cfg := Config{SharedLimiter: s.Take, failedJoinsPerMinute: 4, Authenticate: known}
	nodes := []*fixture{newFixture(t, cfg), newFixture(t, cfg)}
	status := func(x *fixture, n int) int {
		return x.do(joinFrom(fmt.Sprint("198.51.100.", n), "bert", wrongCode)).Code
	}
	var missed int
	for i := range 12 {
		if status(nodes[i%2], i) == 404 {
			missed++
		}
	}
	if missed < 4 || missed > 6 {
		t.Errorf("%d guesses through two nodes, want 4 and at most one more for each", missed)
	}
	for _, x := range nodes {
		x.clock.Advance(5 * time.Second)
		if got := status(x, 50); got != 429 {
			t.Errorf("after 5 s: %d", got)
		}
	}
}

// TestSharedLimiterUnused: the shared limiter is not called for anonymous callers, nor
// with an unlimited relay.
func TestSharedLimiterUnused(t *testing.T) {
	t.Parallel()
	s := &together{taken: make(map[string]int)}
	wantStatus(t, newFixture(t, Config{Anonymous: true, SharedLimiter: s.Take}).do(regionsOf("")()), 200)
	wantStatus(t, newUnlimitedFixture(t, Config{SharedLimiter: s.Take}).do(regionsOf(tokenAnna)()), 200)
	if len(s.taken) != 0 {
		t.Errorf("%v", s.taken)
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		perMinute, taken int
		pause, want      time.Duration
	}{
		{60, 0, 3 * time.Second, 3 * time.Second},
		{60, 59, 3 * time.Second, 3 * time.Second},
		{60, 60, time.Millisecond, time.Second}, // It waits for longer anyway.
		{10, 3, time.Second, time.Second},
		{10, 3, time.Hour, time.Minute},
		{maxPerMinute, 0, time.Minute, time.Minute},
	} {
		l := newLimiter[string](setWays)
		for range c.taken {
			l.take("a", c.perMinute, now)
		}
		l.pause("a", c.perMinute, c.pause, now)
		step := time.Minute / time.Duration(c.perMinute) // What one event takes.
		if got := l.peek("a", now); got < c.want-time.Microsecond || got > c.want+step {
			t.Errorf("%+v: waits for %v", c, got)
		}
	}
}

func TestTokensRefused(t *testing.T) {
	t.Parallel()
	good := Token{Secret: tokenAnna, Project: "p", Environment: "e"}
	change := func(f func(*Token)) []Token {
		bad := good
		bad.Secret = tokenBert
		f(&bad)
		return []Token{good, bad}
	}
	tests := map[string]struct {
		tokens []Token
		want   string
	}{
		"short":              {change(func(t *Token) { t.Secret = "0123456789abcde" }), "secret"},
		"long":               {change(func(t *Token) { t.Secret = strings.Repeat("x", maxSecret+1) }), "secret"},
		"with a space":       {change(func(t *Token) { t.Secret += " x" }), "secret"},
		"with a line end":    {change(func(t *Token) { t.Secret += "\n" }), "secret"},
		"not ASCII":          {change(func(t *Token) { t.Secret += "é" }), "secret"},
		"duplicate":          {change(func(t *Token) { t.Secret = good.Secret }), "another token"},
		"no project":         {change(func(t *Token) { t.Project = "" }), "required"},
		"no environment":     {change(func(t *Token) { t.Environment = "" }), "required"},
		"long project":       {change(func(t *Token) { t.Project = strings.Repeat("p", 57) }), alloc.ErrTenantName.Error()},
		"NUL in environment": {change(func(t *Token) { t.Environment = "a\x00b" }), alloc.ErrTenantName.Error()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newTokenTable(tt.tokens)
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error = %v, want %v", err, tt.want)
			}
			if !strings.Contains(err.Error(), "tokens[1]: ") || strings.Contains(err.Error(), tt.tokens[1].Secret) {
				t.Errorf("error = %v, want the index and no secret", err)
			}
		})
	}
}

func TestPrincipals(t *testing.T) {
	t.Parallel()
	tokens := testTokens()
	tokens = append(tokens, Token{Secret: "bert-again-0123456789", Project: "game", Environment: "live", Player: "bert"},
		Token{Secret: "bert-server-0123456789", Project: "game", Environment: "live", Player: "bert", Server: true})
	table, err := newTokenTable(tokens)
	if err != nil {
		t.Fatal(err)
	}
	find := func(secret string) principal {
		p, ok := table[digestOf(secret)]
		if !ok {
			t.Fatalf("%s not found", secret)
		}
		return p
	}
	if !reflect.DeepEqual(find(tokenBert), find("bert-again-0123456789")) {
		t.Error("two tokens of one player are two principals")
	}
	names := make(map[string]bool)
	for _, s := range []string{tokenAnna, tokenBert, tokenServer, tokenStaging, tokenOther, "bert-server-0123456789"} {
		names[find(s).name] = true
	}
	if len(names) != 6 {
		t.Errorf("%d principals of 6", len(names))
	}
	if p := find(tokenAnna).player; p == "" || strings.Contains(p, "anna") {
		t.Errorf("derived player %q", p)
	}
}

func TestCaller(t *testing.T) {
	t.Parallel()
	player := principal{}
	server := principal{server: true}
	anonymous := principal{anonymous: true}
	tests := []struct {
		p    principal
		call callName
		want bool
	}{
		{player, callJoinCode, false}, {player, callAllocate, false},
		{server, callJoinCode, true}, {server, callJoin, true},
		{anonymous, callJoinCode, true}, {anonymous, callAllocate, false}, {anonymous, callJoin, false},
	}
	for _, tt := range tests {
		if got := tt.p.caller(tt.call).Server; got != tt.want {
			t.Errorf("%+v %s: Server = %v", tt.p, tt.call, got)
		}
	}
}

func TestTokenIsNotPrinted(t *testing.T) {
	t.Parallel()
	token := Token{Secret: tokenAnna, Project: "p", Environment: "e", Player: "anna"}
	var out bytes.Buffer
	for _, v := range []any{token, &token, []Token{token}, Config{Tokens: []Token{token}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", token, "pointer", &token)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", token)
	hex := fmt.Sprintf("%x", tokenAnna)
	if s := out.String(); strings.Contains(s, tokenAnna) || strings.Contains(s, hex) {
		t.Errorf("printed the secret: %s", s)
	}
	if got, want := fmt.Sprint(token), "player p/e anna"; got != want {
		t.Errorf("it prints as %q, want %q", got, want)
	}
}

// TestWrongToken checks that a signed token that lacks something is refused with its reason, which
// the log has once a minute.
func TestWrongToken(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	x := newFixture(t, Config{Authenticate: known, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		rec := x.post("/v1/allocate", "wrong:claim_sub_is_a_number", `{"maxConnections":4}`)
		wantProblem(t, rec, 401, 15401)
		if !strings.Contains(rec.Body.String(), "the token is not accepted: claim sub is a number") {
			t.Errorf("the answer: %s", rec.Body)
		}
	}
	if n := strings.Count(log.String(), "claim sub is a number"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}
