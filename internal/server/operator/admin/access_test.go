package admin

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLinks: another site may open the console in a window, and nothing else.
func TestLinks(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for path, opens := range map[string]bool{
		"/": true, "/console/": true, "/console/oidc/callback?code=x": true, "/docs/unity.html": true,
		"/console/data/events": false, "/debug/pprof/profile?seconds=30": false, "/debug/pprof/": false, "/debug/flight-recorder": false,
		"/allocations/x/capture": false, "/fleet-capture/x": false, "/metrics": false, "/why/x": false,
	} {
		for _, c := range []struct {
			mode, dest string
			window     bool
		}{{"navigate", "document", true}, {"navigate", "iframe", false}, {"no-cors", "image", false}, {"cors", "empty", false}} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = "127.0.0.1:7778"
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", c.mode)
			r.Header.Set("Sec-Fetch-Dest", c.dest)
			w := httptest.NewRecorder()
			if rejectForeignPages(page, false).ServeHTTP(w, r); (w.Code == 204) != (c.window && opens) {
				t.Errorf("%s as %s: %d", path, c.dest, w.Code)
			}
		}
	}
}

// TestGuard: requests of a browser for a page of another origin are refused.
func TestGuard(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, c := range []struct {
		name, method, host string
		header             [2]string
		anyHost            bool
		want               int
	}{
		{"curl", "POST", "127.0.0.1:7778", [2]string{}, false, 204},
		{"curl by name", "POST", "LocalHost:7778", [2]string{}, false, 204},
		{"curl over IPv6", "GET", "[::1]:7778", [2]string{}, false, 204},
		{"curl without a port", "GET", "[::1]", [2]string{}, false, 204},
		{"a name that was made to point here", "GET", "attacker.example:7778", [2]string{}, false, 403},
		{"one that looks like ours", "GET", "localhost.attacker.example:7778", [2]string{}, false, 403},
		{"no host", "GET", "", [2]string{}, false, 403},
		{"a name, on a public listener", "GET", "ferry.internal:7778", [2]string{}, true, 204},
		{"a form of another page", "POST", "127.0.0.1:7778", [2]string{"Sec-Fetch-Site", "cross-site"}, false, 403},
		{"the same, public", "POST", "ferry.internal:7778", [2]string{"Origin", "https://attacker.example"}, true, 403},
		{"an old browser", "DELETE", "127.0.0.1:7778", [2]string{"Origin", "https://attacker.example"}, false, 403},
		{"an image on another page", "GET", "127.0.0.1:7778", [2]string{"Sec-Fetch-Site", "cross-site"}, false, 403},
		{"a script of a neighbour", "GET", "127.0.0.1:7778", [2]string{"Sec-Fetch-Site", "same-site"}, false, 403},
		{"a script in an old browser", "GET", "127.0.0.1:7778", [2]string{"Origin", "http://127.0.0.1:80"}, false, 403},
		{"our own script in an old browser", "GET", "127.0.0.1:7778", [2]string{"Origin", "http://127.0.0.1:7778"}, false, 204},
		{"an address that was typed", "GET", "127.0.0.1:7778", [2]string{"Sec-Fetch-Site", "none"}, false, 204},
		{"our own page", "POST", "127.0.0.1:7778", [2]string{"Sec-Fetch-Site", "same-origin"}, false, 204},
	} {
		r := httptest.NewRequest(c.method, "/drain", nil)
		r.Host = c.host
		if c.header[0] != "" {
			r.Header.Set(c.header[0], c.header[1])
		}
		w := httptest.NewRecorder()
		rejectForeignPages(page, c.anyHost).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", c.name, w.Code, c.want, w.Body)
		}
	}
}
