package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFailedSignIns: wrong tokens have a rate by address and one line a minute, and refuse the
// right one at no time.
func TestFailedSignIns(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := newConsolePages(sessionToken)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	p.Handler = New(Config{
		Access:  Access{Token: sessionToken, Sessions: p.sessions, Audit: slog.New(slog.NewTextHandler(&log, nil))},
		Console: page, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	from := func(address, token string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/console/login", strings.NewReader(`{"token":"`+token+`"}`))
		r.Host, r.RemoteAddr = "127.0.0.1:7778", netip.AddrPortFrom(netip.MustParseAddr(address), 5000).String()
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w
	}
	for n := range 1000 {
		want := http.StatusForbidden
		if n >= maxFailedSignIns {
			want = http.StatusTooManyRequests
		}
		if w := from("192.0.2.1", "0123456789abcdef-wrong"); w.Code != want || (w.Header().Get("Retry-After") != "") != (want == 429) {
			t.Fatalf("attempt %d: %d, Retry-After %q", n, w.Code, w.Header().Get("Retry-After"))
		}
	}
	if w := from("192.0.2.1", sessionToken); w.Code != http.StatusOK {
		t.Errorf("the right token from there: %d", w.Code)
	}
	if w := from("2001:db8::1", "wrong"); w.Code != http.StatusForbidden {
		t.Errorf("elsewhere: %d", w.Code)
	}
	if n := strings.Count(log.String(), "sign-in refused"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	p.now = p.now.Add(failedFor)
	if w := from("192.0.2.1", "wrong"); w.Code != http.StatusForbidden {
		t.Errorf("a minute later: %d", w.Code)
	}
	if !strings.Contains(log.String(), "refused_since_last_line=1001") {
		t.Errorf("the count is missing:\n%s", log.String())
	}
	for n := range 3 * failedAddresses {
		p.sessions.failed.count(netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.%d/32", n>>16, n>>8&255, n&255)), p.now)
	}
	if n := len(p.sessions.failed.byAddress); n != failedAddresses {
		t.Errorf("%d addresses are counted", n)
	}
	if w := from("198.51.100.1", sessionToken); w.Code != http.StatusOK {
		t.Errorf("the right token when very many addresses have failed: %d", w.Code)
	}
}

// TestAuditOfUnauthorized: only authorized requests are in the audit log.
func TestAuditOfUnauthorized(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := newConsolePages(sessionToken)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	access := Access{Token: sessionToken, Sessions: p.sessions, Audit: slog.New(slog.NewTextHandler(&log, nil))}
	p.Handler = New(Config{Access: access, Console: page})
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"} {
		for _, path := range []string{"/", "/console/", "/console/login", "/console/x?by=stranger", "/console/oidc/callback", "/livez",
			"/drain", "/debug/pprof/"} {
			p.call(method, path, "{}")
		}
	}
	if log.Len() > 0 {
		t.Errorf("an unauthorized request wrote:\n%s", log.String())
	}
	cookie := p.signIn(t)
	p.call("DELETE", "/console/login", "", cookie)
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines of a sign-in and a sign-out:\n%s", n, log.String())
	}
}

// TestExchangeGate: an address asks the issuer with so many codes at once, all together with so
// many, and no address keeps another one waiting.
func TestExchangeGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &newOIDCSignIn(&OIDC{}).gate
		address := func(n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/32", n)) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		var busy int
		at := map[int]int{}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				leave, err := g.enter(ctx, address(i%2))
				if err != nil {
					if !errors.Is(err, errIssuerBusy) {
						t.Error(err)
					}
					mu.Lock()
					busy++
					mu.Unlock()
					return
				}
				mu.Lock()
				if at[i%2]++; at[i%2] > addressExchanges {
					t.Errorf("%d at once by one address", at[i%2])
				}
				mu.Unlock()
				time.Sleep(10 * time.Second)
				mu.Lock()
				at[i%2]--
				mu.Unlock()
				leave()
			})
		}
		synctest.Wait()
		began := time.Now()
		leave, err := g.enter(ctx, address(7))
		if err != nil || time.Since(began) > 0 {
			t.Errorf("another address: %v after %v", err, time.Since(began))
		}
		leave()
		all.Wait()
		if busy == 0 || len(g.byAddress) != 0 || len(g.all) != 0 {
			t.Errorf("%d gave up, %d addresses and %d requests are left", busy, len(g.byAddress), len(g.all))
		}
	})
}
