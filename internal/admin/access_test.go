package admin

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

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
		{"a link on another page", "GET", "127.0.0.1:7778", [2]string{"Sec-Fetch-Site", "cross-site"}, false, 204},
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
