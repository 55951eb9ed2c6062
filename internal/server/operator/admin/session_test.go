package admin

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const sessionToken = "0123456789abcdef-token"

type consolePages struct {
	http.Handler
	sessions *Sessions
	now      time.Time
}

func newConsolePages(token string) *consolePages {
	p := &consolePages{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	p.begin("", token)
	return p
}

// begin is another process, with a file of sign-outs or without.
func (p *consolePages) begin(file, token string) {
	p.sessions = NewSessions(file, slog.New(slog.DiscardHandler))
	p.sessions.now, p.sessions.began = func() time.Time { return p.now }, p.now
	p.restart(token)
}

// restart makes the pages again, as a reload does.
func (p *consolePages) restart(token string) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	p.Handler = New(Config{Access: Access{Token: token, Sessions: p.sessions}, Console: page, Relay: &RelayConfig{Engine: new(fakeRelay)}})
}

func (p *consolePages) call(method, path, body string, cookies ...*http.Cookie) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "127.0.0.1:7778", "127.0.0.1:5000"
	for _, c := range cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

func (p *consolePages) signIn(t *testing.T) *http.Cookie {
	t.Helper()
	w := p.call("POST", "/console/login", `{"token":"`+sessionToken+`"}`)
	cookies := w.Result().Cookies()
	if w.Code != http.StatusOK || len(cookies) != 1 {
		t.Fatalf("sign-in: %d %s", w.Code, w.Body)
	}
	return cookies[0]
}

// TestSession: the cookie of a sign-in is as good as the token, until it ends.
func TestSession(t *testing.T) {
	t.Parallel()
	p, file := newConsolePages(sessionToken), filepath.Join(t.TempDir(), "signouts")
	p.begin(file, sessionToken)
	expect := func(what string, want int, cookies ...*http.Cookie) {
		t.Helper()
		for _, path := range []string{"/stats", "/console/data/events"} {
			if got := p.call("GET", path, "", cookies...).Code; got == http.StatusUnauthorized != (want == http.StatusUnauthorized) {
				t.Errorf("%s: %s: status %d", what, path, got)
			}
		}
	}
	for _, path := range []string{"/", "/console/", "/console/app.js", "/console/login"} {
		if got := p.call("GET", path, "").Code; got >= 400 {
			t.Errorf("%s: status %d without a sign-in", path, got)
		}
	}
	expect("without a cookie", http.StatusUnauthorized)
	for _, body := range []string{"", "{}", `{"token":""}`, `{"token":"0123456789abcdef-tokem"}`, strings.Repeat("x", 1<<20)} {
		if w := p.call("POST", "/console/login", body); w.Code != http.StatusForbidden || len(w.Result().Cookies()) != 0 {
			t.Errorf("sign-in with %.40q: %d", body, w.Code)
		}
	}
	cookie := p.signIn(t)
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || strings.Contains(cookie.Value, sessionToken) {
		t.Errorf("cookie %v", cookie)
	}
	expect("signed in", http.StatusOK, cookie)
	for i := range cookie.Value {
		forged := *cookie
		other := byte('A')
		if cookie.Value[i] == other {
			other = 'B'
		}
		forged.Value = cookie.Value[:i] + string(other) + cookie.Value[i+1:]
		if i < len(cookie.Value)-1 { // The last character has bits that mean nothing.
			expect("a forged cookie", http.StatusUnauthorized, &forged)
		}
	}
	p.restart(sessionToken)
	expect("after a reload", http.StatusOK, cookie)
	p.now = p.now.Add(time.Second)
	p.begin(file, sessionToken)
	expect("after a restart", http.StatusOK, cookie)
	p.restart("another-token-of-the-operator")
	expect("after a change of the token", http.StatusUnauthorized, cookie)
	p.restart(sessionToken)

	other := p.signIn(t)
	if w := p.call("DELETE", "/console/login", "", cookie); w.Code != http.StatusOK || w.Result().Cookies()[0].MaxAge >= 0 {
		t.Errorf("sign-out: %d %v", w.Code, w.Result().Cookies())
	}
	expect("after the sign-out", http.StatusUnauthorized, cookie)
	p.restart(sessionToken)
	expect("after the sign-out and a reload", http.StatusUnauthorized, cookie)
	expect("another session", http.StatusOK, other)
	p.now = p.now.Add(time.Second)
	p.begin(file, sessionToken)
	expect("after the sign-out and a restart", http.StatusUnauthorized, cookie)
	expect("another session after a restart", http.StatusOK, other)
	third := p.signIn(t)
	p.call("DELETE", "/console/login", "", third)
	p.begin(file, sessionToken)
	expect("the first one after another sign-out", http.StatusUnauthorized, cookie)
	p.begin("", sessionToken)
	expect("a session of an earlier process without a file", http.StatusUnauthorized, other)
	p.begin(file, sessionToken)
	p.now = p.now.Add(sessionFor)
	expect("after its end", http.StatusUnauthorized, other)
}

// TestDamagedSignOuts: a file that cannot be read is reported, and the next sign-out writes another one.
func TestDamagedSignOuts(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"{", `{"AAAA":1}`, `{"_":"x"}`} {
		var log bytes.Buffer
		p, file := newConsolePages(sessionToken), filepath.Join(t.TempDir(), "signouts")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p.begin(file, sessionToken)
		p.sessions.log = slog.New(slog.NewTextHandler(&log, nil))
		cookie := p.signIn(t)
		p.call("DELETE", "/console/login", "", cookie)
		p.begin(file, sessionToken)
		if got := p.call("GET", "/stats", "", cookie).Code; got != http.StatusUnauthorized {
			t.Errorf("%s: status %d after the sign-out", content, got)
		}
		if n := strings.Count(log.String(), "sign-outs of the console are forgotten"); n != 1 {
			t.Errorf("%s: %d lines:\n%s", content, n, &log)
		}
	}
}

// TestForeignSignIn: another site can neither sign in nor use a session.
func TestForeignSignIn(t *testing.T) {
	t.Parallel()
	p := newConsolePages(sessionToken)
	cookie := p.signIn(t)
	for _, c := range []struct{ method, path string }{
		{"POST", "/console/login"}, {"DELETE", "/console/login"}, {"DELETE", "/allocations/" + hostID.String()},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(`{"token":"`+sessionToken+`"}`))
		r.Host = "127.0.0.1:7778"
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.AddCookie(cookie) // which a browser would not send
		w := httptest.NewRecorder()
		if p.ServeHTTP(w, r); w.Code != http.StatusForbidden {
			t.Errorf("%s %s: status %d", c.method, c.path, w.Code)
		}
	}
}

// TestRevokedSessions: the list of sign-outs does not grow without bound, and the one that
// ends first is forgotten first.
func TestRevokedSessions(t *testing.T) {
	t.Parallel()
	s := NewSessions("", slog.New(slog.DiscardHandler))
	now := time.Now()
	s.now = func() time.Time { return now }
	var first, last string
	for i := range maxRevoked + 10 {
		now = now.Add(time.Second)
		if last = s.issue(sessionToken, "", ""); i == 20 {
			first = last
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: last})
		s.revoke(r, sessionToken)
	}
	now = now.Add(-time.Hour)
	if len(s.revoked) > maxRevoked {
		t.Errorf("%d sign-outs are kept", len(s.revoked))
	}
	for _, value := range []string{first, last} {
		if _, ok := s.parse(value, sessionToken); ok {
			t.Error("a session that was signed out is good")
		}
	}
}

// TestNoToken: without a token there is nothing to sign in to, and loopback may see all.
func TestNoToken(t *testing.T) {
	t.Parallel()
	p := newConsolePages("")
	if w := p.call("POST", "/console/login", `{"token":""}`); w.Code != http.StatusConflict {
		t.Errorf("sign-in: status %d", w.Code)
	}
	if w := p.call("GET", "/console/login", ""); !strings.Contains(w.Body.String(), `{"required":false,"signed_in":true,"role":"operator"}`) {
		t.Errorf("state: %s", w.Body)
	}
	if w := p.call("GET", "/stats", ""); w.Code != http.StatusOK {
		t.Errorf("/stats: status %d", w.Code)
	}
}
