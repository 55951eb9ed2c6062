package ctl

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "it's a file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func answering(t *testing.T, status int, text string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestNew(t *testing.T) {
	for _, bad := range []Config{
		{URL: ""}, {URL: "127.0.0.1:7778"}, {URL: "ftp://127.0.0.1"}, {URL: "http://"}, {URL: "http://a/allocations"},
		{URL: "http://a?x=1"}, {URL: "http://me:secret@a"},
		{URL: DefaultURL, TokenFile: "/nowhere"}, {URL: DefaultURL, CAFile: "/nowhere"},
		{URL: DefaultURL, CAFile: file(t, "no certificate")},
	} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	client(t, Config{URL: "http://localhost:7778/"})
}

// TestErrors: each says what to do about it.
func TestErrors(t *testing.T) {
	const nobody = "http://127.0.0.1:1"
	plain := answering(t, 200, "{}")
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	t.Cleanup(secure.Close)
	token := file(t, "a-token-of-the-tests\n")
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"nobody there":    {Config{URL: nobody}, "nothing listens at " + nobody},
		"plain, not TLS":  {Config{URL: strings.Replace(plain.URL, "http", "https", 1)}, "--admin http://"},
		"TLS, not plain":  {Config{URL: strings.Replace(secure.URL, "https", "http", 1)}, "--admin https://"},
		"unknown CA":      {Config{URL: secure.URL}, "--ca FILE"},
		"no token":        {Config{URL: answering(t, 401, "x").URL}, "as --token-file"},
		"another token":   {Config{URL: answering(t, 401, "x").URL, TokenFile: token}, "does not take the token in"},
		"no such page":    {Config{URL: answering(t, 404, "404 page not found\n").URL}, "has no page /nodes"},
		"what it says":    {Config{URL: answering(t, 409, "admin: no\x1b[2J\nsecond line").URL}, "no?[2J\nsecond line (status 409)"},
		"not ours":        {Config{URL: answering(t, 200, "<html>").URL}, "does not look like the admin pages"},
		"a redirect":      {Config{URL: answering(t, 302, "elsewhere").URL}, "elsewhere (status 302)"},
		"a huge answer":   {Config{URL: answering(t, 200, strings.Repeat("x", maxAnswer+1)).URL}, "larger than"},
		"a huge refusal":  {Config{URL: answering(t, 500, strings.Repeat("x", 10_000)).URL}, "…"},
		"known authority": {Config{URL: secure.URL, CAFile: file(t, string(pemOf(secure)))}, "has no page"},
	} {
		var n operator.Nodes
		err := client(t, c.cfg).Do(t.Context(), Call{Method: "GET", Path: "/nodes"}, &n)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 3000 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "a-token-of-the-tests") {
			t.Errorf("%s: the token is shown: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client(t, Config{URL: plain.URL}).Do(ctx, Call{Method: "GET", Path: "/"}, &struct{}{}); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

func pemOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// TestCurl: what is printed does in a shell what Ask does, whatever the names.
func TestCurl(t *testing.T) {
	token := file(t, "a-token-of-the-tests\n")
	requests := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Header.Get("Authorization"))
		io.WriteString(w, "{}")
	}))
	defer s.Close()
	c := client(t, Config{URL: s.URL, TokenFile: token})
	call := Call{Method: "DELETE", Path: "/allocations/" + url.PathEscape("x y'z;$(id)"), Query: url.Values{"project": {"it's & more"}}}
	if err := c.Do(t.Context(), call, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	asked := <-requests
	line := c.Curl(call)
	if strings.Contains(line, "a-token-of-the-tests") {
		t.Errorf("the token is shown: %s", line)
	}
	testkit.Program(t, "curl", "curl")
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil || string(out) != "{}" {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	if got := <-requests; got != asked || !strings.HasSuffix(got, "Bearer a-token-of-the-tests") {
		t.Errorf("%s asks\n%s, Ask\n%s", line, got, asked)
	}
}

// TestPages: a listing goes on until the last page or the limit.
func TestPages(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		next := map[string]string{"": "5", "5": "9", "9": "0"}[r.FormValue("cursor")]
		fmt.Fprintf(w, `{"allocations":[{"id":"a"},{"id":"b"}],"next":%s}`, next)
	}))
	defer s.Close()
	c := client(t, Config{URL: s.URL})
	for limit, want := range map[int]struct{ shown, calls int }{0: {6, 3}, 6: {6, 3}, 3: {4, 2}, 2: {2, 1}, 1: {2, 1}} {
		asked = nil
		var out, errors strings.Builder
		list := Allocations("", operator.AllocationsQuery{Role: "host", Limit: limit})
		if err := c.Show(t.Context(), Output{Stdout: &out, Stderr: &errors}, list); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "\n") - 1; got != want.shown || len(asked) != want.calls {
			t.Errorf("limit %d: %d rows by %q", limit, got, asked)
		}
		if more := strings.Contains(errors.String(), "--limit 0"); more != (want.calls < 3) {
			t.Errorf("limit %d: %q", limit, errors.String())
		}
		if !strings.Contains(asked[0], "role=host") {
			t.Errorf("asked %q", asked)
		}
	}
}

// TestWatch: what is shown once is there, what fails later is shown in its
// place, and the end of the context is a good end.
func TestWatch(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls == 2 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"level":"look %d"}`, calls)
	}))
	defer s.Close()
	c := client(t, Config{URL: s.URL})
	var out strings.Builder
	o := Output{Stdout: &out, Watch: true, Every: time.Millisecond, Times: 3}
	if err := c.Show(t.Context(), o, Level("")); err != nil {
		t.Error(err)
	}
	if want := "look 1\n\nbusy (status 503)\n\nlook 3\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	calls = 1
	if err := c.Show(t.Context(), o, Level("")); err == nil {
		t.Error("the first request fails without an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Times, o.Stdout = 0, writer(func(p []byte) { cancel() })
	if err := c.Show(ctx, o, Level("")); err != nil {
		t.Errorf("stopped: %v", err)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// TestScreen: a terminal gets each page in the place of the one before.
func TestScreen(t *testing.T) {
	var out strings.Builder
	s := screen{w: &out, clear: true}
	for _, text := range []string{"a\nb\n", "c\n"} {
		if err := s.page([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "\x1b[2J\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J\x1b[Hc\x1b[K\n\x1b[J"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestIsYes: only a yes is one.
func TestIsYes(t *testing.T) {
	for answer, want := range map[string]bool{
		"y\n": true, "YES\n": true, " yes": true, "n\n": false, "\n": false, "": false, "yesterday\n": false,
	} {
		var out strings.Builder
		if isYes(strings.NewReader(answer), &out, "Ban 10.0.0.0/8?") != want || out.String() != "Ban 10.0.0.0/8? [y/N] " {
			t.Errorf("%q is not %t, asked %q", answer, want, out.String())
		}
	}
}
