package outcall

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestURLs(t *testing.T) {
	for _, c := range []struct {
		url     string
		private bool
		want    error
	}{
		{"https://issuer.example.org/keys", false, nil},
		{"https://203.0.113.7:8443/keys?x=1", false, nil},
		{"http://127.0.0.1:80/", false, nil},
		{"http://[::1]/", false, nil},
		{"http://localhost:8080/", false, nil},
		{"http://10.0.0.1/", false, ErrPlain},
		{"http://10.0.0.1/", true, nil},
		{"http://[fd00::1]/", true, nil},
		{"http://[::ffff:10.0.0.1]/", true, nil},
		{"http://hooks.internal/", false, ErrPlain},
		{"http://hooks.internal/", true, nil}, // What it stands for is looked at when it is dialled.
		{"http://100.64.0.1/", true, nil},
		{"http://100.64.0.1/", false, ErrPlain},
		{"http://100.128.0.1/", true, ErrPlain},
		{"http://203.0.113.7/", true, ErrPlain},
		{"http://169.254.169.254/", true, ErrPlain},
		{"http://0.0.0.0/", true, ErrPlain},
		{"", false, ErrURL},
		{"/keys", false, ErrURL},
		{"https:///keys", false, ErrURL},
		{"ftp://issuer.example.org/", false, ErrURL},
		{"file:///etc/passwd", false, ErrURL},
		{"https://user:hush@issuer.example.org/", false, ErrURL},
		{"https://issuer.example.org/#hush", false, ErrURL},
		{"https://issuer.example.org/%zzhush", false, ErrURL},
	} {
		_, err := New(Config{URL: c.url, AllowPrivate: c.private})
		if !errors.Is(err, c.want) || err == nil != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.url, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error quotes it: %v", c.url, err)
		}
	}
}

// TestDialGuard: a name or an address that is not near is refused when it is
// dialled, whatever was thought of it before.
func TestDialGuard(t *testing.T) {
	for address, want := range map[string][2]bool{
		"127.0.0.1:80": {true, true}, "[::1]:80": {true, true}, "10.1.2.3:80": {false, true},
		"[fd00::1]:80": {false, true}, "203.0.113.7:80": {false, false}, "169.254.169.254:80": {false, false},
		"[fe80::1%eth0]:80": {false, false}, "junk": {false, false},
	} {
		for i, private := range []bool{false, true} {
			if ok := nearOnly(private)("tcp", address, nil) == nil; ok != want[i] {
				t.Errorf("%s private=%v: permitted %v", address, private, ok)
			}
		}
	}
	e, err := New(Config{URL: "http://198.51.100.1.invalid/", AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Get(t.Context(), "*/*", 1); err == nil {
		t.Error("an unknown name answered")
	}
}

func TestCalls(t *testing.T) {
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/ten", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 10)) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("short"))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		w.Write([]byte(r.Method + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("X-A")))
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	at := func(path string) *Endpoint {
		e, err := New(Config{URL: server.URL + path, KeepAlive: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e
	}
	if a, err := at("/ten").Get(t.Context(), "*/*", 10); err != nil || len(a.Body) != 10 || a.Status != 200 {
		t.Errorf("as much as is permitted: %+v, %v", a, err)
	}
	if _, err := at("/ten").Get(t.Context(), "*/*", 9); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte too many: %v", err)
	}
	if a, err := at("/away?token=hush").Get(t.Context(), "*/*", 1000); err != nil || a.Status != 302 || elsewhere != 0 {
		t.Errorf("a redirect: %+v, %v, followed %d times", a, err, elsewhere)
	}
	if _, err := at("/cut?token=hush").Get(t.Context(), "*/*", 1000); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("an answer that is cut off: %v", err)
	}
	a, err := at("/echo").Post(t.Context(), http.Header{"X-A": {"b"}}, []byte("{}"), 100)
	if err != nil || a.Status != 418 || string(a.Body) != "POST application/json b" {
		t.Errorf("a post: %d %s, %v", a.Status, a.Body, err)
	}
}

// TestCloseLeavesNothing: a call that is made after Close, or was under way, works
// and leaves no connection open.
func TestCloseLeavesNothing(t *testing.T) {
	var open atomic.Int64
	asked, release := make(chan struct{}, 2), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.Start()
	defer server.Close()
	e, err := New(Config{URL: server.URL, KeepAlive: 2})
	if err != nil {
		t.Fatal(err)
	}
	call := func() {
		if a, err := e.Post(t.Context(), nil, nil, 100); err != nil || a.Status != 200 {
			t.Errorf("%+v, %v", a, err)
		}
	}
	var underWay sync.WaitGroup
	underWay.Go(call)
	<-asked
	e.Close()
	close(release)
	underWay.Wait()
	call()
	for deadline := time.Now().Add(20 * time.Second); open.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open", open.Load())
		}
	}
}
