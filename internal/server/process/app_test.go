package process

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/base/parts"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestAddressesBeforeRun(t *testing.T) {
	t.Parallel()
	c := local()
	c.UDP = append(c.UDP, addr("[::1]:0"))
	a, err := New(options(c, Serve))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var kinds []string
	for _, l := range a.Listeners() {
		kinds = append(kinds, l.Kind)
		if l.Addr.Port() == 0 || !l.Addr.Addr().IsLoopback() {
			t.Errorf("%s listens on %v", l.Kind, l.Addr)
		}
	}
	if got := strings.Join(kinds, " "); got != "udp udp http admin" {
		t.Errorf("listeners %s", got)
	}
	for _, l := range a.Listeners() {
		if !strings.Contains(a.Summary(), l.Addr.String()) {
			t.Errorf("%v is not in %q", l.Addr, a.Summary())
		}
	}
}

func TestLifecycles(t *testing.T) {
	t.Parallel()
	t.Run("never run", func(t *testing.T) {
		a, err := New(options(local(), Serve))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Error(err)
		}
		if err := a.Run(t.Context()); err != ErrAlreadyRun {
			t.Errorf("Run after Close: %v", err)
		}
	})
	t.Run("context ends", func(t *testing.T) {
		r := start(t, options(local(), Serve))
		r.cancel()
		if err := <-r.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := r.Run(t.Context()); err != ErrAlreadyRun {
			t.Errorf("second Run: %v", err)
		}
	})
	t.Run("context has ended before", func(t *testing.T) {
		a, err := New(options(local(), Serve))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		r := start(t, options(local(), Serve))
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		if err := <-r.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Run("relay dies", func(t *testing.T) {
		r := start(t, options(local(), Serve))
		r.relay.engine.Server.Close()
		if err := <-r.ended; !errors.Is(err, parts.ErrEnded) || !strings.Contains(err.Error(), "relay") {
			t.Errorf("Run: %v", err)
		}
	})
	t.Run("listener dies", func(t *testing.T) {
		r := start(t, options(local(), Serve))
		r.api.web.Listener.Close()
		if err := <-r.ended; !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "api") {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestFailedNew: what was opened is closed again when a later listener fails.
func TestFailedNew(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, change := range map[string]func(*config.Config){
		"http":  func(c *config.Config) { c.HTTP = addr(taken.Addr().String()) },
		"admin": func(c *config.Config) { c.Admin = addr(taken.Addr().String()) },
	} {
		// Another process may get the port meanwhile, but not each time.
		for range 3 {
			if err = failedNew(t, name, change); err == nil {
				break
			}
		}
		if err != nil {
			t.Errorf("%s: the UDP socket was left open: %v", name, err)
		}
	}
}

// failedNew lets New fail after it has opened a UDP socket, and returns why no other
// one can be opened there.
func failedNew(t *testing.T, name string, change func(*config.Config)) error {
	t.Helper()
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr("127.0.0.1:0").AddrPort))
	if err != nil {
		t.Fatal(err)
	}
	free := addr(udp.LocalAddr().String())
	udp.Close()
	c := local()
	c.UDP = []config.Addr{free}
	change(&c)
	if a, err := New(options(c, Serve)); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%s: %v", name, err)
		a.Close()
	}
	again, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(free.AddrPort))
	if err != nil {
		return err
	}
	return again.Close()
}

func TestServeWantsTokens(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	var problem *api.Problem
	if _, err := r.caller("").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); !errors.As(err, &problem) ||
		problem.Status != 401 {
		t.Errorf("without a token: %v", err)
	}
	if _, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); err != nil {
		t.Errorf("with a token: %v", err)
	}
	if _, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 101}); !errors.As(err, &problem) {
		t.Errorf("above the ceiling: %v", err)
	}
}

// TestServeHasLimits: 60 calls a minute for a player, none of it in dev.
func TestServeHasLimits(t *testing.T) {
	t.Parallel()
	for mode, want := range map[Mode]bool{Serve: true, Dev: false} {
		r := start(t, options(local(), mode))
		refused := false
		// A slow machine gives the player some more meanwhile: one a second.
		for n, begin := 0, time.Now(); n < 70 || !refused && want && n < 70+int(time.Since(begin)/time.Second); n++ {
			var problem *api.Problem
			_, err := r.caller(secret).Regions(t.Context())
			refused = refused || errors.As(err, &problem) && problem.Status == 429
		}
		if refused != want {
			t.Errorf("mode %d: refused %v", mode, refused)
		}
	}
}

// TestEndedReachesTheService: a join code dies when the relay ends its host.
func TestEndedReachesTheService(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Dev))
	c := r.caller("")
	ticket, err := client.Reserve(t.Context(), c, 2, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := c.JoinCode(t.Context(), ticket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	host, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- host.Run(context.Background()) }()
	if err := host.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Join(t.Context(), code); err != nil {
		t.Fatal(err)
	}
	host.Close()
	<-done
	testkit.Eventually(t, "the join code dies with its host", func() bool {
		var problem *api.Problem
		_, err := c.Join(t.Context(), code)
		return errors.As(err, &problem) && problem.Code == api.CodeJoinCodeNotFound
	})
	testkit.Within(t, time.Minute, "no player to be bound", func() bool { return r.Stats().Bound == 0 })
}

func TestAdminPages(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	if _, err := r.caller(secret).Regions(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/livez": "ok\n", "/readyz": "ok\n", "/": "/console/app.js", "/pages": "/metrics",
		"/metrics": `ferry_http_requests_total{call="regions",status="200"} 1`,
	} {
		if status, body := fetch(t, r.AdminURL()+path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %q is missing in\n%s", path, status, want, body)
		}
	}
	if status, _ := fetch(t, r.URL()+"/metrics"); status != 404 {
		t.Errorf("the API shows metrics: %d", status)
	}
}

func fetch(t *testing.T, url string) (status int, body string) {
	t.Helper()
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestCallUnderWay: a call that was taken is answered although the end has come.
func TestCallUnderWay(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Dev))
	conn, err := net.Dial("tcp", r.apiAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"maxConnections":4}`
	io.WriteString(conn, "POST /v1/allocate HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n")
	// The server asks for the body: so the call is under way.
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	asked := make([]byte, len(goOn))
	if _, err := io.ReadFull(conn, asked); err != nil || string(asked) != goOn {
		t.Fatalf("%v, asked %q", err, asked)
	}
	r.cancel()
	testkit.Eventually(t, "the end has come", func() bool { return r.handover.ready.check() != nil })
	io.WriteString(conn, body)
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 201 ") {
		t.Errorf("%v, answer %.60q", err, answer)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}
