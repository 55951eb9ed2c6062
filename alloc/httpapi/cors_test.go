package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func preflightRequest(path, origin, headers string) *http.Request {
	r := newRequest(http.MethodOptions, path, "", "")
	r.Header.Set("Origin", origin)
	r.Header.Set("Access-Control-Request-Method", "POST")
	r.Header.Set("Access-Control-Request-Headers", headers)
	return r
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	asked := "authorization,content-type,unity-client-mode,x-unity-version,x-forwarded-for,unity-a b, Baggage"
	for path, call := range x.calls {
		rec := x.do(preflightRequest(path, "https://game.example.org", asked))
		wantStatus(t, rec, http.StatusNoContent)
		want := map[string]string{
			"Access-Control-Allow-Origin":  "*",
			"Access-Control-Allow-Methods": call.method,
			"Access-Control-Allow-Headers": "Authorization, Content-Type, Accept, unity-client-mode, x-unity-version, baggage",
			"Access-Control-Max-Age":       "600",
			"Allow":                        allowed[call.method],
		}
		for name, value := range want {
			if got := rec.Header().Get(name); got != value {
				t.Errorf("%s: %s = %q, want %q", path, name, got, value)
			}
		}
		if rec.Body.Len() != 0 {
			t.Errorf("%s: body %q", path, rec.Body)
		}
	}
}

func TestPreflightNeedsNoTokenAndCostsNothing(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{PlayerPerMinute: 1})
	for range 5 {
		wantStatus(t, x.do(preflightRequest("/v1/join", "https://a.org", "authorization")), 204)
	}
	wantStatus(t, x.do(regionsOf(tokenAnna)()), 200)
}

// TestPreflightOfBrowsers: what a page names, each browser finds in the answer. A browser compares names
// without case; to one that sends credentials a "*" is a name as any other, and to none it covers
// Authorization.
func TestPreflightOfBrowsers(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{AllowOrigins: []string{"https://game.example.org"}})
	for name, asked := range map[string]string{
		"Chrome, sessions 2.0":  "authorization,content-type,unity-client-mode,unity-client-version",
		"Firefox, sessions 2.3": "authorization,content-type,unity-client-mode,unity-client-version,user-agent",
		"Safari":                "Authorization, Content-Type, Unity-Client-Mode, Unity-Client-Version, User-Agent",
		"an old Safari":         "accept, origin, authorization, content-type, x-requested-with",
		"a page with tracing":   "authorization,baggage,content-type,sentry-trace,traceparent,tracestate,x-request-id",
		"a page without a call": "",
		"a cache bypassed":      "authorization,cache-control,pragma,if-none-match,range",
		"a name of a library":   "authorization,x-my_engine.version",
	} {
		rec := x.do(preflightRequest("/v1/allocate", "https://game.example.org", asked))
		wantStatus(t, rec, http.StatusNoContent)
		allowed := strings.Split(strings.ToLower(rec.Header().Get("Access-Control-Allow-Headers")), ", ")
		for _, header := range strings.Split(asked, ",") {
			if header = strings.ToLower(strings.TrimSpace(header)); header != "" && !slices.Contains(allowed, header) {
				t.Errorf("%s: %s is not in %q", name, header, allowed)
			}
		}
		if got := rec.Header().Get("Access-Control-Allow-Credentials"); got != "" || slices.Contains(allowed, "*") {
			t.Errorf("%s: credentials %q, headers %q", name, got, allowed)
		}
	}
}

func TestAllowedHeadersAreBounded(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("unity-x,", 1000)
	if got := strings.Count(allowedHeaders(many), "unity-x"); got != maxHeaderNames {
		t.Errorf("%d names echoed", got)
	}
	for _, name := range []string{"unity-\r\nx", "unity-ä", "unity-" + strings.Repeat("x", 100), "", "*", "accept",
		"Forwarded", "x-forwarded-for", "X-Forwarded-Host", "X-Real-IP"} {
		if got := allowedHeaders(name); got != baseHeaders {
			t.Errorf("allowedHeaders(%q) = %q", name, got)
		}
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	const listed = "https://game.example.org"
	tests := []struct {
		name    string
		allowed []string
		origin  string
		want    string
	}{
		{"nil is all", nil, listed, "*"},
		{"nil, no origin", nil, "", "*"},
		{"star in a list", []string{"https://a.org", "*"}, listed, "*"},
		{"listed", []string{"https://a.org", listed}, listed, listed},
		{"listed in capitals", []string{"https://GAME.example.org"}, listed, listed},
		{"not listed", []string{listed}, "https://evil.org", ""},
		{"a longer name", []string{listed}, listed + ".evil.org", ""},
		{"another scheme", []string{listed}, "http://game.example.org", ""},
		{"another port", []string{listed}, listed + ":8443", ""},
		{"null listed", []string{"null"}, "null", "null"},
		{"no origin", []string{listed}, "", ""},
		{"empty is all", []string{}, listed, "*"},
		{"none", []string{noOrigin}, listed, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := newFixture(t, Config{AllowOrigins: tt.allowed})
			r := newRequest(http.MethodGet, "/v1/regions", tokenAnna, "")
			r.Header.Set("Origin", tt.origin)
			rec := x.do(r)
			wantStatus(t, rec, 200)
			if got := rec.Header().Get("Access-Control-Allow-Origin"); got != tt.want {
				t.Errorf("Access-Control-Allow-Origin = %q, want %q", got, tt.want)
			}
			if varies := rec.Header().Get("Vary") == "Origin"; varies != (tt.want != "*") {
				t.Errorf("Vary = %q", rec.Header().Values("Vary"))
			}
			pre := x.do(preflightRequest("/v1/join", tt.origin, "authorization"))
			if granted := pre.Header().Get("Access-Control-Allow-Headers") != ""; granted != (tt.want != "") {
				t.Errorf("pre-flight granted: %v", granted)
			}
		})
	}
}

// TestPrivateNetwork: a public page may call a relay in the player's own network, if it may call at all.
func TestPrivateNetwork(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{AllowOrigins: []string{"https://game.example.org:443"}})
	for page, want := range map[string]string{"https://game.example.org": "true", "https://evil.org": ""} {
		r := preflightRequest("/v1/join", page, "authorization")
		r.Header.Set("Access-Control-Request-Private-Network", "true")
		if got := x.do(r).Header().Get("Access-Control-Allow-Private-Network"); got != want {
			t.Errorf("%s: %q, want %q", page, got, want)
		}
	}
	plain := x.do(preflightRequest("/v1/join", "https://game.example.org", "authorization"))
	if got := plain.Header().Get("Access-Control-Allow-Private-Network"); got != "" {
		t.Errorf("without a request: %q", got)
	}
}

func TestErrorsCanBeReadByPages(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	rec := x.post("/v1/join", "", `{}`)
	wantProblem(t, rec, 401, 15401)
	if got := rec.Header().Get("Access-Control-Allow-Origin"); got != "*" {
		t.Errorf("Access-Control-Allow-Origin = %q", got)
	}
	if got := rec.Header().Get("Access-Control-Expose-Headers"); got != "X-Request-Id, Retry-After" {
		t.Errorf("Access-Control-Expose-Headers = %q", got)
	}
}
