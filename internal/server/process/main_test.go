package process

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*RingBufferRateLimiter).loop"), // one per authority, for good
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))             // ends within 5 s
}

const secret = "a-secret-of-the-tests"

func addr(text string) config.Addr { return config.Addr{AddrPort: netip.MustParseAddrPort(text)} }

func local() config.Config {
	c := config.Serve()
	free := addr("127.0.0.1:0")
	c.UDP, c.HTTP, c.Admin, c.Workers = []config.Addr{free}, free, free, 2
	c.Tokens = []config.Token{{Secret: secret, Project: "game", Environment: "test", Kind: "player"}}
	return c
}

func options(c config.Config, mode Mode) Options {
	return Options{
		Config: c, Mode: mode, Logger: slog.New(slog.DiscardHandler),
		Identity: state.Identity{Relay: alloc.RelayID{1}, Master: alloc.MasterKey{2}},
	}
}

type running struct {
	*App
	cancel context.CancelFunc
	ended  chan error
}

func (r running) Stats() engine.Stats { return r.relay.stats() }

func (r running) apiAddr() netip.AddrPort { return r.handover.ports.addr(apiFile) }

func start(t testing.TB, o Options) running {
	t.Helper()
	return startChanged(t, o, func(*App) {})
}

func startChanged(t testing.TB, o Options, change func(*App)) running {
	t.Helper()
	ready := make(chan struct{})
	o.OnReady = func() { close(ready) }
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	change(a)
	ctx, cancel := context.WithCancel(context.Background())
	r := running{a, cancel, make(chan error, 1)}
	go func() { r.ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-r.ended:
		t.Fatalf("Run returned %v", err)
	case <-time.After(time.Minute):
		t.Fatal("not ready after a minute")
	}
	return r
}

// caller is a client of the app's API that keeps no connection open.
func (r running) caller(token string) *api.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	return &api.Client{BaseURL: r.URL(), Token: token, HTTP: &http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

// reserveMatch reserves a host for four players and one joiner of it.
func (r running) reserveMatch(t testing.TB) (host client.Ticket, code string, joiner client.Ticket) {
	t.Helper()
	host, err := client.Reserve(t.Context(), r.caller(secret), 4, "")
	if err != nil {
		t.Fatal(err)
	}
	if code, err = r.caller(secret).JoinCode(t.Context(), host.ID.String()); err != nil {
		t.Fatal(err)
	}
	if joiner, err = client.Redeem(t.Context(), r.caller(secret), code); err != nil {
		t.Fatal(err)
	}
	return host, code, joiner
}
