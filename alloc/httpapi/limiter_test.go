package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

func key(name string) bucketKey { return bucketKey{name, callJoin} }

func (l *limiter) size() (buckets, order int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets), l.order.Len()
}

func TestLimiterRefillsEvenly(t *testing.T) {
	l := newLimiter(8)
	now := time.Unix(1000, 0)
	for i := range 60 {
		if wait := l.take(key("a"), 60, now); wait != 0 {
			t.Fatalf("request %d: wait %v", i, wait)
		}
	}
	for range 3 {
		if wait := l.take(key("a"), 60, now); wait <= 0 || wait > time.Second {
			t.Fatalf("wait = %v, want up to a second, also when asked again", wait)
		}
	}
	if wait := l.take(key("a"), 60, now.Add(500*time.Millisecond)); wait <= 0 || wait > 500*time.Millisecond {
		t.Errorf("half a second later: wait %v", wait)
	}
	now = now.Add(time.Second)
	if wait := l.take(key("a"), 60, now); wait != 0 {
		t.Errorf("a second later: wait %v", wait)
	}
	if wait := l.take(key("a"), 60, now); wait == 0 {
		t.Error("a second gave two requests")
	}
}

func TestLimiterCountsPrincipalsAndCallsApart(t *testing.T) {
	l := newLimiter(8)
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

func TestLimiterIsBounded(t *testing.T) {
	const most = 64
	l := newLimiter(most)
	now := time.Unix(1000, 0)
	for i := range 1000 {
		l.take(key(strconv.Itoa(i)), 60, now)
		if buckets, order := l.size(); buckets != order || buckets > most {
			t.Fatalf("%d buckets, %d in order, at most %d", buckets, order, most)
		}
	}
}

func TestLimiterForgetsTheOldestFullBucket(t *testing.T) {
	l := newLimiter(3)
	now := time.Unix(1000, 0)
	for range 60 {
		l.take(key("spent"), 60, now)
	}
	l.take(key("idle"), 60, now)
	now = now.Add(2 * time.Second) // "idle" is full again, "spent" is not
	l.take(key("fresh"), 60, now)
	l.take(key("new"), 60, now)
	if _, ok := l.buckets[key("idle")]; ok {
		t.Error("the full bucket was kept")
	}
	for range 2 {
		l.take(key("spent"), 60, now)
	}
	if wait := l.take(key("spent"), 60, now); wait == 0 {
		t.Error("the spent bucket was forgiven")
	}
}

func TestLimiterForgetsTheOldestWhenNoneIsFull(t *testing.T) {
	l := newLimiter(2)
	now := time.Unix(1000, 0)
	for _, name := range []string{"old", "young", "old", "new"} {
		l.take(key(name), 60, now)
	}
	if _, ok := l.buckets[key("young")]; ok {
		t.Error("the one used longest ago was kept")
	}
	if _, ok := l.buckets[key("old")]; !ok {
		t.Error("the one used lately was forgotten")
	}
}

func TestLimiterConcurrently(t *testing.T) {
	l := newLimiter(16)
	now := time.Unix(1000, 0)
	var granted [4]int
	var wg sync.WaitGroup
	for g := range granted {
		wg.Go(func() {
			for i := range 100 {
				if l.take(key("shared"), 60, now) == 0 {
					granted[g]++
				}
				l.take(key(fmt.Sprint(g, i%3)), 60, now)
			}
		})
	}
	wg.Wait()
	if sum := granted[0] + granted[1] + granted[2] + granted[3]; sum != 60 {
		t.Errorf("%d requests granted of 60", sum)
	}
}

// spend makes n requests that are within the limit and returns the next one.
func spend(t *testing.T, x *house, r func() *http.Request, n int) *httptest.ResponseRecorder {
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
	x := newHouse(t, Config{})
	rec := spend(t, x, regionsOf(tokenAnna), DefaultPlayerPerMinute)
	wantProblem(t, rec, 429, 15429)
	if got := rec.Header().Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After = %q", got)
	}
	wantStatus(t, x.do(regionsOf(tokenBert)()), 200)
	x.allocate(t, tokenAnna) // another call, another bucket
	x.clock = x.clock.Add(time.Second)
	wantStatus(t, x.do(regionsOf(tokenAnna)()), 200)
	wantProblem(t, x.do(regionsOf(tokenAnna)()), 429, 15429)
}

func TestBadRequestsCount(t *testing.T) {
	x := newHouse(t, Config{})
	for range DefaultPlayerPerMinute {
		wantProblem(t, x.post("/v1/allocate", tokenAnna, `{`), 400, 15001)
	}
	wantProblem(t, x.post("/v1/allocate", tokenAnna, `{"maxConnections":4}`), 429, 15429)
}

func TestLimitsOfKinds(t *testing.T) {
	x := newHouse(t, Config{PlayerPerMinute: 2, ServerPerMinute: 5})
	wantStatus(t, spend(t, x, regionsOf(tokenAnna), 2), 429)
	wantStatus(t, spend(t, x, regionsOf(tokenServer), 5), 429)
	x = newHouse(t, Config{})
	wantStatus(t, spend(t, x, regionsOf(tokenServer), 200), 200)
	x = newHouse(t, Config{Unlimited: true, PlayerPerMinute: 1})
	wantStatus(t, spend(t, x, regionsOf(tokenAnna), 200), 200)
}

func TestAnonymousAreCountedByAddress(t *testing.T) {
	x := newHouse(t, Config{Anonymous: true, PlayerPerMinute: 3})
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

func TestFailedJoinsPauseTheTenant(t *testing.T) {
	x := newHouse(t, Config{FailedJoinsPerSecond: 0.1}) // 6 at once
	id := x.allocate(t, tokenAnna)
	code := x.code(t, tokenAnna, id)
	good, wrong := `{"joinCode":"`+code+`"}`, `{"joinCode":"6666666"}`
	for range 6 { // what is no code at all is no guess
		wantStatus(t, x.post("/v1/join", tokenServer, `{"joinCode":"short"}`), 400)
		wantProblem(t, x.post("/v1/join", tokenBert, wrong), 404, 15009)
	}
	rec := x.post("/v1/join", tokenAnna, good)
	wantProblem(t, rec, 429, 15429)
	if got := rec.Header().Get("Retry-After"); got != "10" {
		t.Errorf("Retry-After = %q", got)
	}
	wantProblem(t, x.post("/v1/join", tokenOther, wrong), 404, 15009)
	x.clock = x.clock.Add(10 * time.Second)
	for range 10 { // those that succeed cost nothing
		wantStatus(t, x.post("/v1/join", tokenAnna, good), 200)
	}
}
