package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"go.uber.org/goleak"
)

func running(t *testing.T) (relay *engine.Server, stop func()) {
	t.Helper()
	id := engine.Identity{Master: alloc.MasterKey{1}, Relay: alloc.RelayID{2}}
	relay, err := engine.New(engine.Config{Sockets: engine.Sockets{Workers: 2}}, id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	<-relay.Ready()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return relay, stop
}

func pages(relay *engine.Server, ready func() error) http.Handler {
	return New(Config{
		Title:   `ferry <"test">`,
		Metrics: func(w io.Writer) { io.WriteString(w, "ferry_allocations 0\n") },
		Health: Health{
			Probe: relay.Private().Check, Workers: func() []privateapi.WorkerStats { return relay.Stats().Private.Workers }, Ready: ready,
		},
		Drain: &DrainConfig{
			Drain: relay.Drain, Undrain: relay.Undrain,
			State: func() operator.DrainState { return operator.DrainState{Draining: relay.Stats().Draining} },
		},
	})
}

func get(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r.Host = "127.0.0.1:7778"
	h.ServeHTTP(w, r)
	return w
}

func TestPages(t *testing.T) {
	t.Parallel()
	relay, _ := running(t)
	h := pages(relay, func() error { return nil })
	for _, c := range []struct {
		method, path string
		status       int
		kind, want   string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8", `<a href="/metrics">`},
		{"GET", "/", 200, "text/html; charset=utf-8", "<h1>ferry &lt;&#34;test&#34;&gt;</h1>"},
		{"GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "ferry_allocations 0\n"},
		{"GET", "/livez", 200, "text/plain; charset=utf-8", "ok\n"},
		{"GET", "/readyz", 200, "text/plain; charset=utf-8", "ok\n"},
		{"HEAD", "/livez", 200, "text/plain; charset=utf-8", ""},
		{"POST", "/livez", 405, "text/plain; charset=utf-8", "Method Not Allowed"},
		{"GET", "/drain", 200, "application/json", `{"draining":false,"final":false,"threshold":0,"allocations":0}`},
		{"PUT", "/drain", 405, "text/plain; charset=utf-8", "Method Not Allowed"},
		{"GET", "/debug", 404, "text/plain; charset=utf-8", "404"},
	} {
		w := get(h, c.method, c.path)
		if w.Code != c.status || w.Header().Get("Content-Type") != c.kind || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d, %v\n%s", c.method, c.path, w.Code, w.Header(), w.Body)
		}
	}
	// A worker tells of its counts when it has time, up to 250 ms later.
	testkit.Eventually(t, "the relay saw the check of /livez", func() bool { return relay.Stats().Outcomes["check"] >= 1 })
}

func TestLivezOfADeadRelay(t *testing.T) {
	t.Parallel()
	relay, stop := running(t)
	h := pages(relay, func() error { return nil })
	stop()
	if w := get(h, "GET", "/livez"); w.Code != 503 || !strings.Contains(w.Body.String(), "check") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := get(h, "GET", "/metrics"); w.Code != 200 {
		t.Errorf("metrics of a dead relay: %d", w.Code)
	}
}

func TestNotReady(t *testing.T) {
	t.Parallel()
	relay, _ := running(t)
	h := pages(relay, func() error { return errors.New("stopping") })
	if w := get(h, "GET", "/readyz"); w.Code != 503 || w.Body.String() != "stopping\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := get(h, "GET", "/livez"); w.Code != 200 {
		t.Errorf("livez depends on readiness: %d", w.Code)
	}
}

func TestAddrAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addr               string
		public, token, tls bool
		ok                 bool
	}{
		{"127.0.0.1:7778", false, false, false, true},
		{"127.9.9.9:1", false, false, false, true},
		{"[::1]:7778", false, false, false, true},
		{"[::ffff:127.0.0.1]:7778", false, false, false, true},
		{"0.0.0.0:7778", false, false, false, false},
		{"[::]:7778", false, false, false, false},
		{"10.0.0.1:7778", false, false, false, false},
		{"203.0.113.1:7778", false, false, false, false},
		{"203.0.113.1:7778", true, false, false, true},
		{"203.0.113.1:7778", false, true, true, true},
		{"203.0.113.1:7778", false, true, false, false},
		{"203.0.113.1:7778", false, false, true, false},
		{"203.0.113.1:7778", true, true, false, true},
	} {
		err := AddrAllowed(netip.MustParseAddrPort(c.addr), c.public, c.token, c.tls)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrPublic) {
			t.Errorf("%s, public %v: %v", c.addr, c.public, err)
		}
	}
}

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}
