package process

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestStreamsEndWithSession: a stream of the console ends with the sign-out of its session, and
// with the token that signs it.
func TestStreamsEndWithSession(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(secret)
	r := startReloading(t, Serve, func(c *config.Config) { c.AdminToken = token })
	browser := &http.Client{Timeout: 30 * time.Second} // Without an end, reading a stream fails then.
	call := func(method, path, body string, cookie *http.Cookie) *http.Response {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), method, r.AdminURL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if cookie != nil {
			q.AddCookie(cookie)
		}
		resp, err := browser.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for _, c := range []struct {
		name string
		end  func(*http.Cookie)
	}{
		{"a sign-out", func(cookie *http.Cookie) { call("DELETE", "/console/login", "", cookie) }},
		{"another token", func(*http.Cookie) { put(otherSecret); r.reload(t) }},
	} {
		cookie := call("POST", "/console/login", `{"token":"`+secret+`"}`, nil).Cookies()[0]
		var stream *http.Response
		testkit.Eventually(t, "the console has values", func() bool {
			stream = call("GET", "/console/data/events", "", cookie)
			return stream.StatusCode == http.StatusOK
		})
		if _, err := stream.Body.Read(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
		c.end(cookie)
		if _, err := io.Copy(io.Discard, stream.Body); err != nil {
			t.Errorf("%s: the stream ends with %v", c.name, err)
		}
	}
}
