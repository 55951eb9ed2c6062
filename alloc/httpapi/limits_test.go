package httpapi

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// spend makes n requests that are within the limit and returns the next one.
func spend(t *testing.T, x *fixture, r func() *http.Request, n int) *httptest.ResponseRecorder {
	t.Helper()
	for i := range n {
		if rec := x.do(r()); rec.Code == http.StatusTooManyRequests {
			t.Fatalf("request %d of %d: %s", i+1, n, rec.Body)
		}
	}
	return x.do(r())
}

func regionsOf(token string) func() *http.Request {
	return func() *http.Request { return newRequest(http.MethodGet, "/v1/regions", token, "") }
}

func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	rec := spend(t, x, regionsOf(tokenAnna), defaultPlayerPerMinute)
	wantProblem(t, rec, 429, 15429)
	if got := rec.Header().Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After = %q", got)
	}
	wantStatus(t, x.do(regionsOf(tokenBert)()), 200)
	x.allocate(t, tokenAnna) // another call, another bucket
	x.clock.Advance(time.Second)
	wantStatus(t, x.do(regionsOf(tokenAnna)()), 200)
	wantProblem(t, x.do(regionsOf(tokenAnna)()), 429, 15429)
}

func TestBadRequestsCount(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for range defaultPlayerPerMinute {
		wantProblem(t, x.post("/v1/allocate", tokenAnna, `{`), 400, 15001)
	}
	wantProblem(t, x.post("/v1/allocate", tokenAnna, `{"maxConnections":4}`), 429, 15429)
}

func TestLimitsOfKinds(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{PlayerPerMinute: 2, ServerPerMinute: 5})
	wantStatus(t, spend(t, x, regionsOf(tokenAnna), 2), 429)
	wantStatus(t, spend(t, x, regionsOf(tokenServer), 5), 429)
	x = newFixture(t, Config{})
	wantStatus(t, spend(t, x, regionsOf(tokenServer), 200), 200)
	x = newUnlimitedFixture(t, Config{PlayerPerMinute: 1})
	wantStatus(t, spend(t, x, regionsOf(tokenAnna), 200), 200)
}

func TestAnonymousAreCountedByAddress(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Anonymous: true, PlayerPerMinute: 3})
	from := func(addr string) func() *http.Request {
		return func() *http.Request {
			r := newRequest(http.MethodGet, "/v1/regions", "", "")
			r.RemoteAddr = addr
			return r
		}
	}
	wantStatus(t, spend(t, x, from("192.0.2.1:1000"), 3), 429)
	wantStatus(t, x.do(from("192.0.2.1:2000")()), 429)
	wantStatus(t, x.do(from("192.0.2.2:1000")()), 200)
}

func joinFrom(addr, token, code string) *http.Request {
	r := newRequest(http.MethodPost, "/v1/join", token, `{"joinCode":"`+code+`"}`)
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(addr), 4000).String()
	return r
}

const wrongCode = "6666666"

// TestFailedJoinsPauseThePlayer: a player with too many failed joins waits, from every
// address, and no other player of the tenant does.
func TestFailedJoinsPauseThePlayer(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Authenticate: known})
	code := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
	for i := range 10 { // malformed codes and successes do not count
		from := fmt.Sprint("198.51.100.", i)
		wantProblem(t, x.do(joinFrom(from, "bert", "short")), 404, 15009)
		wantStatus(t, x.do(joinFrom(from, "bert", code)), 200)
		wantProblem(t, x.do(joinFrom(from, "bert", wrongCode)), 404, 15009)
	}
	rec := x.do(joinFrom("198.51.100.99", "bert", code))
	wantProblem(t, rec, 429, 15429)
	if got := rec.Header().Get("Retry-After"); got != "6" {
		t.Errorf("Retry-After = %q", got)
	}
	wantStatus(t, x.do(joinFrom("203.0.113.1", tokenAnna, code)), 200)
	wantStatus(t, x.do(joinFrom("203.0.113.1", tokenServer, code)), 200)
	x.clock.Advance(6 * time.Second)
	wantProblem(t, x.do(joinFrom("198.51.100.99", "bert", wrongCode)), 404, 15009)
	wantProblem(t, x.do(joinFrom("198.51.100.99", "bert", code)), 429, 15429)
}

// TestSharedTokenByNetwork: those who hold a static token at one address use up the requests and the
// failed joins of none at another one, nor do they get more of them by other addresses of their own
// /56.
func TestSharedTokenByNetwork(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	code := x.code(t, tokenBert, x.allocate(t, tokenBert))
	for _, at := range [][3]string{
		{"198.51.100.1", "198.51.100.1", "198.51.100.2"}, {"2001:db8:0:1::1", "2001:db8:0:ff::1", "2001:db8:0:100::1"},
	} {
		for range 10 {
			wantProblem(t, x.do(joinFrom(at[0], tokenBert, wrongCode)), 404, 15009)
		}
		wantProblem(t, x.do(joinFrom(at[1], tokenBert, code)), 429, 15429)
		for range 60 {
			x.do(joinFrom(at[0], tokenBert, code))
		}
		wantStatus(t, x.do(joinFrom(at[2], tokenBert, code)), 200)
	}
	// As many as may be reserved and not bound are those of an address, too.
	x = newFixture(t, Config{})
	code = x.code(t, tokenBert, x.allocate(t, tokenBert))
	for range 20 {
		wantStatus(t, x.do(joinFrom("198.51.100.1", tokenBert, code)), 200)
	}
	wantProblem(t, x.do(joinFrom("198.51.100.1", tokenBert, code)), 429, 15429)
	wantStatus(t, x.do(joinFrom("198.51.100.2", tokenBert, code)), 200)
}

// TestFailedJoinsPauseTheAddress: the players of a tenant at one address share a limit of
// failed joins, four times that of a player; the /56 of IPv6 is one address.
func TestFailedJoinsPauseTheAddress(t *testing.T) {
	t.Parallel()
	for _, addrs := range [][2]string{{"198.51.100.1", "203.0.113.1"}, {"2001:db8:0:1::1", "2001:db8:0:100::1"}} {
		x := newFixture(t, Config{Authenticate: known})
		code := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
		near := strings.Replace(addrs[0], ":1::1", ":ff::2", 1)
		for i := range playersPerAddress * defaultFailedJoinsPerMinute / 2 {
			wantProblem(t, x.do(joinFrom(addrs[0], fmt.Sprint("carl", i), wrongCode)), 404, 15009)
			wantProblem(t, x.do(joinFrom(near, fmt.Sprint("carl", i), wrongCode)), 404, 15009)
		}
		rec := x.do(joinFrom(near, tokenAnna, code))
		wantProblem(t, rec, 429, 15429)
		if got := rec.Header().Get("Retry-After"); got != "2" {
			t.Errorf("Retry-After = %q", got)
		}
		wantProblem(t, x.do(joinFrom(near, tokenStaging, wrongCode)), 404, 15009) // of another tenant
		wantStatus(t, x.do(joinFrom(addrs[1], tokenAnna, code)), 200)
		wantStatus(t, x.do(joinFrom(addrs[0], tokenServer, code)), 200) // a backend has no address
	}
}

func TestFailedJoinsOfBackends(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for i := range defaultServerFailedJoinsPerMinute {
		if rec := x.do(joinFrom("198.51.100.1", tokenServer, wrongCode)); rec.Code != 404 {
			t.Fatalf("failed join %d: status %d", i, rec.Code)
		}
	}
	wantProblem(t, x.do(joinFrom("198.51.100.1", tokenServer, wrongCode)), 429, 15429)
	wantProblem(t, x.do(joinFrom("198.51.100.1", tokenBert, wrongCode)), 404, 15009)
	x = newFixture(t, Config{failedJoinsPerMinute: 1, ServerFailedJoinsPerMinute: 2})
	for token, n := range map[string]int{tokenBert: 1, tokenServer: 2} {
		for range n {
			wantProblem(t, x.do(joinFrom("198.51.100.1", token, wrongCode)), 404, 15009)
		}
		wantProblem(t, x.do(joinFrom("198.51.100.1", token, wrongCode)), 429, 15429)
	}
	x = newUnlimitedFixture(t, Config{})
	for range 100 {
		wantProblem(t, x.do(joinFrom("198.51.100.1", tokenBert, wrongCode)), 404, 15009)
	}
}

// TestCodeThatIsNotThere: the answer is the same for a code that never existed, one that
// has expired and one of another tenant.
func TestCodeThatIsNotThere(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	foreign := x.code(t, tokenStaging, x.allocate(t, tokenStaging))
	expired := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
	x.relay.Lose()
	want := x.post("/v1/join", tokenBert, `{"joinCode":"`+wrongCode+`"}`)
	for _, code := range []string{expired, expired, foreign} {
		rec := x.post("/v1/join", tokenBert, `{"joinCode":"`+code+`"}`)
		wantProblem(t, rec, 404, 15009)
		rec.Header().Del(headerRequestID)
		want.Header().Del(headerRequestID)
		if rec.Body.String() != want.Body.String() || !maps.EqualFunc(rec.Header(), want.Header(), slices.Equal) {
			t.Errorf("%s is answered %v %s, one that never was %v %s",
				code, rec.Header(), rec.Body, want.Header(), want.Body)
		}
	}
}

// TestRequestsOfAnAddress: the requests of an address without a valid token share a limit.
// Those with one have the limit of their player or backend only.
func TestRequestsOfAnAddress(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	regions := func(addr, token string) *httptest.ResponseRecorder {
		r := regionsOf(token)()
		r.RemoteAddr = addr + ":4000"
		return x.do(r)
	}
	count := func(n int, addr, token string) (fine int) {
		for range n {
			if rec := regions(addr, token); rec.Code != http.StatusTooManyRequests {
				fine++
			} else if rec.Header().Get("Retry-After") == "" {
				t.Fatal("429 without Retry-After")
			}
		}
		return fine
	}
	const unknown = "unknown-0123456789abcdef"
	for _, c := range []struct {
		addr, token string
		want        int
	}{
		{"198.51.100.1", tokenAnna, defaultPlayerPerMinute},
		{"198.51.100.1", tokenServer, 300},
		{"198.51.100.1", unknown, defaultAddressPerMinute},
		{"198.51.100.1", "", 0},
		{"198.51.100.1", tokenBert, defaultPlayerPerMinute},
		{"198.51.100.2", "", defaultAddressPerMinute},
	} {
		if n := count(300, c.addr, c.token); n != c.want {
			t.Errorf("%d requests of %q from %s, want %d", n, c.token, c.addr, c.want)
		}
	}
	wantProblem(t, regions("198.51.100.1", unknown), 429, 15429)
	x.clock.Advance(time.Second)
	if n := count(10, "198.51.100.1", unknown); n != 2 {
		t.Errorf("%d requests a second later, want 2", n)
	}
}

// TestRequestsBehindAProxy: the address of a caller is that in X-Forwarded-For. Callers
// without one share the proxy's.
func TestRequestsBehindAProxy(t *testing.T) {
	t.Parallel()
	cfg := Config{addressPerMinute: 5, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	x := newFixture(t, cfg)
	ask := func(token string, client ...string) int {
		r := regionsOf(token)()
		r.RemoteAddr = "10.1.1.1:4000"
		r.Header["X-Forwarded-For"] = client
		return x.do(r).Code
	}
	for range 5 {
		ask("", "198.51.100.1:61000")
		ask("", "junk")
	}
	for _, c := range []struct {
		client []string
		want   int
	}{
		{[]string{"198.51.100.1"}, 429},
		{[]string{"198.51.100.1:61001"}, 429},
		{[]string{"198.51.100.2"}, 401},
		{[]string{"unknown"}, 429},
		{nil, 429},
	} {
		if got := ask("", c.client...); got != c.want {
			t.Errorf("client %q: status %d, want %d", c.client, got, c.want)
		}
		if got := ask(tokenServer, c.client...); got != 200 {
			t.Errorf("client %q: status %d of a valid token", c.client, got)
		}
	}
}

// TestGuessersBehindAProxy: failed joins count for the proxy's address if the header
// cannot be parsed, and by player only if there is none.
func TestGuessersBehindAProxy(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]int{"junk": 429, "": 404} {
		x := newFixture(t, Config{
			Authenticate: known, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		})
		status := 0
		for i := range playersPerAddress*defaultFailedJoinsPerMinute + 1 {
			r := joinFrom("10.1.1.1", fmt.Sprint("carl", i), wrongCode)
			if header != "" {
				r.Header.Set("X-Forwarded-For", header)
			}
			status = x.do(r).Code
		}
		if status != want {
			t.Errorf("header %q: status %d, want %d", header, status, want)
		}
	}
}

// TestCounts: a handler continues the counts of the one that it replaces.
func TestCounts(t *testing.T) {
	t.Parallel()
	first := newFixture(t, Config{})
	wantProblem(t, spend(t, first, regionsOf(tokenAnna), defaultPlayerPerMinute), 429, 15429)
	next, err := New(Config{Service: first.service, Tokens: testTokens()}, first.Handler)
	if err != nil {
		t.Fatal(err)
	}
	next.limits.now = first.clock.Now
	second := &fixture{Handler: next}
	wantProblem(t, second.do(regionsOf(tokenAnna)()), 429, 15429)
	wantStatus(t, second.do(regionsOf(tokenBert)()), 200)
	alone := newFixture(t, Config{})
	wantStatus(t, alone.do(regionsOf(tokenAnna)()), 200)
}

// oneSet is the size of a limiter whose buckets all share one set.
const oneSet = setWays

func (l *limiter[K]) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, set := range l.sets {
		for _, b := range set {
			if b.limit != nil {
				n++
			}
		}
	}
	return n
}

func TestLimiterRefillsEvenly(t *testing.T) {
	t.Parallel()
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	for i := range 60 {
		if wait := l.take("a", 60, now); wait != 0 {
			t.Fatalf("request %d: wait %v", i, wait)
		}
	}
	for range 3 {
		if wait := l.take("a", 60, now); wait <= 0 || wait > time.Second {
			t.Fatalf("wait = %v, want up to a second, also when asked again", wait)
		}
	}
	if wait := l.take("a", 60, now.Add(500*time.Millisecond)); wait <= 0 || wait > 500*time.Millisecond {
		t.Errorf("half a second later: wait %v", wait)
	}
	now = now.Add(time.Second)
	if wait := l.take("a", 60, now); wait != 0 {
		t.Errorf("a second later: wait %v", wait)
	}
	if wait := l.take("a", 60, now); wait == 0 {
		t.Error("a second gave two requests")
	}
}

// TestLimiterCharges: a negative bucket refills before the next event is permitted.
func TestLimiterCharges(t *testing.T) {
	t.Parallel()
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	if wait := l.peek("a", now); wait != 0 || l.size() != 0 {
		t.Errorf("wait %v of a key that was never seen, %d buckets", wait, l.size())
	}
	for i := range 13 {
		want := time.Duration(max(0, i-9)) * 6 * time.Second
		if wait := l.peek("a", now); math.Abs(float64(wait-want)) > float64(time.Millisecond) {
			t.Errorf("after %d events: wait %v, want %v", i, wait, want)
		}
		l.charge("a", 10, now)
	}
	if wait := l.peek("a", now.Add(24*time.Second)); wait > time.Millisecond {
		t.Errorf("when the debt is paid: wait %v", wait)
	}
}

func TestLimiterCountsPrincipalsAndCallsApart(t *testing.T) {
	t.Parallel()
	l := newLimiter[bucketKey](64)
	now := time.Unix(1000, 0)
	keys := []bucketKey{{"a", callJoin}, {"a", callAllocate}, {"b", callJoin}}
	for _, k := range keys {
		if wait := l.take(k, 1, now); wait != 0 {
			t.Errorf("%v: wait %v", k, wait)
		}
		if wait := l.take(k, 1, now); wait == 0 {
			t.Errorf("%v: a second request of one", k)
		}
	}
}

// TestLimiterIsFixed: new keys replace buckets of their own set only.
func TestLimiterIsFixed(t *testing.T) {
	t.Parallel()
	const most = 64
	l := newLimiter[string](most)
	now := time.Unix(1000, 0)
	for i := range 1000 {
		l.take(strconv.Itoa(i), 60, now)
		if n := l.size(); n > most || n > i+1 {
			t.Fatalf("%d buckets after %d keys, at most %d", n, i+1, most)
		}
	}
	if n := l.size(); n != most {
		t.Errorf("%d buckets in use of %d", n, most)
	}
}

func TestLimiterForgetsTheFullest(t *testing.T) {
	t.Parallel()
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	for range 60 {
		l.take("spent", 60, now)
	}
	for i := range 1000 {
		l.take(strconv.Itoa(i), 60, now)
	}
	if wait := l.take("spent", 60, now); wait == 0 {
		t.Error("the spent bucket was forgiven")
	}
	now = now.Add(time.Minute) // all are full again
	for i := range 20 {
		for range 60 {
			l.take(strconv.Itoa(i), 60, now)
		}
	}
	if wait := l.take("19", 60, now); wait == 0 {
		t.Error("the bucket used last was forgotten while others were full")
	}
}

func TestLimiterConcurrently(t *testing.T) {
	t.Parallel()
	l := newLimiter[string](16)
	now := time.Unix(1000, 0)
	var granted [4]int
	var wg sync.WaitGroup
	for g := range granted {
		wg.Go(func() {
			for i := range 100 {
				if l.take("shared", 60, now) == 0 {
					granted[g]++
				}
				l.peek(fmt.Sprint(g, i%3), now)
				l.charge("another", 60, now)
			}
		})
	}
	wg.Wait()
	if sum := granted[0] + granted[1] + granted[2] + granted[3]; sum != 60 {
		t.Errorf("%d requests granted of 60", sum)
	}
}

func TestLimiterOtherRate(t *testing.T) {
	t.Parallel()
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	for range 60 {
		l.take("a", 60, now)
	}
	if wait := l.take("a", 600, now); wait <= 0 || wait > 100*time.Millisecond {
		t.Errorf("nothing is left, at ten a second: wait %v", wait)
	}
	now = now.Add(time.Minute)
	for i := range 10 {
		if wait := l.take("a", 10, now); wait != 0 {
			t.Errorf("request %d of 10: wait %v", i, wait)
		}
	}
	if wait := l.take("a", 10, now); wait <= 5*time.Second || wait > 6*time.Second {
		t.Errorf("more than 10 at once: wait %v", wait)
	}
}

// TestRefusalsSayTheLimit: the answer names the limit and its setting, the log says so once a
// minute, and OnRequest hears of each refused request.
func TestRefusalsSayTheLimit(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var heard []string
	x := newFixture(t, Config{
		PlayerPerMinute: 2, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		OnRequest: func(r Request) {
			if r.Refusal != "" {
				heard = append(heard, fmt.Sprint(r.Call, " ", r.Tenant.Project, " ", r.Status, " ", r.Refusal))
			}
		},
	})
	rec := spend(t, x, regionsOf(tokenAnna), 2)
	const text = "too many requests: at most 2 a minute (player_per_minute: requests of a player, or of a static token at one address, " +
		"by call; a backend uses a token of kind server)"
	if !strings.Contains(rec.Body.String(), text) {
		t.Errorf("answer: %s", rec.Body)
	}
	if want := "regions game 429 " + text; len(heard) != 1 || heard[0] != want {
		t.Errorf("heard %q", heard)
	}
	lines := func() int { return strings.Count(log.String(), "limit=player_per_minute") }
	for range 3 {
		x.do(regionsOf(tokenAnna)())
	}
	if lines() != 1 {
		t.Errorf("%d lines in the first minute:\n%s", lines(), &log)
	}
	x.clock.Advance(time.Minute)
	spend(t, x, regionsOf(tokenAnna), 2)
	if lines() != 2 || !strings.Contains(log.String(), "refused_since_last_line=4") {
		t.Errorf("%d lines after a minute:\n%s", lines(), &log)
	}
	x.post("/v1/allocate", tokenBert, `{"maxConnections":"x"}`)
	if last := heard[len(heard)-1]; !strings.HasPrefix(last, "allocate game 400 ") || !strings.Contains(last, "maxConnections") {
		t.Errorf("heard %q", last)
	}
}
