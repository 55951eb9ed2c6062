package admin

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/oidctest"
)

// oidcRig is a browser at pages with a sign-in at an issuer.
type oidcRig struct {
	*oidctest.Issuer
	t        *testing.T
	pages    http.Handler
	sessions *Sessions
	log      bytes.Buffer
	cfg      OIDC
}

func newOIDCRig(t *testing.T) *oidcRig {
	r := &oidcRig{Issuer: oidctest.New(t), t: t, sessions: NewSessions("", slog.New(slog.DiscardHandler))}
	r.cfg = OIDC{
		Issuer: r.URL, ClientID: "ferry",
		Operators: []string{"Ann@example.org", "group:ops"}, Viewers: []string{"vic@example.org", "group:all"},
	}
	if err := r.cfg.Check(); err != nil {
		t.Fatal(err)
	}
	r.reload()
	return r
}

func (r *oidcRig) reload() {
	console := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	cfg := r.cfg
	r.pages = New(Config{
		Access:  Access{Token: sessionToken, Sessions: r.sessions, OIDC: &cfg, Audit: slog.New(slog.NewTextHandler(&r.log, nil))},
		Console: console, Relay: &RelayConfig{Engine: new(fakeRelay)}, Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
}

func (r *oidcRig) get(method, target string, cookies ...*http.Cookie) *http.Response {
	q, w := httptest.NewRequest(method, target, nil), httptest.NewRecorder()
	q.Host, q.RemoteAddr = "127.0.0.1:7778", "192.0.2.1:5000"
	for _, c := range cookies {
		q.AddCookie(c)
	}
	r.pages.ServeHTTP(w, q)
	return w.Result()
}

func (r *oidcRig) begin() (url.Values, *http.Cookie) {
	r.t.Helper()
	resp := r.get("GET", "/console/oidc/begin")
	to, err := resp.Location()
	if err != nil || resp.StatusCode != http.StatusFound || !strings.HasPrefix(to.String(), r.URL+"/authorize?") || len(resp.Cookies()) != 1 {
		r.t.Fatalf("begin: %d %v %v", resp.StatusCode, to, err)
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/console/oidc" {
		r.t.Errorf("the cookie is %v", c)
	}
	return to.Query(), c
}

func (r *oidcRig) finish(asked url.Values, cookies ...*http.Cookie) *http.Response {
	return r.get("GET", "/console/oidc/callback?code="+r.Code(asked)+"&state="+url.QueryEscape(asked.Get("state")), cookies...)
}

func sessionOf(resp *http.Response) *http.Cookie {
	for _, c := range resp.Cookies() {
		if c.Name == sessionCookie {
			return c
		}
	}
	return nil
}

func (r *oidcRig) signIn(claims map[string]any) (*http.Cookie, *http.Response) {
	r.t.Helper()
	r.Claims = claims
	asked, cookie := r.begin()
	resp := r.finish(asked, cookie)
	return sessionOf(resp), resp
}

func text(resp *http.Response) string {
	var b bytes.Buffer
	_, _ = b.ReadFrom(resp.Body)
	return b.String()
}

// TestOIDCRoles: the lists decide what a person may do, by a verified address or a group, and
// the audit log names the person.
func TestOIDCRoles(t *testing.T) {
	t.Parallel()
	r := newOIDCRig(t)
	const unknown = "/allocations/00000000-0000-4000-8000-000000000001"
	for _, c := range []struct {
		name   string
		claims map[string]any
		role   string
		person string
	}{
		{"an operator", map[string]any{"email": "ann@example.org", "email_verified": true}, "operator", "ann@example.org"},
		{"an operator by group", map[string]any{"groups": []string{"all", "ops"}}, "operator", "subject-7"},
		{"a viewer", map[string]any{"email": "vic@example.org", "email_verified": true}, "viewer", "vic@example.org"},
		{"a viewer by group", map[string]any{"groups": []string{"all"}}, "viewer", "subject-7"},
		{"nobody", map[string]any{"email": "eve@example.org", "email_verified": true}, "", ""},
		{"an address that is not verified", map[string]any{"email": "ann@example.org"}, "", ""},
		{"a group as an address", map[string]any{"email": "group:ops", "email_verified": true}, "", ""},
	} {
		cookie, resp := r.signIn(c.claims)
		if (cookie != nil) != (c.role != "") {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, text(resp))
			continue
		}
		if c.role == "" {
			if body := text(resp); resp.StatusCode != http.StatusForbidden || !strings.Contains(body, "has no role here") {
				t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
			}
			continue
		}
		if cookie.SameSite != http.SameSiteStrictMode || !cookie.HttpOnly {
			t.Errorf("%s: the cookie is %v", c.name, cookie)
		}
		want := fmt.Sprintf(`{"required":true,"signed_in":true,"role":%q,"person":%q,"oidc":%q}`, c.role, c.person,
			strings.TrimPrefix(r.URL, "http://"))
		if got := strings.TrimSpace(text(r.get("GET", "/console/login", cookie))); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
		if got := r.get("GET", "/stats", cookie).StatusCode; got != 200 {
			t.Errorf("%s: /stats: %d", c.name, got)
		}
		r.log.Reset()
		status, wantStatus := r.get("DELETE", unknown, cookie).StatusCode, http.StatusOK
		if c.role == "viewer" {
			wantStatus = http.StatusForbidden
		}
		if status != wantStatus {
			t.Errorf("%s: DELETE: %d, want %d", c.name, status, wantStatus)
		}
		if audited := strings.Contains(r.log.String(), "by="+c.person); audited != (c.role == "operator") {
			t.Errorf("%s: audit:\n%s", c.name, &r.log)
		}
		if got := r.get("DELETE", "/console/login", cookie).StatusCode; got != 200 {
			t.Errorf("%s: sign-out: %d", c.name, got)
		}
		if got := r.get("GET", "/stats", cookie).StatusCode; got != http.StatusUnauthorized {
			t.Errorf("%s: after the sign-out: %d", c.name, got)
		}
	}
	if strings.Contains(r.log.String(), "SECRET") {
		t.Error("the log has a token")
	}
}

// TestViewer: a viewer reads pages; every other request and all profiles need an operator.
func TestViewer(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"} {
		for _, path := range []string{"/allocations", "/config", "/drain", "/debug/pprof/", "/debug/flight-recorder", "/anything/new"} {
			want := (method == "GET" || method == "HEAD") && !strings.HasPrefix(path, "/debug/")
			if got := roleViewer.permits(httptest.NewRequest(method, path, nil)); got != want {
				t.Errorf("%s %s: %t", method, path, got)
			}
			if roleNone.permits(httptest.NewRequest(method, path, nil)) {
				t.Errorf("%s %s is for all", method, path)
			}
		}
	}
}

// TestOIDCAttacks: what an attacker can change of a sign-in ends it.
func TestOIDCAttacks(t *testing.T) {
	t.Parallel()
	r := newOIDCRig(t)
	ann := map[string]any{"email": "ann@example.org", "email_verified": true}
	r.Claims = ann
	refused := func(what string, resp *http.Response) {
		t.Helper()
		if sessionOf(resp) != nil || resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: %d", what, resp.StatusCode)
		}
	}
	asked, cookie := r.begin()
	refused("without the cookie", r.finish(asked))
	other, _ := r.begin()
	refused("the state of another browser", r.finish(other, cookie))
	damaged := *cookie
	damaged.Value = damaged.Value[:20] + "AAAA" + damaged.Value[24:]
	refused("a changed cookie", r.finish(asked, &damaged))
	if sessionOf(r.finish(asked, cookie)) == nil {
		t.Error("the honest return is refused")
	}
	refused("the same return again", r.finish(asked, cookie))

	asked, cookie = r.begin()
	refused("a refusal by the issuer", r.get("GET", "/console/oidc/callback?error=access_denied&state="+
		url.QueryEscape(asked.Get("state")), cookie))
	asked, cookie = r.begin()
	refused("an unknown code", r.get("GET", "/console/oidc/callback?code=x&state="+url.QueryEscape(asked.Get("state")), cookie))
	for what, claims := range map[string]map[string]any{
		"another nonce": {"nonce": "x"}, "another audience": {"aud": "x"}, "another issuer": {"iss": "https://x.example"},
		"an end in the past": {"exp": time.Now().Add(-time.Hour).Unix()},
	} {
		claims["email"], claims["email_verified"] = "ann@example.org", true
		_, resp := r.signIn(claims)
		refused(what, resp)
	}
	key := r.Key
	r.Key = oidctest.NewKey(t)
	_, resp := r.signIn(ann)
	refused("another key", resp)
	r.Key = key
	for range 3 * maxFailedSignIns {
		refused("an invented return", r.get("GET", "/console/oidc/callback?code=x&state=y"))
	}
	if cookie, resp := r.signIn(ann); cookie == nil {
		t.Errorf("an honest sign-in after too many others: %d", resp.StatusCode)
	}
	if n := strings.Count(r.log.String(), "sign-in refused"); n != 1 {
		t.Errorf("%d lines of refused sign-ins:\n%s", n, r.log.String())
	}

	asked, cookie = r.begin()
	r.sessions.now = func() time.Time { return time.Now().Add(oidcFor + time.Second) }
	refused("too late", r.finish(asked, cookie))
}

// TestOIDCReload: a person that is taken from the lists has no access from then on, also with
// the cookie, and a person that is made a viewer may only look.
func TestOIDCReload(t *testing.T) {
	t.Parallel()
	r := newOIDCRig(t)
	cookie, _ := r.signIn(map[string]any{"email": "ann@example.org", "email_verified": true})
	status := func(method, path string) int { return r.get(method, path, cookie).StatusCode }
	viewer := func() (string, bool) {
		q := httptest.NewRequest("GET", "/console/data/events", nil)
		q.AddCookie(cookie)
		return r.pages.(*Pages).Viewer(q)
	}
	if name, ok := viewer(); name != "ann@example.org" || !ok {
		t.Errorf("viewer %q, %t", name, ok)
	}
	if got := status("GET", "/stats"); got != 200 {
		t.Fatalf("signed in: %d", got)
	}
	r.cfg.Operators, r.cfg.Viewers = []string{"bob@example.org"}, []string{"Ann@example.org"}
	r.reload()
	if get, post := status("GET", "/stats"), status("DELETE", "/allocations/x"); get != 200 || post != http.StatusForbidden {
		t.Errorf("as a viewer: %d, %d", get, post)
	}
	r.cfg.Viewers = nil
	r.reload()
	if got := status("GET", "/stats"); got != http.StatusUnauthorized {
		t.Errorf("removed: %d", got)
	}
	if name, ok := viewer(); ok {
		t.Errorf("removed: %q may look", name)
	}
}

// TestOIDCIssuerAway: without its issuer the pages work by the token, and say what is wrong.
func TestOIDCIssuerAway(t *testing.T) {
	t.Parallel()
	r := newOIDCRig(t)
	r.Close()
	if resp := r.get("GET", "/console/oidc/begin"); resp.StatusCode != http.StatusBadGateway ||
		!strings.Contains(text(resp), "does not answer") {
		t.Errorf("begin: %d", resp.StatusCode)
	}
	if resp := r.get("GET", "/console/login"); resp.StatusCode != 200 {
		t.Errorf("state: %d", resp.StatusCode)
	}
}

// TestOIDCRedirect: the issuer sends a browser back to the host by which it came, with TLS unless that
// is loopback.
func TestOIDCRedirect(t *testing.T) {
	t.Parallel()
	r := newOIDCRig(t)
	for host, want := range map[string]string{
		"127.0.0.1:7778": "http://127.0.0.1:7778", "localhost:8000": "http://localhost:8000", "[::1]:7778": "http://[::1]:7778",
		"192.0.2.7:7778": "https://192.0.2.7:7778", "[2001:db8::1]": "https://[2001:db8::1]",
	} {
		q, w := httptest.NewRequest("GET", "/console/oidc/begin", nil), httptest.NewRecorder()
		q.Host, q.RemoteAddr = host, "192.0.2.1:5000"
		r.pages.ServeHTTP(w, q)
		to, err := w.Result().Location()
		if err != nil || to.Query().Get("redirect_uri") != want+"/console/oidc/callback" {
			t.Errorf("%s: %v %v", host, to, err)
		}
		q.TLS = new(tls.ConnectionState)
		w = httptest.NewRecorder()
		r.pages.ServeHTTP(w, q)
		if to, err = w.Result().Location(); err != nil || to.Query().Get("redirect_uri") != "https://"+host+"/console/oidc/callback" {
			t.Errorf("%s over TLS: %v %v", host, to, err)
		}
	}
}

func TestOIDCCheck(t *testing.T) {
	t.Parallel()
	good := OIDC{Issuer: "https://id.example", ClientID: "ferry", Operators: []string{"a@b.example"}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*OIDC){
		"_issuer":                func(o *OIDC) { o.Issuer = "http://id.example" },
		"_issuer: \"http://127.": func(o *OIDC) { o.Issuer = "http://127.attacker.example" },
		"_client_id":             func(o *OIDC) { o.ClientID = "" },
		"must list":              func(o *OIDC) { o.Operators = nil },
		"neither an e-mail":      func(o *OIDC) { o.Viewers = []string{"ann"} },
		"neither an e-mail add":  func(o *OIDC) { o.Viewers = []string{"group:"} },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
